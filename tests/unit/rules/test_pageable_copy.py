"""Input is copied from pageable host memory."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "pageable-copy"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def job(name: str, length: float, num_bytes: int) -> TraceBuilder:
    """A copy, then a kernel that fills up to 1000 us."""
    builder = TraceBuilder(rank=0, world_size=1)
    builder.gpu("gpu_memcpy", name, 0, length, launch=-5, bytes=num_bytes)
    return builder.kernel("gemm", length, 1000 - length, launch=-2)


def test_fires_for_pageable_memory():
    finding = found(trace_of(job(PAGEABLE, 200, 1_200_000)), RULE)
    evidence = values(finding)
    assert evidence["copy_ns"] == 200_000
    assert evidence["copy_pct"] == 20
    assert evidence["alone_ns"] == 200_000
    # 1.2e6 bytes in 200e3 ns.
    assert evidence["rate_gb_per_s"] == pytest.approx(6.0)
    assert "pin_memory=True" in finding.advice[0].code


def test_fires_for_many_bytes_that_take_little_of_the_step():
    # 0.5 % of the step, but 2 MiB.
    assert found(trace_of(job(PAGEABLE, 5, 2 << 20)), RULE)


@pytest.mark.parametrize(
    ("name", "length", "num_bytes"),
    [
        ("Memcpy HtoD (Pinned -> Device)", 200, 1_200_000),
        ("Memcpy DtoH (Device -> Pageable)", 200, 1_200_000),
        (PAGEABLE, 5, 4096),
    ],
)
def test_silent_for_other_memory_and_small_copies(name, length, num_bytes):
    assert is_clean(trace_of(job(name, length, num_bytes)), RULE)
