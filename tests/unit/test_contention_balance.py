"""Whether overlap paid, what it goes with, and the reverse. Times in microseconds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.contention import (
    communication_slowdown,
    contention,
    contention_basis,
    contention_causes,
    overlap_balance,
)
from diagnose.contention._tables import Verdict
from diagnose.schema import NULL, SAMPLES
from diagnose.trace import Table
from tests.builder import TraceBuilder, build_trace
from tests.contention_lines import US, Line, row_of


def stepped(gemm, beside, *, rank=0, steps=3):
    """Steps of one kernel of ``gemm`` us, ``beside`` us of it beside an all-reduce.

    The host waits for the GPU at the beginning, so that every step has a time.
    """
    builder, now = TraceBuilder(rank=rank, world_size=2), 0
    for number in range(steps):
        builder.step(number, now, gemm)
        if beside:
            builder.collective("allreduce", now + 20, beside, launch=now + 3)
        else:
            builder.collective("allreduce", now + 20 + gemm, 300, launch=now + 3)
        builder.kernel("gemm", now + 20, gemm, launch=now + 2)
        now += gemm + 20 + (0 if beside else 300)
    return builder


def test_the_balance_of_a_step():
    """Steps of 1620 us; 600 of the 800 hidden us are eaten.

    1600 us beside 800 us of all-reduce (half a rate of 1/4: 200 + 800 = 1000 us of work),
    so contention is 600; ideal 1020; serial 1020 + 800 = 1820; gain 200.
    """
    builder = stepped(1600, 800, steps=4)
    now = 10_000
    for _ in range(3):  # twins, in no step
        builder.kernel("gemm", now, 1000)
        now += 1500
    trace = build_trace(builder)
    assert row_of(contention(trace))["slowdown"] == pytest.approx(4.0)
    balance = overlap_balance(trace)
    step = row_of(balance, step_row=1)
    assert step["step_ns"] == 1620 * US
    assert step["hidden_ns"] == 800 * US
    assert step["contention_ns"] == pytest.approx(600 * US)
    assert step["ideal_ns"] == pytest.approx(1020 * US)
    assert step["serial_ns"] == pytest.approx(1820 * US)
    assert step["gain_ns"] == pytest.approx(200 * US)
    assert step["eaten_pct"] == pytest.approx(75)
    assert step["verdict"] == Verdict.WINS
    first = row_of(balance, step_row=0)
    assert first["step_ns"] == NULL
    assert np.isnan(first["gain_ns"])
    assert first["verdict"] == Verdict.UNKNOWN
    window = row_of(balance, step_row=-1)
    assert window["contention_ns"] == pytest.approx(2400 * US)
    row = row_of(contention(trace))
    assert (row["num_steps"], row["cost_per_step_ns"]) == (4, pytest.approx(600 * US))


def test_overlap_that_loses():
    """2000 us beside 800: 1000 us of work take 1000 us more than alone, and 800 were hidden."""
    builder = stepped(2000, 800, steps=4)
    for now in (20_000, 21_500, 23_000):
        builder.kernel("gemm", now, 1000)
    step = row_of(overlap_balance(build_trace(builder)), step_row=2)
    assert step["gain_ns"] == pytest.approx(-200 * US)
    assert step["eaten_pct"] == pytest.approx(125)
    assert step["verdict"] == Verdict.LOSES


def test_a_balance_on_few_twins_is_undecided():
    """Only a quarter of the overlapped compute has twins: the rest is a guess."""
    line = Line().times(3, "gemm", 1200, 1200).times(9, "other", 1200, 1200).times(3, "gemm", 1000)
    window = row_of(overlap_balance(line.trace))
    assert window["coverage_pct"] == pytest.approx(25)
    assert window["measured_ns"] == pytest.approx(600 * US)
    assert window["contention_ns"] == pytest.approx(2400 * US)
    assert window["verdict"] == Verdict.UNDECIDED


def test_twins_of_another_recording():
    """Never alone here. There: 1000 us, and a step of 1320 us without overlap.

    Steps of 1620 us against 1320: overlap loses 300 us. Ideal 1620 - 600 = 1020, so ideal
    overlap would gain 300, and contention of 600 eats twice that.
    """
    trace, serial = build_trace(stepped(1600, 800, steps=4)), build_trace(stepped(1000, 0, steps=4))
    assert isinstance(contention(trace), Unavailable)
    row = row_of(contention(trace, alone=serial))
    assert row["slowdown"] == pytest.approx(4.0)
    assert (row["num_alone"], row["num_paired"]) == (4, 4)
    step = row_of(overlap_balance(trace, alone=serial), step_row=1)
    assert step["serial_measured"]
    assert step["serial_ns"] == 1320 * US
    assert step["gain_ns"] == step["gain_low_ns"] == -300 * US
    assert step["eaten_pct"] == pytest.approx(200)
    assert step["verdict"] == Verdict.LOSES
    assert row_of(contention_basis(trace, alone=serial))["no_twin_ns"] == 0


def test_another_recordings_rank_is_the_same_rank():
    trace = build_trace(stepped(1600, 800))
    other = build_trace(stepped(1000, 0, rank=1))
    missing = contention(trace, alone=other)
    assert "have a twin" in missing.because
    assert "recording given as --alone" in missing.because


def test_kernels_that_ran_alone_in_both_recordings_are_a_check():
    line = Line().times(3, "gemm", 1600, 1600).times(3, "copy_kernel", 110)
    other = Line().times(3, "gemm", 1000).times(3, "copy_kernel", 100)
    other.builder.collective("allreduce", other.now + 100, 50)
    basis = row_of(contention_basis(line.trace, alone=other.trace))
    assert basis["alone_ratio"] == pytest.approx(1.1)


def sampled(trace, *clocks):
    """The trace with these (us, MHz) as telemetry of its first source."""
    columns = {c.name: np.full(len(clocks), np.nan) for c in SAMPLES.columns}
    base = trace.sources[0].base_ns + 5_000_000 * US  # the builder's zero
    columns["source"] = np.zeros(len(clocks), np.int32)
    columns["unix_ns"] = np.array([base + round(time * US) for time, _ in clocks], np.int64)
    columns["sm_clock_mhz"] = np.array([mhz for _, mhz in clocks], np.float64)
    return replace(trace, samples=Table(SAMPLES, columns, trace.strings))


def test_a_lower_clock_is_not_contention():
    """1100 us at 1800 MHz are 1000 us at 1980: nothing is slower. Uncorrected it is 1.1."""
    line = Line().times(4, "gemm", 1000)
    middle = line.now
    trace = line.times(4, "gemm", 1100, 1100).trace
    clocks = [(0, 1980), (middle - 6, 1980), (middle - 5, 1800), (middle + 4440, 1800)]
    trace = sampled(trace, *clocks)
    row = row_of(contention(trace))
    assert row["uncorrected_slowdown"] == pytest.approx(1.1)
    assert row["slowdown"] == pytest.approx(1.0, abs=1e-6)
    cause = row_of(contention_causes(trace))
    assert cause["clock_pct"] == pytest.approx(100, abs=1e-3)
    assert cause["unattributed_pct"] == pytest.approx(0, abs=1e-3)


def test_ranks_that_share_a_gpu_share_its_telemetry():
    """Only rank 0 was sampled. Rank 1 has its clock if both name the same GPU."""
    lines = [Line(rank=rank).times(4, "gemm", 1000) for rank in range(2)]
    middle = lines[0].now
    for line in lines:
        line.times(4, "gemm", 1100, 1100)
    trace = build_trace(*(line.builder for line in lines))
    trace = sampled(trace, (0, 1980), (middle - 6, 1980), (middle - 5, 1800), (middle + 4440, 1800))
    apart = contention(trace, "gpu")
    assert apart["slowdown"].tolist() == pytest.approx([1.0, 1.1], abs=1e-6)
    shared = {"gpu": {"uuid": "GPU-1"}}
    both = tuple(replace(source, environment=shared) for source in trace.sources)
    together = contention(replace(trace, sources=both), "gpu")
    assert together["slowdown"].tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert contention_basis(replace(trace, sources=both))["clock"].tolist() == [2, 2]
    assert contention_basis(trace)["clock"].tolist() == [2, 0]


def shared_gpu(*lines):
    """The trace of ranks on one physical GPU, as their environments say."""
    trace = build_trace(*(line.builder for line in lines))
    shared = {"gpu": {"uuid": "GPU-1"}}
    return replace(trace, sources=tuple(replace(one, environment=shared) for one in trace.sources))


def neighbours():
    """Rank 0 takes 1800 us beside rank 1's compute and 1200 us without it, if it is alone.

    Beside communication three of five have rank 1 beside them and take 1980 us (1.1 times as
    long), the other two do not and take 1320 us. Taken together they would be faster than
    their twins: (3 * 1980 + 2 * 1320) / (5 * 1800) = 0.953.
    """
    line = Line(rank=0).times(4, "add", 1800).times(3, "add", 1980, 1980)
    other = Line(rank=1).ran("add", line.now)
    return line.times(2, "add", 1320, 1320), other


def test_twins_have_the_company_of_other_ranks_on_the_gpu_that_the_overlapped_have():
    trace = shared_gpu(*neighbours())
    row = row_of(contention(trace, "gpu"), rank=0)
    assert row["slowdown"] == pytest.approx(1.1, rel=1e-12)
    assert (row["num_alone"], row["num_overlapped"], row["num_paired"]) == (4, 5, 3)
    assert row["cost_ns"] == pytest.approx(3 * 180 * US)
    basis = row_of(contention_basis(trace), rank=0)
    assert basis["other_company_ns"] == 2 * 1320 * US
    assert basis["paired_ns"] == 3 * 1980 * US
    # Where the environment does not say that they share it, nothing is known of company.
    apart = build_trace(*(line.builder for line in neighbours()))
    row = row_of(contention(apart, "gpu"), rank=0)
    assert row["duration_ratio"] == pytest.approx(8580 / 9000, rel=1e-12)


def test_twins_with_other_company_than_most_are_no_twins():
    """Four twins beside rank 1's compute (1800 us), one without (1200 us): it does not count."""
    line = Line(rank=0).times(4, "add", 1800).times(3, "add", 1980, 1980)
    other = Line(rank=1).ran("add", line.now)
    trace = shared_gpu(line.ran("add", 1200), other)
    row = row_of(contention(trace, "gpu"), rank=0)
    assert (row["num_alone"], row["slowdown"]) == (4, pytest.approx(1.1, rel=1e-12))


