"""Communication that nothing hides."""

from __future__ import annotations

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.test_straggler_rank import ranks

RULE = "exposed-communication"


def one_rank(begin: float) -> TraceBuilder:
    """Compute of 100 us; an all-reduce of 50 us begins at ``begin``."""
    builder = TraceBuilder(rank=0, world_size=2).kernel("gemm", 0, 100, launch=0)
    return builder.collective("allreduce", begin, 50, launch=1)


def test_fires_for_what_runs_alone():
    finding = found(trace_of(one_rank(90)), RULE)
    evidence = values(finding)
    # 10 us beside compute, 40 alone, in a window of 140.
    assert evidence["exposed_communication_ns"] == 40_000
    assert round(evidence["exposed_pct"], 2) == 28.57
    assert evidence["hidden_pct"] == 20
    assert "waiting_ns" not in evidence
    assert finding.sentence.startswith("At most 40.0 us of communication in the window")


def test_silent_where_compute_runs_beside_it():
    assert is_clean(trace_of(one_rank(50)), RULE)


def test_silent_where_most_is_hidden():
    # 36 of 50 us hidden: 72 %; exposed 14 of 114 us.
    assert is_clean(trace_of(one_rank(64)), RULE)


def test_waiting_for_a_late_rank_is_taken_out():
    # The shortest kernel is 100 us: the transfer; the others wait 400 and 390 us more.
    findings, _ = judged(trace_of(*ranks(500, 510, 900)), RULE)
    evidence = values(findings[0])
    assert round(evidence["exposed_communication_ns"]) == 100_000
    assert round(evidence["waiting_ns"]) in (0, 390_000, 400_000)
    assert not findings[0].sentence.startswith("At most")


def test_silent_where_all_is_waiting():
    assert is_clean(trace_of(*ranks(500, 510, 960)), RULE)


def test_does_not_apply_without_communication():
    _, checked = judged(trace_of(TraceBuilder(rank=0).kernel("gemm", 0, 100, launch=0)), RULE)
    assert checked.not_applicable == (RULE,)
