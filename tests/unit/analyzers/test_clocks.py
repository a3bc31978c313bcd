"""Clock offsets against jobs whose clocks are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers.clocks import Alignment, clock_offsets
from diagnose.schema import NULL
from diagnose.trace import Table, Trace
from tests.synthetic_job import ZERO_NS, Job

MB = 1 << 20
JITTER_NS = 2_000


def _offsets(trace: Trace) -> Table:
    table = clock_offsets(trace)
    assert not isinstance(table, Unavailable)
    return table


def _steps(job: Job, groups: list[list[int]], num_steps: int = 8, per_step: int = 3) -> Job:
    for step in range(num_steps):
        job.begin_step(step)
        for place in range(per_step):
            for number, group in enumerate(groups):
                for rank in group:
                    job.compute(rank, 300_000 + int(job.random.integers(0, 60_000)))
                size = (place + 1) * MB
                job.collective("allreduce", group, size, 80_000, group=str(number))
    return job


def _own_hosts(num_ranks: int, **options) -> Job:
    return Job(num_ranks, host_of=lambda rank: f"node{rank}", **options)


def test_offsets_of_hosts_are_recovered() -> None:
    job = Job(8, host_of=lambda rank: f"node{rank // 2}")
    true = [0, 3_000_000, -7_000_000, 1_250_000]
    for host, offset in enumerate(true):
        job.clock(f"node{host}", offset_ns=offset)
    table = _offsets(_steps(job, [list(range(8))]).trace())
    wanted = -np.repeat(true, 2)
    # The median of 24 ends, each up to 2 us late, lies within a microsecond.
    assert np.abs(table["offset_ns"] - wanted).max() < JITTER_NS / 2
    assert table["alignment"].tolist() == [Alignment.REFERENCE, Alignment.SHARED] + 6 * [
        Alignment.ALIGNED
    ]
    assert table["clock"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table["residual_p95_ns"].max() <= JITTER_NS
    assert table["residual_mad_ns"].min() > 0
    assert set(table["drift"].tolist()) == {0.0}
    assert set(table["num_collectives"].tolist()) == {24}


def test_processes_of_one_host_share_a_clock() -> None:
    job = Job(2)
    _steps(job, [[0, 1]])
    # Rank 1 leaves every collective 9 us later, as the far end of a ring may.
    for op in job.operations[1]:
        if op.collective is not None:
            op.end += 9_000
    table = _offsets(job.trace())
    assert table["offset_ns"].tolist() == [0, 0]
    assert table["alignment"].tolist() == [Alignment.REFERENCE, Alignment.SHARED]
    # Half of the 9 us, plus or minus half of the jitter.
    assert 3_500 <= table["residual_mad_ns"][1] <= 5_500


def test_one_host_name_on_two_machines_is_not_believed() -> None:
    job = Job(4, host_of=lambda rank: "worker" if rank < 2 else "other")
    job.end_jitter_ns = 0
    trace = _steps(job, [[0, 1, 2, 3]]).trace()
    # Containers may all have one name: here rank 3's clock is 400 us ahead of rank 2's.
    start, end = trace.gpu_ops["start_ns"].copy(), trace.gpu_ops["end_ns"].copy()
    ahead = trace.gpu_ops["source"] == 3
    start[ahead] += 400_000
    end[ahead] += 400_000
    columns = dict(trace.gpu_ops.columns) | {"start_ns": start, "end_ns": end}
    ops = Table(trace.gpu_ops.schema, columns, trace.strings)
    table = _offsets(replace(trace, gpu_ops=ops))
    offset = table["offset_ns"].tolist()
    assert offset[0] == offset[1] == 0
    assert offset[2] - offset[3] == 400_000
    assert table["clock"][2] != table["clock"][3]


@pytest.mark.parametrize("drift", [20e-6, -5e-6])
def test_drift_is_recovered(drift: float) -> None:
    job = _own_hosts(3)
    job.clock("node1", offset_ns=2_000_000, drift=drift)
    _steps(job, [[0, 1, 2]], num_steps=400)
    assert max(job.now) - ZERO_NS > 400_000_000
    table = _offsets(job.trace())
    assert table["drift"][1] == pytest.approx(-drift, abs=0.5e-6)
    assert abs(table["drift"][2]) < 0.5e-6
    # At both ends of the recording the corrected clock shows true time.
    for true in (ZERO_NS, max(job.now)):
        shown = job.shown(1, true) + (job.base_ns or 0)
        since = shown - int(table["drift_origin_ns"][1])
        corrected = shown + int(table["offset_ns"][1]) + round(float(table["drift"][1]) * since)
        assert abs(corrected - (true + (job.base_ns or 0))) < JITTER_NS


def test_offsets_are_carried_along_overlapping_groups() -> None:
    job = _own_hosts(5)
    true = [0, 1_000_000, -2_000_000, 4_000_000, 500_000]
    for rank, offset in enumerate(true):
        job.clock(f"node{rank}", offset_ns=offset)
    groups = [[0, 1], [1, 2], [2, 3], [3, 4]]
    table = _offsets(_steps(job, groups, num_steps=15).trace())
    # Four links in a row, each good to half the jitter.
    assert np.abs(table["offset_ns"] + np.array(true)).max() < 4 * JITTER_NS / 2
    assert Alignment.IMPOSSIBLE not in table["alignment"].tolist()


def test_groups_that_never_meet_cannot_be_compared() -> None:
    job = _own_hosts(5)
    table = _offsets(_steps(job, [[0, 1], [2, 3, 4]]).trace())
    assert table["alignment"].tolist() == [
        *(Alignment.IMPOSSIBLE, Alignment.IMPOSSIBLE),
        *(Alignment.REFERENCE, Alignment.ALIGNED, Alignment.ALIGNED),
    ]
    assert table["offset_ns"][:2].tolist() == [NULL, NULL]


def test_a_common_host_ties_groups_together() -> None:
    job = Job(4, host_of=lambda rank: f"node{rank % 2}")
    job.clock("node1", offset_ns=1_500_000)
    table = _offsets(_steps(job, [[0, 1], [2, 3]]).trace())
    assert Alignment.IMPOSSIBLE not in table["alignment"].tolist()
    assert abs(table["offset_ns"][3] + 1_500_000) < JITTER_NS


def test_few_collectives_are_doubted() -> None:
    table = _offsets(_steps(_own_hosts(2), [[0, 1]], num_steps=1, per_step=4).trace())
    assert table["alignment"].tolist() == [Alignment.REFERENCE, Alignment.DOUBTFUL]


def test_a_residual_above_the_transfers_is_doubted() -> None:
    job = _own_hosts(2, end_jitter_ns=90_000)
    for step in range(8):
        job.begin_step(step)
        for place in range(3):
            for rank in range(2):
                job.compute(rank, 600_000 + int(job.random.integers(0, 90_000)))
            job.collective("allreduce", [0, 1], (place + 1) * MB, 10_000)
    table = _offsets(job.trace())
    assert table["alignment"].tolist() == [Alignment.REFERENCE, Alignment.DOUBTFUL]


def test_broadcasts_say_nothing_about_clocks() -> None:
    job = _own_hosts(2)
    for step in range(8):
        job.begin_step(step)
        for rank in range(2):
            job.compute(rank, 300_000 + 40_000 * step)
        job.collective("broadcast", [0, 1], MB, 50_000)
    table = _offsets(job.trace())
    assert table["alignment"].tolist() == 2 * [Alignment.IMPOSSIBLE]


def test_one_clock_without_a_base() -> None:
    trace = _steps(_own_hosts(2), [[0, 1]]).trace()
    sources = (trace.sources[0], replace(trace.sources[1], base_ns=None))
    table = _offsets(replace(trace, sources=sources))
    base = trace.sources[0].base_ns
    assert base is not None
    assert abs(int(table["offset_ns"][1]) - base) < JITTER_NS


def test_unavailable_says_why() -> None:
    one = clock_offsets(_steps(Job(1), [[0]]).trace())
    assert isinstance(one, Unavailable)
    assert "one source" in one.because
    none = clock_offsets(_steps(_own_hosts(2), [[0], [1]]).trace())
    assert isinstance(none, Unavailable)
    assert "no collective" in none.because
