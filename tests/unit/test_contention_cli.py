"""``diagnose contention`` from outside, and what the shipped recordings say."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest

from diagnose import engine, readers
from diagnose.contention import (
    contention,
    contention_basis,
    contention_kernels,
    overlap_balance,
)
from diagnose.contention._tables import Effect, Verdict
from diagnose.reporters import Page
from diagnose.reporters._contention import write
from diagnose.reporters._costs import cost_sentences
from diagnose.wording.plain import width_of
from tests.builder import TraceBuilder, build_trace
from tests.contention_lines import Line
from tests.text import jobs


def said(root, *arguments):
    command = [sys.executable, "-m", "diagnose", "contention", *map(str, arguments)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


def diagnosed(trace, by="collective", alone=None):
    options = {"alone": alone}
    requests = {
        "contention": engine.Request("contention", {**options, "by": "all"}),
        "basis": engine.Request("contention_basis", options),
        "balance": engine.Request("overlap_balance", options),
        "causes": engine.Request("contention_causes", options),
        "communication": engine.Request("communication_slowdown", options),
    }
    if by == "kernel":
        requests["kernel"] = engine.Request("contention_kernels", options)
    elif by != "step":
        requests[by] = engine.Request("contention", {**options, "by": by})
    return engine.diagnose(trace, requests, debug=True)


@pytest.fixture(scope="module")
def job():
    """A GEMM of 1000 us, five times alone and five times 1600 us beside an all-gather."""
    builder = TraceBuilder(rank=0, world_size=2)
    for number in range(5):
        now = number * 4000
        builder.collective("_allgather_base", now, 1600)
        builder.kernel("gemm", now, 1600).kernel("gemm", now + 2000, 1000)
    return builder


def test_text_says_what_it_costs_and_what_that_rests_on(job):
    text = write(diagnosed(build_trace(job)), "collective", None, "text", Page(110))
    joined = " ".join(text.split())
    assert "compute takes 1.60 times as long as alone (95 %: 1.60 to 1.60)" in joined
    assert "That is 3000.0 us of compute time over all GPUs." in joined
    assert "This rests on 100.0 % of the overlapped compute: 5 of 5 overlapped kernels" in joined
    assert "the figures include changes of the clock" in joined
    assert "Overlap wins" in joined
    assert "there is one GPU only" in joined
    assert max(width_of(line) for line in text.splitlines()) <= 110


def test_every_way_of_splitting_is_drawn(job):
    for by in ("collective", "family", "kernel", "step"):
        text = write(diagnosed(build_trace(job), by), by, None, "text", Page(100, unicode=False))
        assert text.isascii()
        assert "1.60" in text


def test_csv_and_json_hold_the_same_rows(root, tmp_path, job):
    path = job.write(tmp_path)
    target = tmp_path / "kernels.csv"
    answer = said(root, path, "--by", "kernel", "-o", target)
    assert answer.returncode == 0, answer.stderr
    [row] = csv.DictReader(io.StringIO(target.read_text()))
    answer = said(root, path, "--by", "kernel", "--format", "json")
    [record] = json.loads(answer.stdout)["rows"]
    assert row.keys() == record.keys()
    for found in (row, record):
        assert found["kernel"] == "gemm"
        assert float(found["alone_us"]) == 1000
        assert float(found["overlapped_us"]) == 1600
        assert float(found["slowdown"]) == pytest.approx(1.6)
        assert float(found["cost_us"]) == pytest.approx(3000)


def test_a_refusal_is_a_sentence_and_a_remedy(root, tmp_path):
    builder = TraceBuilder(rank=0).collective("allreduce", 0, 100).kernel("gemm", 0, 100)
    answer = said(root, builder.write(tmp_path))
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert "of 1 overlapped kernels 0 have a twin" in answer.stderr
    assert "hint: record more steps" in answer.stderr


def test_the_input_is_not_overwritten(root, tmp_path, job):
    path = job.write(tmp_path)
    before = path.read_bytes()
    for arguments in ([path, "-o", path], [root, "--alone", path, "-o", path]):
        answer = said(root, *arguments, "--format", "json")
        assert answer.returncode == 2
        assert "would replace it" in answer.stderr
    assert path.read_bytes() == before


def test_hostile_names_stay_text():
    builder = TraceBuilder(rank=0, world_size=1)
    for number in range(4):
        now = number * 400
        builder.collective("allreduce", now, 160).kernel(jobs.HOSTILE, now, 160)
        builder.kernel(jobs.HOSTILE, now + 200, 100)
    for by in ("kernel", "collective"):
        text = write(diagnosed(build_trace(builder), by), by, jobs.HOSTILE, "text", Page(100))
        assert "\x1b" not in text
        assert max(width_of(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("name", ["healthy", "straggler", "host_sync", "launch_bound"])
def test_real_recordings_are_plausible(recordings, name):
    """Two ranks share one GPU, and all-reduce has 63 of each one's 66 multiprocessors.

    What has twins is slower beside it, by no more than standing still; and how much has
    twins is said.
    """
    trace = readers.read(str(recordings / name))
    total = contention(trace, "all")
    assert total["duration_ratio"][0] > 1
    assert total["duration_ratio_high"][0] > total["duration_ratio_low"][0]
    assert not total["slowdown_low"][0] > 10
    assert 5 < total["coverage_pct"][0] < 95
    assert contention(trace).texts("collective") == ["all_reduce"]
    basis = contention_basis(trace)
    assert basis["clock"].tolist() == [2, 2]
    balance = overlap_balance(trace)
    known = balance.known("gain_ns")
    assert known.any()
    low = balance["coverage_pct"] < 50
    judged = np.isin(balance["verdict"], [Verdict.WINS, Verdict.LOSES])
    assert not (judged & low & ~balance["serial_measured"]).any()


def test_a_recording_as_its_own_other_finds_the_same_twins(recordings):
    trace = readers.read(str(recordings / "healthy"))
    own, other = contention(trace, "all"), contention(trace, "all", alone=trace)
    assert other["num_paired"][0] == pytest.approx(own["num_paired"][0], rel=0.1)
    assert other["duration_ratio"][0] == pytest.approx(own["duration_ratio"][0], rel=0.05)


@pytest.fixture(scope="module")
def four_kernels():
    """Ten times alone, 1000 us each, and beside an all-gather: slower, faster, either, once.

    Durations alternate by 10 us around their mean, so intervals are not empty; "either" takes 900
    and 1100 in turn, which holds 1.
    """
    line = Line()
    for name, wide, beside in (
        ("slower", 10, 1500),
        ("faster", 10, 500),
        ("either", 100, 1000),
    ):
        for turn in (-1, 1) * 5:
            line.ran(name, 1000 + turn * wide)
            line.now += 1000
            line.ran(name, beside + turn * wide, 2000)
            line.now += 2000
    line.ran("once", 1000)
    line.now += 1000
    line.ran("once", 1400, 2000)
    return line.trace


def test_what_may_be_claimed_of_a_kernel(four_kernels):
    table = contention_kernels(four_kernels)
    effect = dict(zip(table.texts("name"), table["effect"].tolist(), strict=True))
    assert effect == {
        "slower": Effect.SLOWER,
        "faster": Effect.FASTER,
        "either": Effect.NOT_TOLD,
        "once": Effect.UNKNOWN,
    }


def test_a_kernel_that_is_faster_is_marked_and_said_to_be_no_contention(four_kernels):
    diagnosis = diagnosed(four_kernels, "kernel")
    text = write(diagnosis, "kernel", None, "text", Page(130))
    [line] = [line for line in text.splitlines() if " faster " in line and "/10" in line]
    assert "faster*" in line
    assert "faster beside communication than alone: no contention" in " ".join(text.split())
    rows = json.loads(write(diagnosis, "kernel", None, "json", Page(100)))["rows"]
    assert {row["kernel"]: row["effect"] for row in rows} == {
        "slower": "slower",
        "faster": "faster",
        "either": "not_told",
        "once": "unknown",
    }


def test_undecided_has_its_reason():
    """A quarter of the overlapped compute has twins; the interval of the gain excludes 0."""
    line = Line().times(3, "gemm", 1200, 1200).times(9, "other", 1200, 1200).times(3, "gemm", 1000)
    diagnosis = diagnosed(line.trace)
    window = diagnosis.tables["balance"].take(diagnosis.tables["balance"]["step_row"] < 0)
    assert window["gain_low_ns"][0] > 0
    joined = " ".join(write(diagnosis, "collective", None, "text", Page(110)).split())
    assert (
        "is undecided (median gain 12.00 ms, derived): only 25.0 % of the overlapped compute has "
        "twins, and below 50 %" in joined
    )
    assert "undecided*" in joined
    [sentence] = [one for one in cost_sentences(diagnosis) if one.startswith("Overlap")]
    assert "undecided" in sentence
    assert "only 25.0 % of the overlapped compute has twins" in sentence


def test_a_gain_that_may_be_0_is_undecided_for_that_reason():
    """1000 us of each kernel are beside communication, and on average it takes 1000 us longer."""
    line = Line()
    for turn in (-1, 1) * 6:
        line.ran("gemm", 1000 + turn * 50)
        line.now += 1000
        line.ran("gemm", 2000 + turn * 100, 1000)
        line.now += 1000
    diagnosis = diagnosed(line.trace)
    balance = diagnosis.tables["balance"]
    assert balance["gain_low_ns"][0] < 0 < balance["gain_high_ns"][0]
    joined = " ".join(write(diagnosis, "collective", None, "text", Page(110)).split())
    assert "derived): the gain may be 0 or less." in joined
    assert "undecided*" not in joined


def test_sentences_and_tables_have_one_unit():
    """Ten kernels of 1200 us beside communication: 12 ms in ms, and so the 2 ms they cost."""
    line = Line().times(10, "gemm", 1200, 1200).times(3, "gemm", 1000)
    text = write(diagnosed(line.trace), "collective", None, "text", Page(110))
    joined = " ".join(text.split())
    assert "That is 2.00 ms of compute time" in joined
    assert "median gain 10.00 ms" in joined  # 12 ms hidden less 2 ms
    row = next(one for one in text.splitlines() if one.startswith("all_gather"))
    assert row.split()[1] == "12.00"
    assert "2.00" in row.split()


def test_a_slowdown_at_equal_clocks_says_what_it_is_at_the_clocks_as_they_were(recordings):
    diagnosis = diagnosed(readers.read(str(recordings / "straggler")))
    joined = " ".join(write(diagnosis, "collective", None, "text", Page(110)).split())
    total = diagnosis.tables["contention"]
    equal, were = (f"{float(total[n][0]):.2f}" for n in ("slowdown", "uncorrected_slowdown"))
    assert (equal, were) == ("1.62", "1.21")
    assert f"takes {equal} times as long as alone at equal clocks (95 %:" in joined
    assert f"at the clocks as they were {were})" in joined
    [sentence] = [one for one in cost_sentences(diagnosis) if one.startswith("Compute")]
    assert "1.62 times as long beside communication at equal clocks" in sentence
    assert f"at the clocks as they were {were}" in sentence


def test_without_telemetry_no_clock_is_spoken_of(job):
    text = write(diagnosed(build_trace(job)), "collective", None, "text", Page(110))
    assert "at equal clocks" not in text
