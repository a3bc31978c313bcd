"""Host memory is page-locked or freed in every step."""

from __future__ import annotations

import pytest

from tests.unit.rules.allocating_jobs import allocating
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "pinned-alloc-in-step"


@pytest.mark.parametrize("name", ["cudaHostAlloc", "cudaHostRegister", "cudaFreeHost"])
def test_fires_for_calls_in_each_step(name):
    finding = found(trace_of(allocating((name,), range(4))), RULE)
    evidence = values(finding)
    assert (evidence["num_calls"], evidence["calls"]) == (1, name)
    assert (evidence["host_ns"], evidence["longest_ns"]) == (15_000, 15_000)
    assert finding.gain.changes == ("no-allocator-calls",)


def test_silent_where_buffers_are_made_once():
    assert is_clean(trace_of(allocating(("cudaHostAlloc",), (0,))), RULE)
    assert is_clean(trace_of(allocating(("cudaHostAlloc",) * 2, (2,))), RULE)


def test_silent_for_memory_of_the_gpu():
    assert is_clean(trace_of(allocating(("cudaMalloc", "cudaFree"), range(4))), RULE)
