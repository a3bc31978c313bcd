"""A step stops to save a checkpoint."""

from __future__ import annotations

import pytest

from diagnose import engine
from diagnose.rules._judge import Judging
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


def waiting(*at_steps: int) -> TraceBuilder:
    """Steps of 100 us, the fourth of 600: in these the host waits, and launches late."""
    builder, at = TraceBuilder(rank=0, world_size=1), 0.0
    for number, length in enumerate((100, 100, 100, 600, 100, 100)):
        builder.step(number, at, length)
        builder.kernel("gemm", at + 1, 20, launch=at)
        late = length - 20 if number in at_steps else 22
        if number in at_steps:
            builder.operator("aten::item", at + 5, late - 5)
            builder.call("cudaStreamSynchronize", at + 6, late - 8)
        builder.kernel("gemm", at + late, length - late - 10, launch=at + late - 1)
        bytes_ = 100 * MIB if length == 600 else MIB
        builder.copy("DtoH", at + length - 10, 10, launch=at + late - 0.5, bytes=bytes_)
        at += length
    return builder


def rules_on_top(builder: TraceBuilder) -> list[str]:
    judging = Judging(select=(RULE, "host-sync"))
    diagnosis = engine.diagnose(trace_of(builder), {}, judging=judging)
    assert {one.rule for top in diagnosis.findings for one in top.everything()} == {
        RULE,
        "host-sync",
    }
    return sorted(one.rule for one in diagnosis.findings)


def test_fires_and_explains_waits_only_where_most_of_them_are_its_own():
    """In the save the GPU is idle for 559 us after a wait, elsewhere for 59 us in each of four."""
    assert rules_on_top(waiting(3)) == [RULE]
    assert rules_on_top(waiting(1, 2, 3, 4, 5)) == [RULE, "host-sync"]


def test_silent_for_a_long_step_that_copies_as_always():
    assert is_clean(trace_of(job(100, 100, 100, 1000, 100, 100, copied=MIB)), RULE)


def test_silent_for_a_step_a_little_longer():
    assert is_clean(trace_of(job(100, 100, 100, 400, 100, 100, long=400)), RULE)


def test_is_not_judged_with_few_steps():
    _, checked = judged(trace_of(job(100, 100, 1000)), RULE)
    assert [one.because for one in checked.not_checked] == [
        "2 steps with a time: too few to say what is usual"
    ]
