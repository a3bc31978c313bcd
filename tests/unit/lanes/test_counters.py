"""Telemetry on the axis: which sensors, where, and several readings in a pixel."""

from __future__ import annotations

import numpy as np

from diagnose.lanes import Timeline
from tests.lane_traces import Thing, lanes_trace, with_samples

BASE = 1_733_059_200_000_000_000
NAN = float("nan")


def counters(base: int | None = BASE, start: int = 0, end: int = 100, pixels: int = 100, **given):
    trace = with_samples(lanes_trace([Thing(1000, 1100)], [base]), **given)
    return Timeline(trace).counters(start, end, pixels=pixels)


def test_readings_lie_on_the_axis():
    power, clock, held = counters(
        unix_ns=[BASE + 990, BASE + 1010, BASE + 1050],
        power_instant_w=[300.0, NAN, 500.0],
        power_avg_w=[1.0, 2.0, 3.0],
        sm_clock_mhz=[1900.0, 1800.0, NAN],
        clocks_event_reasons=[0.0, 4.0, 1.0],
    )
    assert (power.label, power.unit, power.sensor) == ("power", "W", "power_instant_w")
    assert (power.source, power.gpu) == (0, "g0.0")
    assert power.x_ns.tolist() == [-10, 50]
    assert power.mean.tolist() == power.low.tolist() == power.high.tolist() == [300.0, 500.0]
    assert (clock.label, clock.x_ns.tolist()) == ("SM clock", [-10, 10])
    # Bit 4 is the power limit; bit 1, an idle GPU, slows nothing.
    assert held.label == "clocks held down: the power limit is reached"
    assert held.mean.tolist() == [0.0, 1.0, 0.0]


def test_an_averaged_sensor_says_so():
    (power,) = counters(unix_ns=[BASE + 1010], power_avg_w=[250.0])
    assert power.label == "power, averaged by the driver"


def test_one_reading_before_and_one_after_the_window():
    (power,) = counters(
        start=30,
        end=60,
        unix_ns=[BASE + 1000 + t for t in (0, 20, 40, 60, 80)],
        power_instant_w=[1.0, 2.0, 3.0, 4.0, 5.0],
    )
    assert power.x_ns.tolist() == [20, 40, 60]
    assert power.mean.tolist() == [2.0, 3.0, 4.0]


def test_several_in_a_pixel_are_one():
    times = [2, 4, 6, 31, 35, 39, 72]
    (power,) = counters(
        pixels=4,
        unix_ns=[BASE + 1000 + t for t in times],
        power_instant_w=[1.0, 5.0, 3.0, 7.0, 8.0, 9.0, 4.0],
    )
    assert power.x_ns.tolist() == [4, 35, 72]
    assert power.low.tolist() == [1.0, 7.0, 4.0]
    assert power.high.tolist() == [5.0, 9.0, 4.0]
    assert power.mean.tolist() == [3.0, 8.0, 4.0]
    assert np.all((power.low <= power.mean) & (power.mean <= power.high))


def test_absent_without_telemetry_or_wall_clock():
    assert counters(unix_ns=[]) == ()
    assert counters(base=None, unix_ns=[BASE], power_instant_w=[3.0]) == ()
    assert counters(unix_ns=[BASE], energy_j=[3.0]) == ()
