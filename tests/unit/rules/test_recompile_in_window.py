"""Training stops to compile code again."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "recompile-in-window"


def job(*steps: int, length: float = 4000, name: str = "entire_frame_compile") -> TraceBuilder:
    """Four steps of 10 ms in which the GPU idles from 4 to 9 ms; the compiler runs from 4.5."""
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(4):
        at = 10_000.0 * step
        builder.step(step, at, 10_000)
        builder.kernel("gemm", at + 10, 3_990, launch=at)
        builder.operator("aten::mm", at, 5)
        if step in steps:
            span = f"{name} (dynamo_timed)"
            builder.operator(span, at + 4_500, length, category="user_annotation")
            builder.operator("backend_compile (dynamo_timed)", at + 4_600, length - 200)
        builder.kernel("gemm", at + 9_000, 1_000, launch=at + 8_990)
    return builder


def test_fires_for_a_step_that_compiles():
    finding = found(trace_of(job(0, 2)), RULE)
    evidence = values(finding)
    # The inner span lies in the outer one and counts once; the first step does not count.
    assert evidence["compile_ns"] == 4_000_000
    assert (evidence["num_steps_hit"], evidence["num_steps"]) == (1, 3)
    # 4 ms of idle time over three timed steps.
    assert round(evidence["idle_ns"]) == 1_333_333
    assert finding.cost.per_step_ns == evidence["idle_ns"]


def test_silent_where_only_the_first_step_compiles():
    assert is_clean(trace_of(job(0)), RULE)


def test_silent_for_a_look_into_the_cache():
    assert is_clean(trace_of(job(1, 2, length=400)), RULE)


def test_silent_without_compilation():
    assert is_clean(trace_of(job()), RULE)
