"""A step stops to save a checkpoint."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "checkpoint-stall"
MIB = 2**20


def job(*lengths: float, copied: int = 100 * MIB, long: float = 1000) -> TraceBuilder:
    """Steps of so many us: half of each computes; those of ``long`` us copy to the host."""
    builder, at = TraceBuilder(rank=0, world_size=1), 0.0
    for number, length in enumerate(lengths):
        builder.step(number, at, length)
        builder.kernel("gemm", at + 1, length / 2, launch=at)
        bytes_ = copied if length >= long else MIB
        builder.copy("DtoH", at + length - 10, 10, launch=at + 1, bytes=bytes_)
        at += length
    return builder


def test_fires_for_a_long_step_that_copies():
    finding = found(trace_of(job(100, 100, 100, 1000, 100, 100)), RULE)
    evidence = values(finding)
    # Timed: 100, 100, 1000, 100, 100 us; 900 us of 1400 are lost, a fifth of them a step.
    assert (evidence["longest_step_ns"], evidence["usual_step_ns"]) == (1_000_000, 100_000)
    assert evidence["step_ratio"] == 10
    assert evidence["copied_bytes"] == 99 * MIB
    assert evidence["lost_pct"] == pytest.approx(100 * 900 / 1400)
    assert finding.cost.per_step_ns == 180_000
    assert finding.where.steps == ("ProfilerStep#3",)


def test_silent_for_a_long_step_that_copies_as_always():
    assert is_clean(trace_of(job(100, 100, 100, 1000, 100, 100, copied=MIB)), RULE)


def test_silent_for_a_step_a_little_longer():
    assert is_clean(trace_of(job(100, 100, 100, 400, 100, 100, long=400)), RULE)


def test_is_not_judged_with_few_steps():
    _, checked = judged(trace_of(job(100, 100, 1000)), RULE)
    assert [one.because for one in checked.not_checked] == [
        "2 steps with a time: too few to say what is usual"
    ]
