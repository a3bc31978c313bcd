"""DistributedDataParallel searches for unused parameters in every step."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "ddp-find-unused"
STEP, BACKWARD = 1000, 77


def job(
    gap: int = 40, dtype: str = "Int", forward: str = "DistributedDataParallel.forward"
) -> TraceBuilder:
    """Three steps; each forward pass ends ``gap`` us after its last operator."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.operator(forward, begin + 1, 50 + gap, category="user_annotation")
        builder.operator("aten::mm", begin + 31, 20)
        builder.kernel("forward", begin + 35, 300, launch=begin + 33)
        builder.kernel("backward", begin + 335, 500, launch=begin + 200, thread=BACKWARD)
        builder.collective(
            "allreduce", begin + 835, 15, launch=begin + 210, thread=BACKWARD, dtype=dtype
        )
        builder.kernel("adam", begin + 900, 100, launch=begin + 300)
    return builder


def test_fires_for_the_pause_and_the_integers():
    evidence = values(found(trace_of(job()), RULE))
    # The last operator ends at 51 us, the forward pass at 91.
    assert evidence["gap_ns"] == 40_000
    assert evidence["gap_pct"] == 4
    assert evidence["exposed_ns"] == 15_000
    assert evidence["of_steps_pct"] == 100


def test_silent_without_the_integers_or_with_a_short_pause():
    assert is_clean(trace_of(job(dtype="BFloat16")), RULE)
    assert is_clean(trace_of(job(gap=5)), RULE)


def test_does_not_apply_to_other_wrappers():
    _, checked = judged(trace_of(job(forward="forward")), RULE)
    assert checked.not_applicable == (RULE,)
