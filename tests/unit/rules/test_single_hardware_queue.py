"""Streams take turns though nothing orders them."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values

RULE = "single-hardware-queue"
ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def turns(*, waits: bool = False, overlap_us: float = 0) -> TraceBuilder:
    """GEMM and all-reduce of 100 us in turn, three times, all launched at the beginning."""
    builder = TraceBuilder(rank=0, world_size=2)
    for number in range(3):
        at = number * 200 + 100
        if waits:
            builder.call("cudaStreamWaitEvent", number * 10 - 1, 0.5)
        builder.kernel("gemm", at, 100, launch=number * 10)
        if waits:
            builder.call("cudaStreamWaitEvent", number * 10 + 4, 0.5)
        builder.collective("allreduce", at + 100 - overlap_us, 100, launch=number * 10 + 5)
    return builder


def test_fires_with_one_queue():
    finding = found(trace_of(turns(), env=ONE), RULE)
    evidence = values(finding)
    # Each all-reduce waits for the GEMM before it, each further GEMM for the all-reduce.
    assert evidence["num_pairs"] == 5
    assert evidence["exposed_communication_ns"] == 300_000
    assert evidence["exposed_pct"] == 50
    assert finding.confidence == "high"
    assert finding.advice[0].code == "unset CUDA_DEVICE_MAX_CONNECTIONS"


def test_fires_as_a_hint_where_the_environment_is_not_known():
    # A wait of another kind, launched after everything: waits were recorded, and none fits.
    builder = turns()
    builder.call("cudaStreamWaitEvent", 90, 0.5)
    finding = found(trace_of(builder), RULE)
    assert (finding.confidence, finding.severity) == ("low", "hint")


def test_silent_where_neither_environment_nor_waits_are_known():
    assert is_clean(trace_of(turns()), RULE)


def test_silent_where_spans_of_waits_order_the_streams():
    builder = turns()
    for number in range(3):
        at = number * 200 + 100
        builder.sync("Stream Wait Event", at + 20, 80, stream=20)
        builder.sync("Stream Wait Event", at - 80, 80, stream=7)
    assert is_clean(trace_of(builder, env=ONE), RULE)


def test_silent_where_waits_order_the_streams():
    assert is_clean(trace_of(turns(waits=True), env=ONE), RULE)


def test_silent_where_streams_overlap():
    # 3 * 10 of 300 us hidden: 10 %.
    assert is_clean(trace_of(turns(overlap_us=10), env=ONE), RULE)


@pytest.mark.parametrize("env", [{"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {"NCCL_DEBUG": "WARN"}])
def test_silent_where_there_are_queues_enough(env):
    assert is_clean(trace_of(turns(), env=env), RULE)
