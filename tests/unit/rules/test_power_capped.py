"""The power limit holds the clocks down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.trace import Trace
from tests.power_tables import builder, samples
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values

RULE = "power-capped"
CAP, IDLE = 0x4, 0x1


def job(
    *,
    clock: float = 1600,
    power: float = 690,
    reason: int = CAP,
    reduces: bool = False,
    after_ms: int = 0,
) -> Trace:
    """100 steps of 10 ms that compute throughout, sampled every 10 ms; the highest clock, 2000
    MHz, is seen before them."""
    one = builder()
    for step in range(100):
        at = step * 10_000
        one.step(step, at, 9_999)
        one.kernel("gemm", at, 10_000, launch=at)
        if reduces:
            one.kernel("ncclDevKernel_AllReduce", at, 10, stream=20, launch=at)
    ms = np.arange(-200, 1000 + after_ms, 10)
    busy = (ms >= 0) & (ms < 1000)
    # A new value of the sensor every 100 ms: a watt more and less in turn.
    watts = np.where(busy, power + ms // 100 % 2, 100.0)
    telemetry = samples(
        ms=ms,
        power_instant_w=watts,
        energy_j=watts.cumsum() * 0.01,
        sm_clock_mhz=np.where(busy, clock, 2000.0),
        clocks_event_reasons=np.where(busy, reason, IDLE),
        power_limit_w=np.full(len(ms), 700.0),
    )
    return replace(trace_of(one), samples=telemetry)


def test_fires_at_the_limit_with_a_lower_clock():
    finding = found(job(), RULE)
    evidence = values(finding)
    assert evidence["clock_mhz"] == pytest.approx(1600)
    assert evidence["reference_mhz"] == 2000
    assert evidence["clock_loss_pct"] == pytest.approx(20)
    assert evidence["limit_w"] == 700
    assert evidence["power_w"] == pytest.approx(690, rel=0.02)
    # 10 ms of compute a step, a fifth slower.
    assert finding.cost.per_step_ns == pytest.approx(2e6)
    assert finding.severity == "info"


def test_names_the_power_that_it_was_held_against():
    # A mean needs the energy from one reading before the window to one after it.
    labels = [
        one.label
        for after_ms in (0, 300)
        for one in found(job(after_ms=after_ms), RULE).evidence
        if one.key == "power_w"
    ]
    assert labels == ["highest reading of power", "mean power"]


def test_a_job_without_communication_is_not_told_to_tune_nccl():
    codes = [[fix.code for fix in found(job(reduces=one), RULE).advice] for one in (False, True)]
    assert ["NCCL_MAX_CTAS=8" in one for one in codes] == [False, True]


def test_silent_where_the_clock_is_near_its_highest():
    assert is_clean(job(clock=1950), RULE)


def test_silent_where_power_is_below_the_limit():
    assert is_clean(job(power=500), RULE)


def test_silent_for_another_reason():
    assert is_clean(job(reason=0x20), RULE)


def test_is_not_judged_without_telemetry():
    _, checked = judged(trace_of(builder().kernel("gemm", 0, 10, launch=0)), RULE)
    assert [one.because for one in checked.not_checked] == ["no telemetry"]
