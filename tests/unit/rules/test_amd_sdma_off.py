"""Copies run on compute units because the DMA engines are switched off."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of

RULE = "amd-sdma-off"
AMD = {"name": "AMD Instinct MI300X"}


def job() -> TraceBuilder:
    return TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 10, launch=0)


@pytest.mark.parametrize("name", ["HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA"])
def test_fires_where_it_is_off(name):
    finding = found(trace_of(job(), env={name: "0"}, gpu=AMD), RULE)
    assert finding.sentence.startswith(f"{name}=0 is set on rank 0: copies")
    assert finding.advice[0].code == f"unset {name}"
    assert finding.key.endswith(name)


def test_silent_where_it_is_on():
    assert is_clean(trace_of(job(), env={"HSA_ENABLE_SDMA": "1"}, gpu=AMD), RULE)
    assert is_clean(trace_of(job(), env={}, gpu=AMD), RULE)


def test_does_not_apply_to_other_gpus():
    trace = trace_of(job(), env={"HSA_ENABLE_SDMA": "0"}, gpu={"name": "NVIDIA H200"})
    findings, checked = judged(trace, RULE)
    assert not findings
    assert len(checked.not_applicable) == 1
