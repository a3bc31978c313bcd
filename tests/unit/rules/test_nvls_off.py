"""NVLink SHARP is switched off."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of

RULE = "nvls-off"
OFF = {"NCCL_NVLS_ENABLE": "0"}
HOPPER = {"compute_capability": "9.0", "nvlinks": [{"link": 0, "peer": "switch"}]}


def trace(env, gpu):
    builder = TraceBuilder(rank=0, world_size=2).kernel("gemm", 0, 10, launch=0)
    return trace_of(builder.collective("allreduce", 10, 10, launch=3), env=env, gpu=gpu)


@pytest.mark.parametrize("gpu", [HOPPER, {"compute_capability": "10.0"}])
def test_fires_where_it_is_off_on_a_gpu_that_could(gpu):
    finding = found(trace(OFF, gpu), RULE)
    assert finding.severity == "hint"
    assert finding.advice[0].code == "unset NCCL_NVLS_ENABLE"


@pytest.mark.parametrize(
    ("env", "gpu"),
    [
        ({}, HOPPER),
        ({"NCCL_NVLS_ENABLE": "2"}, HOPPER),
        (OFF, {"compute_capability": "8.0"}),
        (OFF, {"compute_capability": "9.0", "nvlinks": [{"link": 0, "peer": "GPU"}]}),
        (OFF, {}),
    ],
)
def test_silent_where_it_is_not_off_or_there_is_none(env, gpu):
    assert is_clean(trace(env, gpu), RULE)
