"""GPU memory is allocated and freed in every step."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.allocating_jobs import allocating
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "allocator-thrash"
CALLS = ("cudaFree", "cudaMalloc")


def test_fires_for_calls_in_each_step():
    finding = found(trace_of(allocating(CALLS, range(4))), RULE)
    evidence = values(finding)
    # Two calls of 15 us in each of the three steps after the first.
    assert (evidence["num_calls"], evidence["host_ns"], evidence["steps_pct"]) == (2, 30_000, 100)
    assert evidence["calls"] == "cudaFree, cudaMalloc"
    # From 50 to 90 us of a step; that it is laid to the calls is the stalls' own affair.
    assert evidence["idle_ns"] == 40_000
    assert finding.gain.changes == ("no-allocator-calls",)


def test_fires_for_two_of_three_steps():
    evidence = values(found(trace_of(allocating(CALLS, (1, 3))), RULE))
    assert round(evidence["steps_pct"], 2) == 66.67
    assert round(evidence["num_calls"], 2) == 1.33


def test_silent_where_the_cache_grows_in_the_first_step():
    assert is_clean(trace_of(allocating(CALLS, (0,))), RULE)


def test_silent_where_it_grows_once():
    assert is_clean(trace_of(allocating(CALLS * 2, (2,))), RULE)


def test_silent_for_host_memory():
    assert is_clean(trace_of(allocating(("cudaHostAlloc",), range(4))), RULE)


def test_is_not_judged_without_steps():
    builder = TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 10, launch=0)
    builder.call("cudaMalloc", 3)
    _, checked = judged(trace_of(builder), RULE)
    assert [one.because for one in checked.not_checked] == ["no step has a time on the GPU"]


def test_says_that_it_explains_waits_right_before_it():
    builder = allocating((), ())
    for step in range(4):
        # As empty_cache() does: wait for the device, then free.
        at = 100.0 * step
        correlation = builder.call("cudaDeviceSynchronize", at + 40, 12)
        builder.sync("Context Sync", at + 40, 12, correlation=correlation)
        builder.call("cudaFree", at + 52, 2)
    evidence = values(found(trace_of(builder), RULE))
    assert evidence["host_waits_pct"] == 100
