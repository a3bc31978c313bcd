"""The names of the bits, against NVML's own constants."""

from __future__ import annotations

import math

import pynvml
import pytest

from diagnose.telemetry import CLOCK_REASONS, clock_reason_names, clock_reasons

OFFICIAL = {
    "gpu_idle": "GpuIdle",
    "applications_clocks_setting": "ApplicationsClocksSetting",
    "sw_power_cap": "SwPowerCap",
    "hw_slowdown": "HwSlowdown",
    "sync_boost": "SyncBoost",
    "sw_thermal_slowdown": "SwThermalSlowdown",
    "hw_thermal_slowdown": "HwThermalSlowdown",
    "hw_power_brake_slowdown": "HwPowerBrakeSlowdown",
    "display_clock_setting": "DisplayClockSetting",
}


def test_bits_are_those_of_nvml():
    named = {reason.name: reason.bit for reason in CLOCK_REASONS}
    for name, official in OFFICIAL.items():
        assert named.pop(name) == getattr(pynvml, f"nvmlClocksThrottleReason{official}")
    assert named == {"board_limit": 0x200, "reliability": 0x400}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0, ()),
        (0x1, ("gpu_idle",)),
        (4.0, ("sw_power_cap",)),  # tables hold masks as floats
        (0x48, ("hw_slowdown", "hw_thermal_slowdown")),
        (0x4 + 0x8000, ("sw_power_cap", "unknown_0x8000")),
        (None, ()),
        (math.nan, ()),
        (math.inf, ()),
        (-1, ()),
        (2**64, ()),
    ],
)
def test_decoding(mask, expected):
    assert clock_reason_names(mask) == expected


def test_what_slows_a_job():
    assert [r.name for r in clock_reasons(0x1 | 0x2 | 0x4 | 0x80) if r.slows] == [
        "sw_power_cap",
        "hw_power_brake_slowdown",
    ]
