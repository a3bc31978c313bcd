"""The host waits for the GPU, and the GPU runs dry."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "host-sync"


def waiting(*, queued: bool) -> TraceBuilder:
    """Kernels of 100 us; inside of aten::item the host waits for the first.

    ``queued``: the second was launched before the wait and hides it.
    """
    builder = TraceBuilder(rank=0, world_size=1)
    builder.kernel("gemm", 10, 100, launch=0)
    if queued:
        builder.kernel("gemm", 110, 100, launch=4)
    item = builder.operator("aten::item", 10, 105)
    builder.call("cudaStreamSynchronize", 12, 100, parent=item)
    builder.kernel("gemm", 210 if queued else 150, 100, launch=140)
    return builder


def test_fires_where_the_gpu_runs_dry_in_the_wait():
    finding = found(trace_of(waiting(queued=False)), RULE)
    evidence = values(finding)
    # Idle from 110 to 150 of a window of 10 to 250 us.
    assert evidence["idle_ns"] == 40_000
    assert round(evidence["idle_pct"], 3) == 16.667
    assert evidence["operator"] == "aten::item"
    assert evidence["num_waits"] == 1
    assert evidence["host_wait_ns"] == 100_000
    assert finding.key == "host-sync@aten::item"
    assert any("loss.detach()" in fix.code for fix in finding.advice)


def test_silent_where_the_queue_holds_work():
    assert is_clean(trace_of(waiting(queued=True)), RULE)


def test_silent_below_its_threshold():
    assert is_clean(trace_of(waiting(queued=False)), RULE, min_idle_pct=17.0)


def test_waits_are_counted_per_step():
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(4):
        at = step * 1000
        builder.step(step, at, 999)
        builder.kernel("gemm", at + 10, 500, launch=at + 5)
        for begin, end in ((25, 515), (620, 985)):
            item = builder.operator("aten::item", at + begin - 2, end - begin + 4)
            builder.call("cudaStreamSynchronize", at + begin, end - begin, parent=item)
        builder.kernel("gemm", at + 600, 380, launch=at + 590)
    evidence = values(found(trace_of(builder), RULE))
    assert evidence["num_waits"] == 2
    assert evidence["host_wait_ns"] == 490_000 + 365_000
