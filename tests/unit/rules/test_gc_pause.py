"""Python's garbage collector stops the host, and the GPU runs dry."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "gc-pause"
STEP = 1000


def job(name: str = "gc.collect", *, queued: bool = False, hit: tuple[int, ...] = (2,)):
    """Four steps; in those ``hit`` a pause of 290 us follows the first kernel of 500 us."""
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(4):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.operator("aten::mm", begin + 1, 5)
        builder.kernel("gemm", begin, 500, launch=begin + 2)
        late = step in hit
        if late:
            builder.operator(name, begin + 490, 290, category="user_annotation")
        second = begin + (790 if late else 400)
        if late and queued:
            builder.operator("aten::mm", begin + 10, 5)
            builder.kernel("gemm", begin + 500, 300, launch=begin + 11)
        builder.operator("aten::mm", second, 8)
        start = begin + (800 if late else 500)
        builder.kernel("gemm", start, begin + STEP - start, launch=second + 1)
    return builder


def test_fires_where_the_gpu_idles_for_a_collection():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    # Idle from 500 to 800 us of one step.
    assert evidence["longest_ns"] == 300_000
    assert finding.where.spans[0].start_ns + 300_000 == finding.where.spans[0].end_ns
    assert "1 of" in finding.sentence
    assert finding.gain.changes == ("no-garbage-collection",)


def test_silent_where_work_was_queued_or_python_did_something_else():
    assert is_clean(trace_of(job(queued=True)), RULE)
    assert is_clean(trace_of(job(name="evaluate")), RULE)
    assert is_clean(trace_of(job(hit=())), RULE)
