"""Debugging switches were left on."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of

RULE = "debug-env-on"


def job() -> TraceBuilder:
    return TraceBuilder(rank=0, world_size=1).kernel("gemm", 0, 10, launch=0)


@pytest.mark.parametrize(
    ("name", "value", "confidence"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "high"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "medium"),
        ("NCCL_DEBUG", "TRACE", "medium"),
        ("HSA_ENABLE_INTERRUPT", "0", "medium"),
        ("AMD_SERIALIZE_KERNEL", "3", "high"),
    ],
)
def test_fires_for_a_switch_that_is_on(name, value, confidence):
    finding = found(trace_of(job(), env={name: value}), RULE)
    assert finding.sentence.startswith(f"{name}={value} is set on rank 0: ")
    assert finding.confidence == confidence
    assert finding.advice[0].code == f"unset {name}"
    assert finding.key == f"debug-env-on@{name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
        ("NCCL_DEBUG", "WARN"),
        ("HSA_ENABLE_INTERRUPT", "1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "false"),
        ("NCCL_ALGO", "Ring"),
    ],
)
def test_silent_where_it_is_off_or_harmless(name, value):
    assert is_clean(trace_of(job(), env={name: value}), RULE)


def test_each_switch_is_a_finding_of_its_own():
    env = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_CHECK_POINTERS": "1"}
    findings, _ = judged(trace_of(job(), env=env), RULE)
    assert {one.key for one in findings} == {f"debug-env-on@{name}" for name in env}


def test_is_not_judged_without_an_environment():
    _, checked = judged(trace_of(job()), RULE)
    assert [one.because for one in checked.not_checked] == [
        "the environment of the job is not known"
    ]
