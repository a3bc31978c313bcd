"""Power peaks above the limit."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.trace import Trace
from tests.unit.rules.judging import found, is_clean, judged, values
from tests.unit.rules.sensed_jobs import sensed

RULE = "over-tdp-peaks"


def job(*readings: float) -> Trace:
    """A limit of 700 W; each reading of the sensor stands in four rows."""
    power = np.repeat(readings, 4)
    ms = 25 * np.arange(len(power))
    limit = np.full(len(power), 700.0)
    return sensed(ms, power_instant_w=power, power_limit_w=limit)


def test_fires_for_two_readings_over_105_percent():
    finding = found(job(600, 790, 610, 840, 600, 720), RULE)
    evidence = values(finding)
    # 790 and 840 W are over 735 W, 720 W is not; a reading counts once, not four times.
    assert evidence["num_readings"] == 2
    assert (evidence["peak_w"], evidence["limit_w"]) == (840, 700)
    assert evidence["peak_pct"] == pytest.approx(120)
    assert (finding.severity, finding.gain.basis) == ("info", "none")


def test_silent_for_one_reading():
    assert is_clean(job(600, 840, 610, 620, 600), RULE)


def test_silent_below_105_percent():
    assert is_clean(job(600, 730, 610, 734, 600), RULE)


def test_is_not_judged_where_only_a_mean_was_recorded():
    ms = 25 * np.arange(8)
    trace = sensed(ms, power_avg_w=np.full(8, 900.0), power_limit_w=np.full(8, 700.0))
    _, checked = judged(trace, RULE)
    assert [one.because for one in checked.not_checked] == [
        "neither instant power nor a limit was recorded"
    ]
