"""Refreshes, energy, clocks, caps and reasons by numbers worked out by hand."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from diagnose.analyzers.power.cap import Cap, cap_that_hurts
from diagnose.analyzers.power.clock_swings import clock_swing, dominant_frequency
from diagnose.analyzers.power.doing import ClassTimes, Doing
from diagnose.analyzers.power.energy import Counter
from diagnose.analyzers.power.fit import readings, student_t
from diagnose.analyzers.power.reasons import held_reasons, slowed_ns
from diagnose.analyzers.power.refreshes import refreshes
from diagnose.readers import telemetry_csv
from tests.power_tables import UNIX_NS, samples

RECORDED = Path(__file__).parent / "test_power_data" / "power_heavy.telemetry.csv.gz"


def ms(at_ns):
    return ((np.asarray(at_ns) - UNIX_NS) / 1e6).tolist()


def times_of(*stretches):
    """Class times of (class, milliseconds), one after the other from time 0."""
    ends = np.cumsum([0, *(length for _, length in stretches)])
    edges = UNIX_NS + np.rint(np.array(ends) * 1e6).astype(np.int64)
    return ClassTimes(edges, np.array([doing for doing, _ in stretches], np.int8))


def steady(watts, until_ms, *, row_ms=20, period_ms=100, phase_ms=5):
    """A counter of constant power that moves every 100 ms, read every 20 ms."""
    rows = np.arange(0, until_ms + 1, row_ms)
    last = np.floor((rows - phase_ms) / period_ms) * period_ms + phase_ms
    return samples(ms=rows, energy_j=watts * last / 1000 + 1000)


def test_a_refresh_lies_between_the_rows_that_show_it():
    found = refreshes(
        samples(ms=[0, 40, 80, 120, 160, 200], energy_j=[1, 1, 3, 3, 6, 9]), "energy_j"
    )
    # New values at 80, 160 and 200; each came after the row before it.
    assert found.value.tolist() == [3, 6, 9]
    for at, low, high in zip(ms(found.at_ns), (40, 120, 160), (80, 160, 200), strict=True):
        assert low <= at <= high


def test_the_beat_tells_where_between_the_rows():
    """Rows every 23 ms, refreshes every 100 ms from 7 ms on: each is timed to a millisecond."""
    rows = np.arange(0, 6000, 23.0)
    last = np.floor((rows - 7) / 100)
    found = refreshes(samples(ms=rows, power_instant_w=300 + last), "power_instant_w")
    assert found.on_beat
    assert found.period_ns == pytest.approx(100e6, rel=1e-3)
    assert found.nyquist_hz == pytest.approx(5, rel=1e-3)
    off = (np.array(ms(found.at_ns)) - 7) % 100
    assert np.minimum(off, 100 - off).max() < 1.5


def test_a_late_row_hides_a_refresh_but_the_count_goes_on():
    rows = [t for t in range(0, 4000, 20) if not 1000 < t < 1260]
    last = np.floor((np.array(rows) - 5) / 100)
    found = refreshes(samples(ms=rows, energy_j=50 * last), "energy_j")
    # Refreshes at 5, 105, ... 3905: 40. Row 1000 shows that of 905, row 1260 that of 1205.
    assert np.bincount(np.diff(found.beats)).tolist() == [0, 36, 0, 1]
    assert found.beats[-1] == 39
    _, power = readings(found)
    # A reading over the hidden ones would be of several refreshes: there is none.
    assert np.allclose(power, 500)
    assert len(power) == len(found.value) - 2


def test_nothing_can_be_said_of_fewer_than_three_new_values():
    assert refreshes(samples(ms=[0, 20, 40, 60], energy_j=[1, 1, 2, 3]), "energy_j") is None
    assert refreshes(samples(ms=[0, 20], energy_j=[math.nan] * 2), "energy_j") is None
    assert refreshes(samples(ms=[0, 20, 40, 60], energy_j=[1, 2, 3, 4]), "no_such_column") is None


def test_energy_of_constant_power_is_exact():
    counter = Counter(refreshes(steady(500, 4000), "energy_j"), None)
    energy = counter.between(UNIX_NS + 1_000_000_000, UNIX_NS + 3_000_000_000)
    # 500 W for 2 s; the readings do not scatter, so nothing is uncertain.
    assert energy.joules == pytest.approx(1000, rel=1e-3)
    assert energy.low == pytest.approx(1000, rel=3e-3)
    assert energy.high == pytest.approx(1000, rel=3e-3)
    assert energy.num_refreshes == 20


def test_energy_is_only_given_between_refreshes():
    counter = Counter(refreshes(steady(500, 4000), "energy_j"), None)
    assert counter.covers(UNIX_NS + 300_000_000, UNIX_NS + 3_500_000_000)
    # Without a fitted lag the sensor may be 150 ms late: the last refresh is at 3905 ms.
    assert not counter.covers(UNIX_NS + 300_000_000, UNIX_NS + 3_800_000_000)
    assert not counter.covers(UNIX_NS, UNIX_NS + 3_500_000_000)


def test_a_step_up_in_power_widens_the_interval_by_lag_and_edges():
    """100 W, then 700 W from 2 s on: from 1 to 3 s it is 800 J, less 90 J at 150 ms of lag."""
    rows = np.arange(0, 4001, 20)
    last = np.maximum(np.floor((rows - 5) / 100) * 100 + 5, 0)
    counter_j = np.where(last < 2000, 0.1 * last, 200 + 0.7 * (last - 2000))
    counter = Counter(refreshes(samples(ms=rows, energy_j=counter_j), "energy_j"), None)
    energy = counter.between(UNIX_NS + 1_000_000_000, UNIX_NS + 3_000_000_000)
    assert energy.joules == pytest.approx(800, abs=3)
    # If the sensor is 150 ms late, what it shows for 1.15 to 3.15 s is meant: 885 + ... J.
    assert energy.high > 0.1 * 850 + 0.7 * 1150
    assert energy.low < 800


def test_power_without_a_counter_is_summed_over_refreshes():
    rows = np.arange(0, 4001, 20)
    watts = 400 + 10 * (np.floor(rows / 100) % 2)
    counter = Counter(refreshes(samples(ms=rows, power_instant_w=watts), "power_instant_w"), None)
    energy = counter.between(UNIX_NS + 1_000_000_000, UNIX_NS + 3_000_000_000)
    assert energy.joules == pytest.approx(2 * 405, abs=2)


@pytest.mark.parametrize(
    ("degrees", "point"), [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_students_t_is_that_of_the_tables(degrees, point):
    assert student_t(degrees) == pytest.approx(point, abs=0.01)


def test_class_times_are_exact_and_clipped():
    times = times_of((Doing.COMPUTE, 30), (Doing.OVERLAPPED, 20), (Doing.IDLE, 50))
    assert times.total_ns.tolist() == [30_000_000, 20_000_000, 0, 0, 50_000_000]
    passed = times.until(np.array([-1.0, 0.0, 0.010, 0.035, 0.075, 9.0]))
    assert passed[:, Doing.COMPUTE].tolist() == [0, 0, 0.010, 0.030, 0.030, 0.030]
    assert passed[:, Doing.OVERLAPPED] == pytest.approx([0, 0, 0, 0.005, 0.020, 0.020])
    assert passed[:, Doing.IDLE] == pytest.approx([0, 0, 0, 0, 0.025, 0.050])


# Clocks


def test_a_clock_that_stands_still_swings_by_nothing():
    swing = clock_swing(
        samples(ms=range(0, 1000, 20), sm_clock_mhz=[1980] * 50), UNIX_NS, UNIX_NS + 10**9
    )
    assert swing.swing_mhz == 0
    assert math.isnan(swing.frequency_hz)


def swinging(frequency_hz, *, seconds=20, size=100, noise=3, seed=1):
    beats = np.arange(0, seconds, 0.1)
    random = np.random.default_rng(seed)
    clock = 1500 + size * np.sin(2 * np.pi * frequency_hz * beats)
    return clock + noise * random.standard_normal(len(beats))


@pytest.mark.parametrize("frequency", [0.5, 1.7, 2.0, 4.4])
def test_the_frequency_of_a_swing_is_found(frequency):
    assert dominant_frequency(swinging(frequency), 0.1) == pytest.approx(frequency, abs=0.03)


def test_a_faster_swing_appears_folded_below_nyquist():
    # 8 Hz seen every 100 ms is 2 Hz: why the sentence says "or faster and folded there".
    assert dominant_frequency(swinging(8.0), 0.1) == pytest.approx(2.0, abs=0.03)


@pytest.mark.parametrize("keep", [0.0, 0.6, 0.9])
def test_noise_has_no_frequency(keep):
    """Neither white noise nor the slow wander of a clock that follows a temperature."""
    random = np.random.default_rng(2)
    series = random.standard_normal((300, 200))
    for at in range(1, 200):
        series[:, at] += keep * series[:, at - 1]
    found = [not math.isnan(dominant_frequency(each, 0.1)) for each in series]
    # 1 % by construction: 3 of 300, give or take.
    assert sum(found) <= 10


def test_a_short_or_slow_swing_has_none():
    assert math.isnan(dominant_frequency(swinging(2.0, seconds=3), 0.1))
    # Two cycles in the window are a trend as likely as a swing.
    assert math.isnan(dominant_frequency(swinging(0.1), 0.1))


def test_a_swing_is_measured_in_refreshes_within_the_window():
    beats = np.arange(0, 20, 0.1)
    clock = swinging(2.0, noise=0)
    rows = np.arange(0, 19_900, 20)
    held = clock[(rows // 100).astype(int)]
    swing = clock_swing(samples(ms=rows, sm_clock_mhz=held), UNIX_NS, UNIX_NS + 19_900_000_000)
    assert swing.nyquist_hz == pytest.approx(5, rel=0.01)
    assert swing.frequency_hz == pytest.approx(2.0, abs=0.03)
    low, high = np.percentile(clock[: len(beats) - 1], [5, 95])
    assert swing.swing_mhz == pytest.approx(high - low, rel=0.03)


# Reasons

TIMES = times_of((Doing.COMPUTE, 400), (Doing.IDLE, 100), (Doing.OVERLAPPED, 500))


def test_how_long_a_reason_held_and_what_it_can_have_cost():
    """The cap holds for rows at 200 to 600: 0.4 s, of which 0.2 + 0.1 s compute.

    At 1500 of 2000 MHz a quarter of 0.3 s is lacking, at most: 75 ms.
    """
    table = samples(
        ms=[0, 200, 400, 600, 800, 1000],
        clocks_event_reasons=[0, 4, 4, 0, 0x21, 0],
        sm_clock_mhz=[2000, 1500, 1500, 2000, 1000, 2000],
    )
    found = {held.reason.name: held for held in held_reasons(table, TIMES)}
    cap = found["sw_power_cap"]
    assert (cap.held_ns, cap.num_spells, cap.longest_ns) == (400_000_000, 1, 400_000_000)
    assert (cap.compute_ns, cap.clock_mhz, cap.reference_mhz) == (300_000_000, 1500, 2000)
    assert cap.cost_ns == pytest.approx(75e6)
    # 0x21 is two reasons at once, each with the 0.2 s: half the clock, 0.1 s lost at most.
    assert found["sw_thermal_slowdown"].cost_ns == pytest.approx(100e6)
    assert math.isnan(found["gpu_idle"].cost_ns)
    assert "does not hold a job back" in found["gpu_idle"].cost_why
    assert next(iter(found)) == "sw_power_cap"
    assert slowed_ns(table, TIMES) == (600_000_000, 400_000_000)


def test_outside_of_the_window_a_reason_held_but_cost_nothing():
    table = samples(
        ms=[900, 1100, 1300, 1500], clocks_event_reasons=[0, 4, 4, 0], sm_clock_mhz=[2000] * 4
    )
    (held,) = held_reasons(table, TIMES)
    assert (held.held_ns, held.recorded_ns, held.num_spells) == (0, 400_000_000, 0)
    assert math.isnan(held.cost_ns)


def test_a_reason_at_the_highest_clock_has_no_bound():
    table = samples(
        ms=[0, 200, 400], clocks_event_reasons=[4, 4, 4], sm_clock_mhz=[1980, 1980, 1980]
    )
    (held,) = held_reasons(table, TIMES)
    assert held.cost_why == "no higher clock was recorded to compare with"


def test_a_gap_in_the_rows_counts_for_a_second_at_most():
    times = times_of((Doing.COMPUTE, 10_000))
    table = samples(ms=[0, 5000], clocks_event_reasons=[4, 4], sm_clock_mhz=[1500, 2000])
    assert held_reasons(table, times)[0].held_ns == 1_000_000_000


def test_without_the_sensor_nothing_is_said():
    assert held_reasons(samples(ms=[0, 20]), TIMES) is None
    assert slowed_ns(samples(ms=[0, 20]), TIMES) == (None, None)


# Caps


def test_a_cap_is_a_quantile_of_the_power_drawn():
    # 500 to 699 W, each once: 5 % lie over 689, half over 599.5.
    cap = cap_that_hurts(np.arange(500.0, 700.0))
    assert isinstance(cap, Cap)
    assert cap.begins_w == pytest.approx(689.05)
    assert cap.half_w == pytest.approx(599.5)
    assert cap.begins_low_w < cap.begins_w <= cap.begins_high_w
    assert cap.num_refreshes == 200


def test_too_few_refreshes_give_no_cap():
    assert "(12; 50 are needed)" in cap_that_hurts(np.full(12, 500.0))


# The sensors of a real GPU: an H200 at its limit, 23 s, read every 18 ms


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("power") / "rank00000.telemetry.csv"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    columns, notes = telemetry_csv.read(str(path))
    assert notes == []
    time = columns.pop("unix_ns")
    return samples(ms=(time - UNIX_NS) / 1e6, **columns)


def test_a_real_sensor_has_a_new_value_every_100_ms(recorded):
    for column in ("energy_j", "power_instant_w", "power_avg_w"):
        found = refreshes(recorded, column)
        assert found.on_beat, column
        assert found.period_ns == pytest.approx(100e6, rel=2e-3), column
        assert np.mean(np.diff(found.beats) == 1) > 0.98


def test_the_real_counter_agrees_with_the_real_power(recorded):
    """The driver's mean over 1 s and what the counter says of the same second."""
    counter = refreshes(recorded, "energy_j")
    end, power = readings(counter)
    average = refreshes(recorded, "power_avg_w")
    last_second = np.convolve(power, np.ones(10) / 10, "valid")
    at = np.searchsorted(average.at_ns, end[9:], "right") - 1
    # The last seconds are idle; compare where power is steady.
    busy = (last_second > 600) & (at >= 0)
    off = average.value[at[busy]] / last_second[busy] - 1
    assert busy.sum() > 100
    assert abs(np.median(off)) < 0.02


def test_the_peak_of_the_real_gpu_is_over_its_limit(recorded):
    assert recorded["power_instant_w"].max() == 842.301
    assert set(recorded["power_limit_w"]) == {700}
    assert (recorded["sm_clock_mhz"].min(), recorded["sm_clock_mhz"].max()) == (1140, 1980)
    assert set(recorded["clocks_event_reasons"]) == {0, 4}