def test_company_of_twins_in_another_recording():
    line, other = neighbours()
    alone = Line(rank=0).times(4, "add", 1800)
    beside = Line(rank=1).ran("add", alone.now)
    row = row_of(
        contention(shared_gpu(line, other), "gpu", alone=shared_gpu(alone, beside)), rank=0
    )
    assert (row["num_paired"], row["slowdown"]) == (3, pytest.approx(1.1, rel=1e-12))


def test_durations_that_do_not_follow_the_clock_are_left_as_they_are():
    """Alone, half of the twins ran at 1500 MHz and took as long: waiting for memory.

    So the 1.1 beside communication, at 1500 MHz, are contention.
    """
    line = Line()
    marks = []
    for part in range(8):
        marks.append(line.now)
        for repeat in range(10):
            line.ran("copy_kernel", 1000 + (repeat % 3 - 1))
        if part % 2:
            line.times(2, "copy_kernel", 1100, 1100)
    marks.append(line.now)
    clocks = []
    for part, (begin, end) in enumerate(itertools.pairwise(marks)):
        mhz = 1500 if part % 2 else 1980
        clocks += [(begin - 5, mhz), (end - 6, mhz)]
    row = row_of(contention(sampled(line.trace, *clocks)))
    assert row["slowdown"] == pytest.approx(1.1, abs=0.002)
    assert row["slowdown_low"] < 1.1 < row["slowdown_high"]


