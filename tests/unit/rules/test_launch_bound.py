"""The GPU waits for the next launch."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "launch-bound"


def launching(kernel: float = 3, delay: float = 8, every: float = 10) -> TraceBuilder:
    """50 kernels, each launched by an operator as long as the host has time, at once started."""
    builder = TraceBuilder(rank=0, world_size=1)
    for number in range(50):
        at = number * every
        operator = builder.operator("aten::add", at, every)
        correlation = builder.call("cudaLaunchKernel", at + 2, 6, parent=operator)
        builder.kernel("add", at + 2 + delay, kernel, correlation=correlation)
    return builder


def test_fires_for_short_kernels_that_start_at_once():
    evidence = values(found(trace_of(launching()), RULE))
    # 49 gaps of 7 us in a window of 49 x 10 + 3 us.
    assert evidence["idle_ns"] == 343_000
    assert round(evidence["idle_pct"], 2) == 69.57
    assert evidence["num_kernels"] == 50
    assert (evidence["delay_ns"], evidence["kernel_ns"], evidence["call_ns"]) == (8000, 3000, 6000)
    assert evidence["kernel_ratio"] == 0.5


def test_silent_for_kernels_longer_than_two_launches():
    assert is_clean(trace_of(launching(kernel=13, every=20)), RULE)


def test_silent_where_launches_are_queued():
    assert is_clean(trace_of(launching(delay=40)), RULE)


def test_silent_where_little_is_idle():
    assert is_clean(trace_of(launching(kernel=9)), RULE)


def test_silent_for_replays_of_a_graph():
    builder = TraceBuilder(rank=0, world_size=1)
    for number in range(50):
        at = number * 10
        operator = builder.operator("aten::add", at, 10)
        correlation = builder.call("cudaGraphLaunch", at + 2, 6, parent=operator)
        builder.kernel("add", at + 10, 3, correlation=correlation)
    assert is_clean(trace_of(builder), RULE)
