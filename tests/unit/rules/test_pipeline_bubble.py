"""Pipeline stages wait longer for each other than the schedule asks for."""

from __future__ import annotations

import pytest

from tests.builder import COLLECTIVE_KERNELS, TraceBuilder, metadata
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "pipeline-bubble"
STEP, BATCHES = 1000, 8


def exchange(builder: TraceBuilder, name: str, start: float, us: float, peer: int | None) -> None:
    """A send to or a receive from ``peer``."""
    this, other = ("Src Rank", "Dst Rank") if name == "send" else ("Dst Rank", "Src Rank")
    told = {} if peer is None else {this: builder.rank, other: peer}
    rest = metadata(name) | told
    builder.gpu(
        "kernel", COLLECTIVE_KERNELS["send"], start, us, stream=20, launch=start - 400, **rest
    )


def first(wait: float, tensors: int = 1) -> TraceBuilder:
    """Stage 0: eight forward passes of 50 us, each sent in 5 us; then it waits; then backward."""
    builder = TraceBuilder(rank=0, world_size=2, zero_us=10_000)
    for step in range(3):
        at = float(step * STEP)
        builder.step(step, at - 400, STEP)
        for _ in range(BATCHES):
            builder.kernel("forward", at, 50, launch=at - 400)
            for tensor in range(tensors):
                part = 5 / tensors
                exchange(builder, "send", at + 50 + tensor * part, part, 1)
            at += 55
        exchange(builder, "recv", at, wait, 1)
        builder.kernel("backward", at + wait, 560 - wait, launch=at - 400)
    return builder


def last(head: float = 60, wait_first: bool = True, peer: int | None = 0) -> TraceBuilder:
    """Stage 1: waits ``head`` us for the first input, computes, and sends a gradient in 10 us."""
    builder = TraceBuilder(rank=1, world_size=2, zero_us=10_000)
    for step in range(3):
        at = float(step * STEP)
        builder.step(step, at - 400, STEP)
        if not wait_first:
            builder.kernel("early", at, 10, launch=at - 400)
            at += 10
        exchange(builder, "recv", at, head, peer)
        rest = (step + 1) * STEP - 10 - at - head
        builder.kernel("compute", at + head, rest, launch=at - 400)
        exchange(builder, "send", at + head + rest, 10, peer)
    return builder


def test_fires_for_a_bubble_beyond_that_of_the_schedule():
    finding = found(trace_of(first(300), last()), RULE)
    evidence = values(finding)
    # Stage 0 waits 8 x 5 + 300 us and works 660, stage 1 waits 60 + 10 and works 930.
    assert evidence["bubble_ns"] == 205_000
    # One of two stages less, over eight batches, of 795 us.
    assert evidence["ideal_ns"] == pytest.approx(795_000 / 8)
    assert (evidence["num_stages"], evidence["num_batches"]) == (2, 8)
    assert evidence["num_pipelines"] == 1
    assert evidence["excess_pct"] == pytest.approx(10.5625)
    assert evidence["growth_pct"] == pytest.approx(6)
    assert evidence["work_ratio"] == pytest.approx(930 / 795)
    assert finding.cost.per_step_ns == pytest.approx(105_625)
    assert finding.advice[0].text.startswith("Move layers")


def test_fires_alike_where_a_batch_is_sent_as_two_tensors():
    assert values(found(trace_of(first(300, tensors=2), last()), RULE))["num_batches"] == 8


def test_silent_for_the_bubble_of_the_schedule():
    # Waits of 140 and 70 us, work of 860 and 930: the ideal is 895 / 8.
    assert is_clean(trace_of(first(100), last()), RULE)


def test_silent_where_ranks_begin_to_compute_together():
    assert is_clean(trace_of(first(300), last(wait_first=False)), RULE)


def test_is_not_judged_where_a_stage_is_missing():
    other = TraceBuilder(rank=2, world_size=3, zero_us=10_000)
    for step in range(3):
        other.step(step, step * STEP - 400, STEP)
        other.kernel("gemm", step * STEP, 900, launch=step * STEP - 400)
    findings, checked = judged(trace_of(first(300), other), RULE)
    assert not findings
    assert checked.not_checked[0].because == "of 2 stages only 1 were recorded"


def test_is_not_judged_where_peers_are_unknown():
    builders = [TraceBuilder(rank=rank, world_size=2) for rank in range(2)]
    for builder in builders:
        builder.operator("c10d::recv_", 0, 5)
        exchange(builder, "recv", 500, 20, None)
        builder.kernel("gemm", 520, 100, launch=10)
    findings, checked = judged(trace_of(*builders), RULE)
    assert not findings
    assert checked.not_checked[0].because == "sends and receives do not say with which rank"


def test_does_not_apply_without_point_to_point_communication():
    builders = [TraceBuilder(rank=rank, world_size=2) for rank in range(2)]
    for builder in builders:
        builder.kernel("gemm", 0, 100, launch=0).collective("allreduce", 100, 20, launch=1)
    findings, checked = judged(trace_of(*builders), RULE)
    assert not findings
    assert len(checked.not_applicable) == 1