def test_multiprocessors_are_a_fact_beside_the_slowdown():
    line = Line()
    line.builder.top["deviceProperties"] = [{"id": 0, "numSms": 132}]
    for blocks, slow in ((16, 1100), (64, 1500)):
        for _ in range(3):
            shape = {"grid": [blocks // 4, 4, 1], "block": [544, 1, 1]}
            line.builder.collective("allreduce", line.now, slow, **shape)
            line.ran("gemm", slow)
    trace = line.times(3, "gemm", 1000).trace
    table = contention_causes(trace)
    few, many = row_of(table, num_blocks=16), row_of(table, num_blocks=64)
    assert few["multiprocessors_pct"] == pytest.approx(100 * 16 / 132)
    assert many["multiprocessors_pct"] == pytest.approx(100 * 64 / 132)
    assert (few["slowdown"], many["slowdown"]) == (pytest.approx(1.1), pytest.approx(1.5))
    assert np.isnan(many["clock_pct"])
    assert many["unattributed_pct"] == 100
    line.builder.top["deviceProperties"] = "?"
    assert row_of(contention_causes(line.trace), num_blocks=16)["num_multiprocessors"] == NULL


def test_memory_bandwidth_needs_phases_longer_than_its_sensor():
    """Readings every 100 ms; 500 ms alone at 20 %, 500 ms with both at 70 %."""
    line = Line().times(5, "gemm", 100_000)
    trace = line.times(5, "gemm", 110_000, 110_000).trace
    times = [(at * 100_000 + 50, 0) for at in range(11)]
    trace = sampled(trace, *times)
    used = np.where(np.arange(11) <= 5, 20.0, 70.0)
    columns = trace.samples.columns | {"gpm_dram_bw_util_pct": used}
    trace = replace(trace, samples=Table(trace.samples.schema, columns, trace.strings))
    row = row_of(contention_causes(trace))
    assert (row["dram_alone_pct"], row["dram_overlapped_pct"]) == (20, 70)


def pair_of_ranks(*collectives):
    """Two ranks; of each collective: transfer, compute beside it on both, how late rank 1 is."""
    builders = [TraceBuilder(rank=rank, world_size=2) for rank in range(2)]
    now = 0
    for transfer, computed, late in collectives:
        for rank, builder in enumerate(builders):
            start = now + late * rank
            builder.collective("allreduce", start, transfer + late * (1 - rank), elements=1 << 20)
            if computed:
                builder.kernel("gemm", now + late, computed)
        now += transfer + late + 500
    return build_trace(*builders)


def test_collectives_beside_compute():
    """200 us alone, 300 us beside compute, waiting for the late rank taken out: 1.5."""
    trace = pair_of_ranks(*[(200, 0, 50)] * 3, *[(300, 300, 70)] * 3)
    table = communication_slowdown(trace)
    row = row_of(table, bytes=2 << 20)
    assert (row["num_alone"], row["num_paired"]) == (3, 3)
    assert (row["alone_ns"], row["overlapped_transfer_ns"]) == (200 * US, 300 * US)
    assert row["slowdown"] == pytest.approx(1.5)
    assert row_of(table, bytes=NULL)["slowdown"] == pytest.approx(1.5)


def test_collectives_beside_compute_need_ranks_and_twins():
    alone = communication_slowdown(Line().times(3, "gemm", 1600, 1600).trace)
    assert "one rank alone cannot tell waiting from moving bytes" in alone.because
    missing = communication_slowdown(pair_of_ranks(*[(300, 300, 70)] * 4))
    assert "of 4 matched collectives beside compute 0 have a twin" in missing.because
    serial = pair_of_ranks(*[(200, 0, 50)] * 3)
    beside = pair_of_ranks(*[(300, 300, 70)] * 4)
    row = row_of(communication_slowdown(beside, alone=serial), bytes=NULL)
    assert row["slowdown"] == pytest.approx(1.5)
