"""Bandwidth below what the links reach alone."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "slow-network"
STEP = 2000
MIB_32 = 1 << 24  # elements of two bytes


def ranks(elements: int = MIB_32, arrivals: tuple[int, int] = (500, 500)) -> list[TraceBuilder]:
    """Two ranks, three steps: compute, then one all-reduce that both leave 1000 us later."""
    builders = []
    end = max(arrivals) + 1000
    for rank, arrival in enumerate(arrivals):
        builder = TraceBuilder(rank=rank, world_size=2)
        for step in range(3):
            begin = step * STEP
            builder.step(step, begin, STEP - 1)
            builder.kernel("gemm", begin, 400, launch=begin + 1)
            builder.collective(
                "allreduce", begin + arrival, end - arrival, launch=begin + 5, elements=elements
            )
        builders.append(builder)
    return builders


def test_fires_below_what_nccl_tests_reached():
    finding = found(trace_of(*ranks()), RULE, measured_gb_per_s=100.0)
    evidence = values(finding)
    # 33 554 432 bytes in 1 ms; the bus factor of an all-reduce of two ranks is 1.
    assert evidence["busbw_gb_per_s"] == pytest.approx(33.554432)
    assert evidence["of_reference_pct"] == pytest.approx(33.554432)
    assert evidence["exposed_ns"] == 1_000_000
    assert finding.cost.per_step_ns == pytest.approx(664_456, abs=1)
    assert finding.gain.changes == ("faster-collectives:bus_gb_per_s=100,kind=all_reduce",)


def test_waiting_for_a_late_rank_is_taken_out():
    finding = found(trace_of(*ranks(arrivals=(500, 900))), RULE, measured_gb_per_s=100.0)
    assert values(finding)["busbw_gb_per_s"] == pytest.approx(33.554432)


def test_silent_at_the_links_speed_and_for_small_messages():
    assert is_clean(trace_of(*ranks()), RULE, measured_gb_per_s=50.0)
    assert is_clean(trace_of(*ranks(elements=1 << 20)), RULE, measured_gb_per_s=100.0)


def test_silent_where_compute_runs_beside_it():
    builders = ranks()
    for builder in builders:
        for step in range(3):
            builder.kernel("gemm", step * STEP + 700, 600, launch=step * STEP + 7)
    assert is_clean(trace_of(*builders), RULE, measured_gb_per_s=100.0)


def test_is_not_judged_where_nothing_says_what_the_links_can_do():
    _, checked = judged(trace_of(*ranks()), RULE)
    assert [one.because for one in checked.not_checked] == [
        "what the links reach alone is not known"
    ]
