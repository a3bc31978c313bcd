"""What was recorded is not steady training."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "window-not-steady"
LOADING = "Lazy Function Loading"


def job(*lengths: float) -> TraceBuilder:
    """Steps that compute throughout."""
    builder, at = TraceBuilder(rank=0, world_size=1), 0.0
    for number, length in enumerate(lengths):
        builder.step(number, at, length)
        builder.kernel("gemm", at + 1, length - 1, launch=at + 0.5)
        at += length
    return builder


def loading(share: float, name: str = LOADING) -> TraceBuilder:
    """Four steps of 100 us; the profiler works for a part of them, and long before them."""
    builder = job(100, 100, 100, 100)
    builder.operator(name, 10, 4 * share, category="overhead")
    builder.operator(name, -5000, 900, category="overhead")
    return builder


def test_fires_for_loading():
    finding = found(trace_of(loading(3)), RULE)
    # 12 of 400 us; what lies before the steps does not count.
    assert values(finding) == {"overhead_ns": 12_000, "overhead_pct": pytest.approx(3)}
    assert finding.severity == "info"
    assert LOADING in finding.sentence


def test_fires_for_few_steps():
    assert values(found(trace_of(job(100, 100)), RULE)) == {"num_steps": 2}


def test_fires_for_a_long_first_step():
    # The first mark has no step time: of the timed ones the first takes 300 us, the others 100.
    evidence = values(found(trace_of(job(50, 300, 100, 100)), RULE))
    assert evidence["first_step_ns"] == 300_000
    assert evidence["other_steps_ns"] == 100_000
    assert evidence["first_step_ratio"] == 3


def test_silent_for_steady_steps():
    assert is_clean(trace_of(job(100, 100, 100, 100)), RULE)


def test_silent_for_little_overhead():
    assert is_clean(trace_of(loading(1.5)), RULE)


def test_silent_where_the_host_is_ahead():
    assert is_clean(trace_of(loading(50, "Command Buffer Full")), RULE)


def test_silent_without_marks():
    builder = TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 100, launch=0)
    assert is_clean(trace_of(builder), RULE)
