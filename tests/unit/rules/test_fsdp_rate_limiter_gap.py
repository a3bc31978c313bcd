"""FSDP's rate limiter lets the GPU run dry."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "fsdp-rate-limiter-gap"
STEP = 1000
LIMITER = "FullyShardedDataParallel.rate_limiter"


def job(*, limiter: str = LIMITER, ahead: bool = False) -> TraceBuilder:
    """Three steps: a kernel to 400 us, for which the host waits inside of the limiter.

    The next is launched at 450 us. With ``ahead``, another was queued before the wait.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.collective("_allgather_base", begin, 100, launch=begin + 1)
        builder.kernel("unit", begin + 100, 300, launch=begin + 5)
        if ahead:
            builder.kernel("unit", begin + 400, 100, launch=begin + 8)
        builder.operator(limiter, begin + 20, 384, category="user_annotation")
        builder.call("cudaEventSynchronize", begin + 22, 380)
        builder.kernel("unit", begin + (500 if ahead else 460), 540, launch=begin + 450)
    return builder


def test_fires_where_the_gpu_idles_after_the_wait():
    evidence = values(found(trace_of(job()), RULE))
    # From 400 to 460 us.
    assert evidence["idle_ns"] == 60_000
    assert evidence["wait_ns"] == 380_000
    assert evidence["num_waits"] == 1


def test_silent_where_work_was_queued():
    assert is_clean(trace_of(job(ahead=True)), RULE)


def test_does_not_apply_to_waits_of_others():
    _, checked = judged(trace_of(job(limiter="aten::item")), RULE)
    assert checked.not_applicable == (RULE,)
