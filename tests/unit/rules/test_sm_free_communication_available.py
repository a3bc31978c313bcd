"""The hardware could move data without the SMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from diagnose.trace import Trace
from tests.builder import COLLECTIVE_KERNELS, TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "sm-free-communication-available"
SWITCH = [{"link": number, "peer": "switch"} for number in range(18)]
GPU: Mapping[str, Any] = {"sm_count": 132, "compute_capability": "9.0", "nvlinks": SWITCH}


def job(
    beside_us: float = 130,
    *,
    blocks: int = 24,
    gpus: tuple[Mapping[str, Any], ...] = (GPU, GPU),
    hosts: str = "aa",
    nccl: str = "2.28.9",
    env: Mapping[str, str] | None = None,
    name: str = "",
) -> Trace:
    """Two ranks: five GEMMs of 100 us alone, five beside an all-gather just as long."""
    builders = []
    for rank in range(2):
        builder, at = TraceBuilder(rank=rank, world_size=2), 1000.0
        for number in range(10):
            length = beside_us if number >= 5 else 100
            shape = {"grid": [132, 1, 1], "block": [128, 1, 1]}
            builder.kernel("gemm", at, length, launch=number * 6, **shape)
            if number >= 5:
                shape = {"grid": [blocks, 1, 1], "block": [512, 1, 1]}
                launch = number * 6 + 2.5
                builder.collective("_allgather_base", at, length, launch=launch, **shape)
            at += length
        for event in builder.events:
            if name and event["name"] == COLLECTIVE_KERNELS["_allgather_base"]:
                event["name"] = name
        builders.append(builder)
    made = trace_of(*builders)
    placed = [
        replace(source, host=host, environment={"gpu": gpu, "nccl_loaded": nccl, "env": env or {}})
        for source, host, gpu in zip(made.sources, hosts, gpus, strict=True)
    ]
    return replace(made, sources=tuple(placed))


def test_fires_as_a_hint_behind_a_switch():
    finding = found(job(), RULE)
    evidence = values(finding)
    assert finding.severity == "hint"
    # 5 * 130 us of a window of 500 + 650; 5 * 30 us are lost.
    assert evidence["transfer_ns"] == 650_000
    assert evidence["transfer_pct"] == pytest.approx(100 * 650 / 1150)
    assert evidence["cost_ns"] == pytest.approx(150_000)
    assert evidence["multiprocessors_pct"] == pytest.approx(100 * 24 / 132)


def test_silent_for_few_blocks_or_nothing_slowed():
    # 13 of 132: 9.8 %.
    assert is_clean(job(blocks=13), RULE)
    assert is_clean(job(beside_us=100), RULE)


@pytest.mark.parametrize(
    "other",
    [
        {**GPU, "nvlinks": []},
        {**GPU, "nvlinks": [{"link": 0, "peer": "gpu"}]},
        {**GPU, "compute_capability": "8.0"},
    ],
)
def test_silent_where_one_rank_could_not(other):
    assert is_clean(job(gpus=(GPU, other)), RULE)


def test_silent_between_machines_and_for_ranks_that_share_a_gpu():
    assert is_clean(job(hosts="ab"), RULE)
    shared = {**GPU, "uuid": "GPU-1"}
    assert is_clean(job(gpus=(shared, shared)), RULE)


def test_silent_with_an_older_nccl():
    assert is_clean(job(nccl="2.27.7"), RULE)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: True"),
        ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1"),
        ("NCCL_CTA_POLICY", "ZERO"),
    ],
)
def test_silent_where_memory_cannot_be_or_is_registered(variable, value):
    assert is_clean(job(env={variable: value}), RULE)


def test_silent_where_kernels_use_registered_memory_already():
    assert is_clean(job(name="ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)"), RULE)
    assert is_clean(job(name="ncclDevKernel_AllGather_NVLS_SIMPLE()"), RULE)


def test_is_not_judged_where_links_were_not_noted():
    bare = {"sm_count": 132, "compute_capability": "9.0"}
    _, checked = judged(job(gpus=(bare, bare)), RULE)
    assert [one.because for one in checked.not_checked] == [
        "whether a switch connects the GPUs was not noted"
    ]
