"""Hidden communication is paid for in slower kernels."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "compute-slowed-by-overlap"


def job(beside_us: float, *, num_overlapped: int = 4, num_alone: int = 4) -> TraceBuilder:
    """GEMMs of 100 us alone and of ``beside_us`` beside an all-reduce just as long."""
    builder, at, number = TraceBuilder(rank=0, world_size=2), 1000.0, 0
    for overlapped in [False] * num_alone + [True] * num_overlapped:
        length = beside_us if overlapped else 100
        builder.kernel("gemm", at, length, launch=number, grid=[132, 1, 1], block=[128, 1, 1])
        if overlapped:
            builder.collective("allreduce", at, length, launch=number + 0.5)
        at, number = at + length, number + 3
    return builder


def test_fires_for_slower_kernels():
    finding = found(trace_of(job(150)), RULE)
    evidence = values(finding)
    assert round(evidence["slowdown_ratio"], 9) == 1.5
    # 4 * 50 us of a window of 4 * 100 + 4 * 150 us.
    assert round(evidence["cost_ns"]) == 200_000
    assert round(evidence["cost_pct"], 6) == 20
    assert evidence["coverage_pct"] == 100
    assert evidence["kernel"] == "gemm"
    # 150 us for 100 are 1.5 times as long, not 1.5 times slower.
    assert "takes 1.50 times as long beside communication as alone" in finding.sentence


def test_silent_where_nothing_is_slower():
    assert is_clean(trace_of(job(100)), RULE)


def test_silent_below_its_slowdown():
    assert is_clean(trace_of(job(108)), RULE)


def test_is_not_judged_without_twins():
    findings, checked = judged(trace_of(job(150, num_alone=0)), RULE)
    assert not findings
    assert [one.rule for one in checked.not_checked] == [RULE]
