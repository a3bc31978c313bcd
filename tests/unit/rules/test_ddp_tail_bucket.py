"""The last gradients are reduced when the backward pass is over."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "ddp-tail-bucket"
STEP, BACKWARD = 1000, 77


def job(start: int = 750, length: int = 150, elements: int = 1 << 22) -> TraceBuilder:
    """Three steps: backward from 300 to 800 us, one hidden bucket, one from ``start`` on."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.kernel("forward", begin, 300, launch=begin + 1)
        builder.kernel("backward", begin + 300, 500, launch=begin + 5, thread=BACKWARD)
        builder.collective(
            "allreduce", begin + 500, 100, launch=begin + 6, elements=1 << 22, thread=BACKWARD
        )
        builder.collective(
            "allreduce",
            begin + start,
            length,
            launch=begin + 9,
            elements=elements,
            thread=BACKWARD,
        )
        builder.kernel("adam", begin + 950, 50, launch=begin + 20)
    return builder


def test_fires_for_what_is_left_after_the_backward_pass():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    # From 750 to 900 us, and the backward pass ends at 800.
    assert evidence["tail_ns"] == 100_000
    assert evidence["tail_pct"] == 10
    assert evidence["of_steps_pct"] == 100
    assert evidence["last_bucket_bytes"] == 8 * 2**20
    assert finding.advice[0].code == "DistributedDataParallel(model, bucket_cap_mb=4)"
    assert finding.gain.changes == ("bucket-size:mb=4",)


def test_silent_where_buckets_end_with_the_backward_pass_or_shortly_after():
    assert is_clean(trace_of(job(start=640)), RULE)
    assert is_clean(trace_of(job(start=670)), RULE)  # 20 us of 1000


def test_silent_for_buckets_that_latency_bounds():
    assert is_clean(trace_of(job(elements=1 << 18)), RULE)
