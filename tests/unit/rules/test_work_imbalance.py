"""Ranks do unequal work."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "work-imbalance"
STEP = 1000


def rank(number: int, kernels: list[int], each: float = 50.0) -> TraceBuilder:
    """A rank that runs so many kernels of ``each`` us in its steps, then an all-reduce."""
    builder = TraceBuilder(rank=number, world_size=2)
    for step, count in enumerate(kernels):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        for place in range(count):
            builder.kernel("gemm", begin + place * each, each, launch=begin + place)
        end = begin + count * each
        builder.collective("allreduce", end, begin + STEP - end, launch=begin + 500)
    return builder


def test_fires_for_the_rank_with_more_kernels():
    finding = found(trace_of(rank(0, [6, 6, 6]), rank(1, [10, 10, 10])), RULE)
    evidence = values(finding)
    # 300 and 500 us: the mean is 400.
    assert evidence["of_mean_ratio"] == 1.25
    assert evidence["of_steps_pct"] == 100
    assert evidence["beyond_mean_ns"] == 100_000
    assert finding.where.ranks == (1,)
    assert finding.gain.changes == ("no-straggler",)


def test_fires_for_changing_ranks_without_naming_one():
    builders = rank(0, [6, 6, 10, 6, 10]), rank(1, [6, 10, 6, 10, 6])
    finding = found(trace_of(*builders), RULE)
    assert finding.where.gpus == ()
    assert "another rank each time" in finding.sentence


def test_silent_where_a_rank_runs_the_same_kernels_more_slowly():
    assert is_clean(trace_of(rank(0, [8, 8, 8], 40), rank(1, [8, 8, 8], 60)), RULE)


def test_silent_for_equal_work_and_below_the_threshold():
    assert is_clean(trace_of(rank(0, [8, 8, 8]), rank(1, [8, 8, 8])), RULE)
    builders = rank(0, [6, 6, 6]), rank(1, [10, 10, 10])
    assert is_clean(trace_of(*builders), RULE, min_of_mean_ratio=1.3)


def test_kernels_of_one_rank_alone_count_at_the_speed_of_the_others():
    slow = rank(1, [8, 8, 8], 60)
    for step in range(3):
        slow.kernel("extra", step * STEP + 500, 120, launch=step * STEP + 90)
    evidence = values(found(trace_of(rank(0, [8, 8, 8], 40), slow), RULE))
    # gemm is 50 us at the common speed; the slow rank runs at 50/60, so its extra counts 100.
    assert evidence["slowest_speed_ratio"] == pytest.approx(50 / 60)
    # 400 and 500 us: 500 / 450.
    assert evidence["of_mean_ratio"] == pytest.approx(500 / 450)
