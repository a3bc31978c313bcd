"""Communication occupies many multiprocessors."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "nccl-cta-share"


def job(beside_us: float, blocks: int) -> TraceBuilder:
    """Four GEMMs of 100 us alone, four beside an all-reduce of ``blocks`` blocks."""
    builder, at = TraceBuilder(rank=0, world_size=2), 1000.0
    builder.top["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]
    for number in range(8):
        length = beside_us if number >= 4 else 100
        shape = {"grid": [132, 1, 1], "block": [128, 1, 1]}
        builder.kernel("gemm", at, length, launch=number * 3, **shape)
        if number >= 4:
            shape = {"grid": [blocks, 1, 1], "block": [512, 1, 1]}
            builder.collective("allreduce", at, length, launch=number * 3 + 0.5, **shape)
        at += length
    return builder


def test_fires_for_many_blocks_that_slow_compute():
    finding = found(trace_of(job(150, 33)), RULE)
    evidence = values(finding)
    assert evidence["num_blocks"] == 33
    assert evidence["num_multiprocessors"] == 132
    assert evidence["multiprocessors_pct"] == 25
    assert evidence["slowdown_ratio"] == pytest.approx(1.5)
    assert finding.advice[0].code == "NCCL_MAX_CTAS=16"


def test_silent_for_few_blocks():
    # 13 of 132: 9.8 %.
    assert is_clean(trace_of(job(150, 13)), RULE)


def test_silent_where_nothing_is_slower():
    assert is_clean(trace_of(job(104, 33)), RULE)
