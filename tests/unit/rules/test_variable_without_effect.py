"""An environment variable is set that nothing reads."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of

RULE = "variable-without-effect"


def job() -> TraceBuilder:
    return TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 10, launch=0)


@pytest.mark.parametrize(
    "name", ["HSA_OVERSUBSCRIPTION", "NCCL_HIGH_PRIORITY", "RCCL_MSCCL_ENABLE"]
)
def test_fires_for_what_nothing_reads(name):
    finding = found(trace_of(job(), env={name: "1"}), RULE)
    assert finding.sentence.startswith(f"{name}=1 is set and has no effect.")
    assert finding.severity == "info"
    assert finding.gain.basis == "none"
    assert finding.key == f"variable-without-effect@{name}"


def test_silent_for_what_is_read_or_not_known():
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_BLOCKING_WAIT": "1", "NCCL_MADE_UP": "1"}
    assert is_clean(trace_of(job(), env=env), RULE)
