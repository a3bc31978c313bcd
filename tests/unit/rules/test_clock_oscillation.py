"""The clock of the GPU swings while it is busy."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.trace import Trace
from tests.unit.rules.judging import found, is_clean, judged, values
from tests.unit.rules.sensed_jobs import sensed

RULE = "clock-oscillation"
CAP, IDLE = 0x4, 0x1


def job(*clocks: float, reason: int = CAP) -> Trace:
    """Clocks of 100 ms each during the work; 2000 MHz while idle before it."""
    clock = np.array([2000.0, 2000.0, *clocks])
    reasons = np.array([IDLE, IDLE] + [reason] * len(clocks), float)
    ms = 100 * np.arange(len(clock)) - 200
    return sensed(ms, sm_clock_mhz=clock, clocks_event_reasons=reasons)


def test_fires_for_three_swings():
    finding = found(job(1800, 1500, 1510, 1700, 1690, 1500, 1600), RULE)
    evidence = values(finding)
    # Half of 10 % of 2000 MHz is 100: down 300, up 200, down 200, up 100.
    assert evidence["num_swings"] == 4
    assert (evidence["clock_least_mhz"], evidence["clock_most_mhz"]) == (1500, 1800)
    assert evidence["range_pct"] == pytest.approx(15)
    assert evidence["reasons"] == "sw_power_cap"
    assert "the power limit is reached" in finding.sentence
    # 10 ms of compute a step, at a mean of 11300 / 7 of 2000 MHz.
    assert finding.cost.per_step_ns == pytest.approx(10e6 * (1 - 11300 / 7 / 2000))


def test_silent_where_the_clock_falls_once():
    assert is_clean(job(1800, 1700, 1600, 1500, 1500, 1500), RULE)


def test_silent_for_small_moves():
    assert is_clean(job(1800, 1650, 1790, 1660, 1800, 1650), RULE)


def test_silent_where_only_an_idle_gpu_lowers_its_clock():
    assert is_clean(job(1800, 1800, 1800, reason=0), RULE)
    _, checked = judged(job(1800, 1500, 1800, 1500, 1800, reason=IDLE), RULE)
    assert [one.because for one in checked.not_checked] == [
        "the clock was not recorded while the GPU was busy"
    ]
