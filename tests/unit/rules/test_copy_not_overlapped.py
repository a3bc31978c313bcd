"""Copies of input sit in the queue of the compute."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "copy-not-overlapped"


def job(*, stream: int = 7, begin: float = 0, num_bytes: int = 3_000_000) -> TraceBuilder:
    """A copy of 100 us, and a kernel of 900 us that begins at 100."""
    builder = TraceBuilder(rank=0, world_size=1)
    builder.copy("HtoD", begin, 100, stream=stream, launch=-5, bytes=num_bytes)
    return builder.kernel("gemm", 100, 900, launch=-2)


def test_fires_on_the_stream_of_the_compute():
    finding = found(trace_of(job()), RULE)
    evidence = values(finding)
    assert evidence["alone_ns"] == 100_000
    assert evidence["alone_pct"] == 10
    assert evidence["rate_gb_per_s"] == pytest.approx(30.0)
    assert finding.where.streams == (7,)


def test_silent_on_a_stream_of_its_own():
    assert is_clean(trace_of(job(stream=9, begin=300)), RULE)
    assert is_clean(trace_of(job(stream=9)), RULE)


def test_silent_for_metadata():
    # Below 64 KiB each.
    assert is_clean(trace_of(job(num_bytes=65_535)), RULE)


def test_silent_for_pageable_memory_which_is_another_rule():
    builder = TraceBuilder(rank=0, world_size=1)
    name = "Memcpy HtoD (Pageable -> Device)"
    builder.gpu("gpu_memcpy", name, 0, 100, launch=-5, bytes=3_000_000)
    assert is_clean(trace_of(builder.kernel("gemm", 100, 900, launch=-2)), RULE)
