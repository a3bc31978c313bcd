"""Input is late: the GPU idles before a step."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "data-loading"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def job(pause_us: float, *, loader: bool) -> TraceBuilder:
    """Four steps: one launch, then 1000 us of kernel; ``pause_us`` of host time before each."""
    builder, at = TraceBuilder(rank=0, world_size=1), 0.0
    for number in range(4):
        builder.step(number, at, pause_us + 1100)
        if loader:
            builder.operator(LOADER, at + 1, pause_us - 2, category="user_annotation")
        parent = builder.operator("aten::mm", at + pause_us + 2, 8)
        builder.kernel("gemm", at + pause_us + 10, 1000, launch=at + pause_us + 3, parent=parent)
        at += pause_us + 1100
    return builder


def test_fires_for_a_recorded_loader():
    finding = found(trace_of(job(3000, loader=True)), RULE)
    # A step lasts 4100 us, of which the kernel takes 1000: the GPU idles 3100.
    assert values(finding)["idle_ns"] == 3_100_000
    assert round(values(finding)["idle_pct"], 2) == 75.61
    assert values(finding)["loader_idle_ns"] == 3_100_000
    assert finding.confidence == "high"
    assert "num_workers" in finding.advice[0].code


def test_silent_for_a_loader_that_takes_little():
    # 90 us of loading in a step of 1190 us, held against 20 %.
    assert is_clean(trace_of(job(90, loader=True)), RULE, min_idle_pct=20.0)


def test_silent_where_the_queue_hides_the_loading():
    builder = TraceBuilder(rank=0, world_size=1)
    for number in range(4):
        at = number * 1000
        builder.step(number, at, 1000)
        builder.operator(LOADER, at + 1, 600, category="user_annotation")
        # Queued far ahead: the kernels follow each other without a gap.
        builder.kernel("gemm", 5000 + number * 2000, 2000, launch=at + 700)
    assert is_clean(trace_of(builder), RULE)
