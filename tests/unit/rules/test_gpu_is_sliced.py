"""A rank owns only a part of a GPU."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "gpu-is-sliced"
H200 = "NVIDIA H200"


def job(rank: int = 0, world_size: int = 1) -> TraceBuilder:
    return TraceBuilder(rank=rank, world_size=world_size).kernel("gemm", 0, 10, launch=0)


@pytest.mark.parametrize(
    ("env", "gpu", "sign"),
    [
        (
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
            {},
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        ),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, {}, "a MIG instance"),
        ({}, {"uuid": "MIG-1234"}, "a MIG instance"),
        ({}, {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, "a MIG instance"),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, {}, "NCCL_MULTI_RANK_GPU_ENABLE is set"),
        ({}, {"name": H200, "sm_count": 66}, "66 of 132 multiprocessors"),
    ],
)
def test_fires_for_each_sign(env, gpu, sign):
    finding = found(trace_of(job(), env=env, gpu=gpu), RULE)
    assert values(finding)["signs"] == sign
    assert finding.severity == "info"
    assert finding.sentence.startswith("Rank 0 owns only a part of a GPU")


def test_fires_for_two_ranks_on_one_gpu():
    finding = found(trace_of(job(0, 2), job(1, 2), gpu={"uuid": "GPU-1"}), RULE)
    assert values(finding)["signs"] == "2 ranks on one GPU"
    assert finding.where.ranks == (0, 1)


@pytest.mark.parametrize(
    ("env", "gpu"),
    [
        ({}, {"name": H200, "sm_count": 132, "uuid": "GPU-1"}),
        ({}, {"name": "A GPU of tomorrow", "sm_count": 7}),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, {}),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "half"}, {}),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "0", "CUDA_VISIBLE_DEVICES": "0"}, {}),
    ],
)
def test_silent_for_a_whole_gpu(env, gpu):
    assert is_clean(trace_of(job(), env=env, gpu=gpu), RULE)


def test_silent_where_no_process_names_its_gpu():
    assert is_clean(trace_of(job(0, 2), job(1, 2)), RULE)
