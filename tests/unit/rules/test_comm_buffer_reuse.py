"""A buffer is given to communication while another transfer still uses it."""

from __future__ import annotations

from typing import Any

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "comm-buffer-reuse"


def gather(builder: TraceBuilder, at: float, given: str, made: str, **rest: Any) -> None:
    """An all-gather of 100 us."""
    told = {"Input Tensors start": given, "Output Tensors start": made}
    builder.collective("_allgather_base", at, 100, launch=at / 100, **told, **rest)


def job(
    start: float = 70,
    *,
    given: str = "[[3000]]",
    made: str = "[[2000]]",
    stream: int = 21,
    call: tuple[int, int] = (5, 6),
) -> TraceBuilder:
    """From 0 us on 1000 to 2000 on stream 20, and then a second one on another stream."""
    builder = TraceBuilder(rank=0, world_size=2)
    gather(builder, 0, "[[1000]]", "[[2000]]", stream=20, parent=call[0])
    gather(builder, start, given, made, stream=stream, parent=call[1])
    builder.kernel("gemm", 300, 100, launch=3)
    return builder


def test_fires_for_one_output_of_two_transfers():
    finding = found(trace_of(job()), RULE)
    # From 70 to 100 us.
    assert values(finding) == {"num_reused": 1, "longest_ns": 30_000}
    assert finding.severity == "hint"
    assert finding.where.streams == (20, 21)
    assert finding.gain.basis == "none"


def test_fires_where_one_reads_what_the_other_writes():
    assert values(found(trace_of(job(given="[[8, 2000]]", made="[[9]]")), RULE))["num_reused"] == 1
    assert values(found(trace_of(job(given="[[9]]", made="[[1000]]")), RULE))["num_reused"] == 1


def test_silent_where_both_only_read():
    assert is_clean(trace_of(job(given="[[1000]]", made="[[9]]")), RULE)


def test_silent_where_they_follow_each_other():
    assert is_clean(trace_of(job(start=100)), RULE)
    assert is_clean(trace_of(job(stream=20)), RULE)


def test_silent_for_parts_of_one_call_and_empty_tensors():
    assert is_clean(trace_of(job(call=(5, 5))), RULE)
    assert is_clean(trace_of(job(given="[[0]]", made="[[0]]")), RULE)


def test_is_not_judged_without_addresses():
    builder = TraceBuilder(rank=0, world_size=2).kernel("gemm", 0, 100, launch=0)
    builder.collective("allreduce", 100, 20, launch=1)
    findings, checked = judged(trace_of(builder), RULE)
    assert not findings
    (one,) = checked.not_checked
    assert one.because == "the addresses of buffers are not in the trace"
    assert "--check-sync" in one.remedy
