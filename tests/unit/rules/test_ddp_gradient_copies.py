"""DistributedDataParallel copies each gradient into and out of buckets."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "ddp-gradient-copies"
STEP, BACKWARD = 1000, 77
INTO = "torch::distributed::reducer::mul_out"
BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


def job(*marks: str, each: float = 4, other: str = "") -> TraceBuilder:
    """Three steps with four parameters: for each mark an operation of ``each`` us a parameter."""
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(3):
        begin = step * STEP
        builder.step(step, begin, STEP - 1)
        builder.operator("DistributedDataParallel.forward", begin, 5, category="user_annotation")
        builder.kernel("forward", begin, 400, launch=begin + 1)
        at = begin + 500
        for mark in marks:
            for parameter in range(4):
                launch = at - 400 + 10 * parameter
                builder.operator(mark, launch - 1, 8, thread=BACKWARD)
                builder.copy("DtoD", at, each, launch=launch, thread=BACKWARD)
                at += each
            at += 100
        if other:
            builder.operator(other, begin + 300, 8, thread=BACKWARD)
        builder.collective("allreduce", begin + 800, 50, launch=begin + 310, thread=BACKWARD)
        # At the time of a mark, but by another thread.
        builder.kernel("other", begin + 860, 40, launch=begin + 101)
        builder.kernel("adam", begin + 900, 100, launch=begin + 320)
    return builder


def test_fires_for_copies_both_ways():
    finding = found(trace_of(job(INTO, BACK)), RULE)
    evidence = values(finding)
    # Two ways of four copies of 4 us, in steps of 1000.
    assert (evidence["copies_ns"], evidence["back_ns"]) == (32_000, 16_000)
    assert evidence["copies_pct"] == pytest.approx(3.2)
    assert evidence["num_copies"] == 8
    assert finding.cost.per_step_ns == 16_000
    assert "gradient_as_bucket_view=True" in finding.advice[0].code
    assert "into buckets and back" in finding.sentence


def test_fires_for_views_that_are_lost_in_every_step():
    finding = found(trace_of(job(INTO)), RULE)
    evidence = values(finding)
    assert (evidence["copies_ns"], evidence["back_ns"]) == (16_000, 0)
    assert finding.cost.per_step_ns == 16_000
    assert "batched_grad_copy=True" in finding.advice[0].code


def test_silent_where_copies_are_short():
    # Eight of 1 us: 0.8 %.
    assert is_clean(trace_of(job(INTO, BACK, each=1)), RULE)


def test_silent_where_gradients_are_views():
    assert is_clean(trace_of(job(other="aten::div_")), RULE)


def test_does_not_apply_without_ddp():
    builder = TraceBuilder(rank=0, world_size=2)
    builder.operator("aten::mm", 0, 5)
    builder.kernel("gemm", 0, 100, launch=0).collective("allreduce", 100, 20, launch=1)
    findings, checked = judged(trace_of(builder), RULE)
    assert not findings
    assert len(checked.not_applicable) == 1
