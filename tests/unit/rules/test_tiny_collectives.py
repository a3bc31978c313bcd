"""Many small collectives, each as slow as a larger one."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "tiny-collectives"
STEP, BACKWARD = 1000, 77


def job(number: int, elements: int, length: float, large: int = 1) -> TraceBuilder:
    """Per step 500 us of compute, then small all-reduces and ``large`` ones of 32 MiB."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.kernel("gemm", begin, 500, launch=begin + 1, thread=BACKWARD)
        at = begin + 500.0
        for _ in range(number):
            builder.collective(
                "allreduce", at, length, launch=begin + 5, elements=elements, thread=BACKWARD
            )
            at += length
        for _ in range(large):
            builder.collective(
                "allreduce", at, 200, launch=begin + 9, elements=1 << 24, thread=BACKWARD
            )
            at += 200
    return builder


def test_fires_where_most_messages_are_bound_by_latency():
    finding = found(trace_of(job(10, 2048, 20)), RULE)
    evidence = values(finding)
    assert evidence["num_tiny"] == 10
    assert evidence["of_calls_pct"] == 100 * 10 / 11
    assert evidence["message_bytes"] == 4096
    assert evidence["each_ns"] == 20_000
    assert evidence["transfer_ns"] == evidence["exposed_ns"] == 200_000
    # Steps end with their GPU work, so those with a time last 1000 us.
    assert evidence["transfer_pct"] == 20
    assert finding.confidence == "high"
    assert finding.gain.changes == ("bucket-size:mb=25",)


def test_hidden_ones_are_less_sure():
    builder = job(10, 2048, 20)
    for step in range(3):
        builder.kernel("gemm", step * STEP + 500, 200, launch=step * STEP + 3, stream=9)
    assert found(trace_of(builder), RULE).confidence == "medium"


def test_silent_for_large_messages_few_small_ones_and_little_time():
    assert is_clean(trace_of(job(10, 1 << 24, 20)), RULE)
    assert is_clean(trace_of(job(1, 2048, 200, large=2)), RULE)
    assert is_clean(trace_of(job(5, 2048, 4)), RULE)


def issued(number: int) -> TraceBuilder:
    """Per step 100 us of compute, then all-reduces of 4 us that the host needs 100 us each for."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.kernel("gemm", begin, 100, launch=begin + 1, thread=BACKWARD)
        for at in range(begin + 100, begin + 100 + 100 * number, 100):
            builder.operator("c10d::allreduce_", at, 100, thread=BACKWARD)
            builder.collective(
                "allreduce", at + 96, 4, launch=at + 86, elements=2048, thread=BACKWARD
            )
    return builder


def test_fires_where_the_gpu_idles_while_they_are_issued():
    finding = found(trace_of(issued(5)), RULE)
    evidence = values(finding)
    assert evidence["transfer_pct"] == 2
    # Five calls of 100 us, less the 4 us in each in which the GPU reduces.
    assert evidence["issue_idle_ns"] == 480_000
    assert evidence["issue_idle_pct"] == 48
    assert finding.cost.per_step_ns == 20_000 + 480_000


def test_silent_where_the_host_is_ahead_while_it_issues_them():
    builder = issued(5)
    for step in range(3):
        builder.kernel("gemm", step * STEP + 100, 899, launch=step * STEP + 1, stream=9)
    assert is_clean(trace_of(builder), RULE)
