"""The GPU protects itself: heat, or the server's power, lowers its clocks."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.trace import Trace
from tests.unit.rules.judging import found, is_clean, values
from tests.unit.rules.sensed_jobs import sensed

RULE = "thermal-or-hw-slowdown"
CAP, HW, THERMAL, HW_THERMAL, BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80


def job(reason: int, rows: int) -> Trace:
    """Rows of 10 ms over a second of work, the last ``rows`` with the reason and half the clock."""
    held = np.arange(-10, 100) >= 100 - rows
    return sensed(
        np.arange(-100, 1000, 10),
        sm_clock_mhz=np.where(held, 1000.0, 2000.0),
        clocks_event_reasons=np.where(held, reason, 0).astype(float),
        temperature_c=np.where(held, 88.0, 60.0),
    )


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (HW, "hw_slowdown"),
        (HW_THERMAL, "hw_thermal_slowdown"),
        (BRAKE, "hw_power_brake_slowdown"),
        (THERMAL, "sw_thermal_slowdown"),
    ],
)
def test_fires_while_the_gpu_computes(reason, name):
    finding = found(job(reason, 50), RULE)
    evidence = values(finding)
    assert evidence["reason"] == name
    # The last row has no next one: 49 of 100 rows.
    assert evidence["held_pct"] == pytest.approx(49)
    assert (evidence["clock_mhz"], evidence["reference_mhz"]) == (1000, 2000)
    assert evidence["temperature_c"] == 88
    # Half the clock for 49 % of a step of 10 ms.
    assert finding.cost.per_step_ns == pytest.approx(10e6 * 0.49 / 2)
    assert finding.gain.changes == ("higher-clocks:mhz=2000",)
    assert finding.key.endswith(name)


def test_silent_for_a_single_row_of_the_hardware():
    assert is_clean(job(HW, 1), RULE)


def test_fires_for_a_short_spell_of_the_hardware_but_is_silent_for_one_of_the_driver():
    assert values(found(job(HW, 3), RULE))["reason"] == "hw_slowdown"
    assert is_clean(job(THERMAL, 3), RULE)


def test_silent_for_the_power_limit():
    assert is_clean(job(CAP, 50), RULE)
