"""NCCL's buffers were made smaller than the messages need."""

from __future__ import annotations

import pytest

from diagnose.trace import Trace
from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "small-nccl-buffers"
MIB = 2**20


def job(buffer: str | None, *, small_us: float = 10) -> Trace:
    """An all-reduce of 2 MiB (1 Mi elements of 2 bytes) for 40 us and one of 2 KiB."""
    builder = TraceBuilder(rank=0, world_size=2)
    builder.collective("allreduce", 0, 40, elements=MIB, launch=0)
    builder.collective("allreduce", 50, small_us, elements=1024, launch=1)
    return trace_of(builder, env={} if buffer is None else {"NCCL_BUFFSIZE": buffer})


def test_fires_for_messages_beyond_the_buffer():
    evidence = values(found(job("65536"), RULE))
    assert (evidence["buffer_bytes"], evidence["largest_bytes"]) == (65536, 2 * MIB)
    # 40 of 50 us.
    assert evidence["large_pct"] == pytest.approx(80)


@pytest.mark.parametrize("buffer", [None, "4194304", "8388608", "3145728", "many"])
def test_silent_for_buffers_that_hold_the_messages(buffer):
    assert is_clean(job(buffer), RULE)


def test_silent_where_most_messages_are_small():
    assert is_clean(job("65536", small_us=60), RULE)


def test_is_not_judged_without_sizes():
    builder = TraceBuilder(rank=0, world_size=2)
    builder.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", 0, 40, launch=0)
    _, checked = judged(trace_of(builder, env={"NCCL_BUFFSIZE": "65536"}), RULE)
    assert [one.because for one in checked.not_checked] == [
        "the sizes of messages were not recorded"
    ]
