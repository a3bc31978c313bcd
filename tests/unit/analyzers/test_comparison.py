"""Comparison: every value worked out by hand, or counted from the file by other means."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections import defaultdict

import numpy as np
import pytest

import diagnose
from diagnose.analysis import Unavailable
from diagnose.analyzers._gate import Gate, gate
from diagnose.analyzers._noise import Judgement, compared
from diagnose.analyzers.comparison import Area, compare
from diagnose.errors import UsageError
from diagnose.schema import NULL, Detail
from tests.builder import TraceBuilder, build_trace

US = 1000


def job(compute=(40, 40, 40), period=100, rank=0, kernel="gemm", steps=3):
    """Per step of ``period`` us from t: compute [t+10, t+10+c), all-reduce [t+40, t+70)."""
    builder = TraceBuilder(rank=rank, world_size=1)
    for step in range(steps):
        t = step * period
        builder.step(step + 1, t, period)
        builder.kernel(kernel, t + 10, compute[step], launch=t + 1)
        builder.collective("allreduce", t + 40, 30, elements=1024, group_size=1, launch=t + 2)
    return build_trace(builder)


def row(table, area, name, rank=NULL):
    [found] = np.flatnonzero(
        (table["area"] == area)
        & (table["name"] == table.strings.code(name))
        & (table["rank"] == rank)
    )
    return {column: table[column][found].item() for column in table.columns}


def measure(table, name, rank=NULL):
    return row(table, Area.MEASURE, name, rank)


def test_the_measures_by_hand():
    table = compare(job(), job(compute=(45, 45, 47), period=110))
    found = {
        name: (measure(table, name)["before_ns"] / US, measure(table, name)["after_ns"] / US)
        for name in (
            *("step_time", "compute", "communication", "hidden_communication"),
            *("exposed_communication", "memory_only", "idle"),
        )
    }
    # Steps 2 and 3 have a time. Compute [10,50) against [40,70): 10 hidden; then 15 and 17.
    assert found == {
        "step_time": (100, 110),
        "compute": (40, 46),
        "communication": (30, 30),
        "hidden_communication": (10, 16),
        "exposed_communication": (20, 14),
        "memory_only": (0, 0),
        "idle": (40, 50),
    }
    hidden = measure(table, "hidden_communication")
    assert hidden["before_overlap_pct"] == pytest.approx(100 * 20 / 60)
    assert hidden["after_overlap_pct"] == pytest.approx(100 * 32 / 60)
    assert math.isnan(measure(table, "compute")["before_overlap_pct"])


def test_the_noise_by_hand():
    table = compare(job(), job(compute=(45, 45, 47), period=110))
    compute = measure(table, "compute")
    # Step values 40, 40 and 45, 47: variances 0 and 2, pooled 1; 2 degrees of freedom.
    assert compute["noise_ns"] == pytest.approx(4.303 * US)
    assert compute["change_pct"] == pytest.approx(15.0)
    assert compute["judgement"] == Judgement.BEYOND
    assert (compute["before_steps"], compute["after_steps"]) == (2, 2)
    # A kernel counts in all three steps: variances 0 and 4/3, pooled 2/3; 4 degrees of freedom.
    kernel = row(table, Area.KERNEL, "gemm")
    assert (kernel["before_ns"], kernel["after_ns"]) == (40 * US, 45 * US)
    assert kernel["noise_ns"] == pytest.approx(2.776 * 1.2533 * US * math.sqrt(2 / 3 * 2 / 3))
    assert kernel["judgement"] == Judgement.BEYOND
    assert (kernel["before_steps"], kernel["after_steps"]) == (3, 3)


def test_a_change_within_the_noise_is_called_so():
    table = compare(job(compute=(40, 38, 42)), job(compute=(40, 39, 44)))
    compute = measure(table, "compute")
    # 40 -> 41.5; variances 8 and 12.5, pooled 10.25: 4.303 x 3.2 = 13.8.
    assert compute["change_ns"] == pytest.approx(1.5 * US)
    assert compute["noise_ns"] == pytest.approx(4.303 * math.sqrt(10.25) * US)
    assert compute["judgement"] == Judgement.WITHIN


@pytest.mark.parametrize(
    ("before", "after", "noise"),
    [
        ([5.0], [7.0], math.nan),
        ([], [1.0, 2.0, 3.0], math.nan),
        # One step against two: the spread of the two alone, one degree of freedom.
        ([5.0], [6.0, 8.0], 12.706 * math.sqrt(2) * math.sqrt(1.5)),
        ([5.0, 5.0], [9.0, 9.0], 0.0),
        # Ten steps and more: a slow step (a checkpoint) is not what sets the band. Median 3,
        # median deviation 2; pooled with a spread of 0: 2 x 1.4826 / sqrt(2).
        ([1.0, 3.0] * 5 + [1000.0], [2.0] * 11, 2.086 * 1.2533 * 2 * 1.4826 / math.sqrt(11)),
    ],
)
def test_the_noise_of_given_values(before, after, noise):
    found = compared(np.array(before), np.array(after))
    assert found.noise == pytest.approx(noise, nan_ok=True)
    if math.isnan(noise):
        assert found.judgement == Judgement.UNKNOWN


def test_the_noise_band_holds_nineteen_times_in_twenty():
    """Two recordings of the same job: how often chance looks like a change."""
    for steps in (2, 3, 5, 9):
        random = np.random.default_rng(steps)
        draws = random.normal(100, 3, (4000, 2, steps))
        beyond = [compared(a, b).judgement == Judgement.BEYOND for a, b in draws]
        assert 0.02 <= np.mean(beyond) <= 0.07, steps


def test_a_kernel_of_one_recording_alone_is_0_in_the_other():
    table = compare(job(kernel="old"), job(kernel="new"))
    new, old = row(table, Area.KERNEL, "new"), row(table, Area.KERNEL, "old")
    assert (new["before_ns"], new["after_ns"], new["before_count"]) == (0, 40 * US, 0)
    assert math.isnan(new["change_pct"])
    assert (old["change_ns"], old["after_count"]) == (-40 * US, 0)


def test_collectives_are_told_apart_by_size():
    table = compare(job(), job())
    # 1024 elements of bfloat16.
    found = row(table, Area.COLLECTIVE, "all_reduce")
    assert (found["bytes"], found["before_ns"], found["before_count"]) == (2048, 30 * US, 1)


def test_recordings_of_different_sizes_compare_by_gpu():
    one = job(compute=(40, 40, 40))
    two = join(job_builder(0, 40), job_builder(1, 60))
    compute = measure(compare(one, two), "compute")
    assert (compute["before_ns"], compute["after_ns"]) == (40 * US, 50 * US)
    # Rank 0 is in both, rank 1 in the second alone.
    assert measure(compare(one, two), "compute", rank=0)["change_ns"] == 0
    assert compare(one, two)["rank"].max() == 0


def job_builder(rank, compute, arrives=None):
    """Two ranks; the all-reduce ends at t+70 on both and begins at ``arrives`` (default t+40)."""
    builder = TraceBuilder(rank=rank, world_size=2)
    begin = 40 if arrives is None else arrives
    for step in range(4):
        t = step * 100
        builder.step(step + 1, t, 100)
        builder.kernel("gemm", t + 5, compute, launch=t + 1)
        builder.collective("allreduce", t + begin, 70 - begin, elements=1024, launch=t + 2)
    return builder


def join(*builders, **options):
    return build_trace(*builders, **options)


def test_waiting_for_late_ranks_by_hand():
    together = join(job_builder(0, 30), job_builder(1, 30))
    late = join(job_builder(0, 30), job_builder(1, 50, arrives=60))
    table = compare(together, late)
    # Rank 0 waits [40,60) with nothing beside it, rank 1 not at all: 10 on average.
    waiting = measure(table, "waiting_for_late_ranks")
    assert (waiting["before_ns"], waiting["after_ns"]) == (0, 10 * US)
    assert measure(table, "waiting_for_late_ranks", rank=0)["after_ns"] == 20 * US
    assert measure(table, "waiting_for_late_ranks", rank=1)["after_ns"] == 0
    # Bytes move in [40,70), with no compute beside them, and then in [60,70).
    transfer = measure(table, "exposed_transfer")
    assert (transfer["before_ns"], transfer["after_ns"]) == (30 * US, 10 * US)
    # What rank 1's lateness costs the other.
    assert measure(table, "lateness_cost", rank=1)["after_ns"] == 20 * US
    assert measure(table, "lateness_cost", rank=0)["after_ns"] == 0


def test_waiting_is_unknown_where_nothing_was_matched():
    table = compare(job(), join(job_builder(0, 30), job_builder(1, 30)))
    waiting = measure(table, "waiting_for_late_ranks")
    assert math.isnan(waiting["before_ns"])
    assert math.isnan(waiting["change_ns"])
    assert waiting["judgement"] == Judgement.UNKNOWN


def test_rows_are_by_area_then_by_falling_change():
    table = compare(job(), job(compute=(45, 45, 47), period=110))
    assert (np.diff(table["area"]) >= 0).all()
    for area in Area:
        for about_one in (False, True):
            part = (table["area"] == area) & ((table["rank"] != NULL) == about_one)
            sizes = np.abs(table["change_ns"][part])
            assert (np.diff(sizes) <= 0).all()


@pytest.mark.parametrize(
    ("before", "after", "limit", "expected"),
    [
        (job(), job(period=110), 5, Gate.REGRESSED),
        (job(), job(period=110), 10, Gate.PASSED),
        (job(period=110), job(), 0, Gate.PASSED),
        (job(steps=2), job(period=110, steps=2), 5, Gate.UNKNOWN),
        (job(steps=2), job(period=110, steps=2), 15, Gate.PASSED),
        (job(steps=1), job(), 5, Gate.UNKNOWN),
    ],
)
def test_the_gate(before, after, limit, expected):
    assert gate(compare(before, after), limit) == expected


def test_growth_within_the_noise_is_no_regression():
    # The last step ends with compute: 100 + 15, then 100 - 15 and 100 + 45.
    uneven = job(compute=(60, 75, 60))
    longer = job(compute=(60, 75, 105))
    table = compare(uneven, longer)
    step = measure(table, "step_time")
    assert (step["before_ns"], step["after_ns"]) == (100 * US, 122.5 * US)
    assert gate(table, 5) == Gate.WITHIN_NOISE


def test_without_step_marks_it_says_which_recording_lacks_them():
    bare = build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10, launch=0))
    for pair, which in (((bare, job()), "first"), ((job(), bare), "second")):
        answer = compare(*pair)
        assert isinstance(answer, Unavailable)
        assert which in answer.because
        assert answer.remedy


def test_something_else_is_refused():
    with pytest.raises(UsageError, match="str"):
        compare(job(), "traces/")  # type: ignore[arg-type]


def test_stalls_need_all_detail_of_both():
    both = compare(join(job_builder(0, 30)), join(job_builder(0, 30)))
    assert (both["area"] == Area.STALL).any()
    less = join(job_builder(0, 30), detail=Detail.LAUNCHES)
    assert not (compare(join(job_builder(0, 30)), less)["area"] == Area.STALL).any()


@pytest.fixture(scope="module")
def shipped(recordings):
    names = ("healthy", "host_sync", "data_stall", "pageable_copy", "straggler")
    return {name: diagnose.load(str(recordings / name)) for name in names}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("host_sync", "host_sync"),
        ("data_stall", "data_loading"),
        ("pageable_copy", "copy_htod_pageable"),
    ],
)
def test_the_induced_cause_grew_most(shipped, name, cause):
    table = shipped["healthy"].compare(shipped[name])
    stalls = table[table["area"] == "stall"]
    assert stalls.iloc[0]["name"] == cause
    assert stalls.iloc[0]["change_ns"] > 0
    assert stalls.iloc[0]["judgement"] == "beyond"


def test_the_straggler_shows_as_waiting_on_rank_0_for_rank_1(shipped):
    table = shipped["healthy"].compare(shipped["straggler"])
    ranks = table[(table["area"] == "measure") & table["rank"].notna()]
    first = ranks[ranks["name"].isin(["lateness_cost", "waiting_for_late_ranks"])].iloc[:2]
    found = set(zip(first["name"], first["rank"], first["judgement"], strict=True))
    assert found == {("lateness_cost", 1, "beyond"), ("waiting_for_late_ranks", 0, "beyond")}


@pytest.mark.parametrize("name", ["healthy", "host_sync", "pageable_copy", "straggler"])
def test_parts_fill_the_step_and_causes_fill_the_stalls(shipped, name):
    table = shipped["healthy"].compare(shipped[name])
    table = table[table["rank"].isna()]
    by_name = table[table["area"] == "measure"].set_index("name")
    causes = table[table["area"] == "stall"]
    for which in ("before_ns", "after_ns"):
        value = by_name[which]
        # Two steps: their median is their mean, so parts add up.
        parts = value[["compute", "exposed_communication", "memory_only", "idle"]].sum()
        assert parts == pytest.approx(value["step_time"], abs=1)
        stalled = value["memory_only"] + value["idle"]
        assert causes[which].sum() == pytest.approx(stalled, abs=1)
        exposed = value["waiting_for_late_ranks"] + value["exposed_transfer"]
        assert exposed == pytest.approx(value["exposed_communication"], abs=1)


def test_the_other_way_round_is_the_negative(shipped):
    key = ["area", "name", "bytes", "rank"]
    there = shipped["healthy"].compare(shipped["straggler"]).set_index(key).sort_index()
    back = shipped["straggler"].compare(shipped["healthy"]).set_index(key).sort_index()
    assert len(there) == len(back)
    np.testing.assert_allclose(there["change_ns"], -back["change_ns"])
    np.testing.assert_allclose(there["noise_ns"], back["noise_ns"])


def test_a_recording_compared_with_itself_shows_nothing(shipped):
    table = shipped["healthy"].compare(shipped["healthy"].trace)
    assert (table["change_ns"] == 0).all()
    assert (table["judgement"] == "within").all()


def counted_by_hand(folder):
    """Median over steps of the mean over ranks of each kernel's time, from the JSON alone."""
    totals = defaultdict(lambda: defaultdict(int))
    files = sorted(folder.glob("*.trace.json.gz"))
    for file in files:
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        events = [event for event in events if event.get("ph") == "X"]
        marks = [e for e in events if e["name"].startswith("ProfilerStep#")]
        marks = [mark for mark in marks if mark["cat"] == "user_annotation"]
        calls = {
            event["args"]["correlation"]: event["ts"]
            for event in events
            if event.get("cat") in ("cuda_runtime", "cuda_driver")
        }
        for event in events:
            if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
                continue
            call = calls.get(event["args"]["correlation"], -1)
            for mark in marks:
                if mark["ts"] <= call < mark["ts"] + mark["dur"]:
                    totals[event["name"]][mark["name"]] += round(event["dur"] * 1000)
    steps = sorted({step for by_step in totals.values() for step in by_step})
    return {
        name: statistics.median(by_step[step] / len(files) for step in steps)
        for name, by_step in totals.items()
    }


def test_kernels_agree_with_a_count_from_the_file(shipped, recordings):
    table = shipped["healthy"].compare(shipped["straggler"])
    kernels = table[table["area"] == "kernel"].set_index("name")
    for column, name in (("before_ns", "healthy"), ("after_ns", "straggler")):
        expected = counted_by_hand(recordings / name)
        present = [kernel for kernel in expected if kernel in kernels.index]
        assert len(present) > 20
        for kernel in present:
            assert kernels.loc[kernel, column] == pytest.approx(expected[kernel], abs=2)
