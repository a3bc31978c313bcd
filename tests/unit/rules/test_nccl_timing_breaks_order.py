"""Timing events undo the order that one hardware queue gives."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of

RULE = "nccl-timing-breaks-order"
ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def job() -> TraceBuilder:
    builder = TraceBuilder(rank=0, world_size=2).kernel("gemm", 0, 100, launch=0)
    return builder.collective("allreduce", 100, 10, launch=1)


@pytest.mark.parametrize(
    "name", ["TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING"]
)
def test_fires_where_both_are_set(name):
    finding = found(trace_of(job(), env=ONE | {name: "1"}), RULE)
    assert finding.sentence.startswith(f"{name}=1 is set on rank 0 together with")
    assert finding.advice[0].code == f"unset {name}"
    assert finding.key == f"{RULE}@{name}"


@pytest.mark.parametrize(
    "env",
    [
        ONE,
        ONE | {"TORCH_NCCL_ENABLE_TIMING": "0"},
        {"TORCH_NCCL_ENABLE_TIMING": "1"},
        {"TORCH_NCCL_ENABLE_TIMING": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"},
    ],
)
def test_silent_where_one_is_missing(env):
    assert is_clean(trace_of(job(), env=env), RULE)
