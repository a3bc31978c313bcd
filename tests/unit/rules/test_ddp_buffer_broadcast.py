"""Buffers are broadcast before each forward pass."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "ddp-buffer-broadcast"
STEP = 1000


def job(length: int = 30, forward: str = "DistributedDataParallel.forward", steps: int = 3):
    """Three steps; in the first ``steps`` the forward pass begins with a broadcast."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.operator(forward, begin + 1, 50, category="user_annotation")
        if step < steps:
            builder.collective("broadcast", begin + 10, length, launch=begin + 2)
        builder.kernel("forward", begin + 100, 900, launch=begin + 20)
        builder.collective("allreduce", begin + 500, 50, launch=begin + 80)
    return builder


def test_fires_for_broadcasts_at_the_beginning_of_each_forward_pass():
    evidence = values(found(trace_of(job()), RULE))
    assert evidence["num_broadcasts"] == 1
    assert evidence["exposed_ns"] == 30_000
    assert evidence["exposed_pct"] == 3
    assert evidence["of_steps_pct"] == 100


def test_silent_where_they_cost_little_or_come_once():
    assert is_clean(trace_of(job(length=5)), RULE)
    assert is_clean(trace_of(job(steps=0)), RULE)
    assert is_clean(trace_of(job(steps=1)), RULE)


def test_does_not_apply_to_other_wrappers():
    _, checked = judged(trace_of(job(forward="forward")), RULE)
    assert checked.not_applicable == (RULE,)
