"""Gradients are reduced after every micro-batch."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "accumulate-without-no-sync"
STEP, BACKWARD = 2000, 77
MIB_2 = 1 << 20  # elements of two bytes


def job(passes: int, *, reduces: str = "all", optimizer: bool = True) -> TraceBuilder:
    """Three steps of micro-batches (100 us forward, 100 us backward, two all-reduces of 50 us)."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        for number in range(passes):
            at = begin + number * 300
            builder.kernel("forward", at, 100, launch=at)
            builder.kernel("backward", at + 100, 100, launch=at + 100, thread=BACKWARD)
            if reduces == "last" and number < passes - 1:
                continue
            size = MIB_2 * (number + 1) if reduces == "different" else MIB_2
            for place in range(2):
                builder.collective(
                    "allreduce",
                    at + 200 + 50 * place,
                    50,
                    launch=at + 150 + place,
                    thread=BACKWARD,
                    elements=size,
                )
        if optimizer:
            builder.operator(
                "Optimizer.step#AdamW.step", begin + 1400, 20, category="user_annotation"
            )
        builder.kernel("adam", begin + 1450, 50, launch=begin + 1405)
    return builder


def test_fires_where_each_micro_batch_reduces_the_same():
    finding = found(trace_of(job(4)), RULE)
    evidence = values(finding)
    assert evidence["num_passes"] == 4
    assert evidence["reductions_ratio"] == 4
    # Two messages of 2 MiB in each pass; of three passes too many 100 us each are exposed.
    assert evidence["gradient_bytes"] == 4 * 2**20
    assert evidence["exposed_ns"] == 300_000


def test_silent_for_one_pass_and_where_only_the_last_reduces():
    assert is_clean(trace_of(job(1)), RULE)
    assert is_clean(trace_of(job(4, reduces="last")), RULE)


def test_silent_where_passes_reduce_different_gradients():
    assert is_clean(trace_of(job(2, reduces="different")), RULE)


def test_is_not_judged_without_marks_of_the_optimizer():
    _, checked = judged(trace_of(job(4, optimizer=False)), RULE)
    assert next(one.because for one in checked.not_checked).startswith(
        ("no optimizer step", "no operator")
    )
