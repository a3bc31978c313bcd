"""RCCL's kernels share hardware queues with compute on an AMD GPU."""

from __future__ import annotations

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "amd-comm-priority"
COMPUTE = 7


def job(
    exposed: float = 20, hidden: float = 0, stream: int = 20, gpu: str = "AMD Instinct", **env: str
) -> Trace:
    """Three steps of 100 us: compute, and an all-reduce that begins ``hidden`` us before."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        at = 100.0 * step
        builder.step(step, at, 100)
        end = at + 100 - exposed
        builder.kernel("gemm", at + 1, end - at - 1, stream=COMPUTE, launch=at)
        builder.collective(
            "allreduce", end - hidden, exposed + hidden, stream=stream, launch=at + 1
        )
    return trace_of(builder, env=env, gpu={"name": gpu})


def test_fires_where_nothing_overlaps():
    evidence = values(found(job(hidden=2), RULE))
    assert evidence["exposed_ns"] == 20_000
    assert evidence["exposed_pct"] == pytest.approx(20)
    # 2 of 22 us.
    assert evidence["hidden_pct"] == pytest.approx(100 / 11)


def test_silent_where_it_overlaps():
    assert is_clean(job(hidden=10), RULE)


def test_silent_where_little_is_exposed():
    assert is_clean(job(exposed=4), RULE)


def test_silent_on_the_stream_of_compute():
    assert is_clean(job(stream=COMPUTE), RULE)


def test_silent_where_queues_were_set():
    assert is_clean(job(TORCH_NCCL_HIGH_PRIORITY="1"), RULE)
    assert is_clean(job(GPU_MAX_HW_QUEUES="2"), RULE)
    assert values(found(job(TORCH_NCCL_HIGH_PRIORITY="0"), RULE))["hidden_pct"] == 0


def test_does_not_apply_to_other_gpus():
    _, checked = judged(job(gpu="NVIDIA H200"), RULE)
    assert len(checked.not_applicable) == 1
