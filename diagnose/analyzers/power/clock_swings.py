"""How far the clock of the multiprocessors swings, and whether it swings at one frequency.

A value that changes every 100 ms shows nothing above 5 Hz: a faster swing appears, folded,
at a lower frequency. A frequency is given only if its line stands out of the spectrum
around it (1 % chance for noise), and only with at least four cycles in the window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.power.refreshes import refreshes
from diagnose.intervals import Array
from diagnose.trace import Table

Floats = npt.NDArray[np.float64]

LEAST_BEATS = 32
LEAST_CYCLES = 4
_CHANCE = 0.01
_NEIGHBOURS = 8


class Swing(NamedTuple):
    """``swing_mhz``: 95th less 5th percentile over time. NaN: cannot be told."""

    swing_mhz: float
    frequency_hz: float
    nyquist_hz: float


def clock_swing(samples: Table, begin_ns: int, end_ns: int) -> Swing:
    """The swing of the clock between two moments of unix time."""
    known = samples.known("sm_clock_mhz")
    time, clock = samples["unix_ns"][known], samples["sm_clock_mhz"][known]
    sensor = refreshes(samples, "sm_clock_mhz")
    if sensor is None or end_ns <= begin_ns:
        inside = clock[(time >= begin_ns) & (time < end_ns)]
        return Swing(0.0 if len(inside) > 1 and np.ptp(inside) == 0 else math.nan, *[math.nan] * 2)
    at = np.arange(max(begin_ns, int(time[0])), min(end_ns, int(time[-1])), sensor.period_ns)
    series = _held(time, clock, at.astype(np.int64))
    if len(series) < 2:
        return Swing(math.nan, math.nan, sensor.nyquist_hz)
    low, high = np.percentile(series, [5, 95])
    frequency = dominant_frequency(series, sensor.period_ns / 1e9)
    return Swing(float(high - low), frequency, sensor.nyquist_hz)


def _held(time: Array, value: Floats, at: Array) -> Floats:
    """The value at each moment: that of the last row before it."""
    return value[np.clip(np.searchsorted(time, at, side="right") - 1, 0, len(value) - 1)]


def dominant_frequency(series: Floats, period_s: float) -> float:
    """The frequency whose line stands out, in Hz; NaN if none does or the series is short."""
    size = len(series)
    if size < LEAST_BEATS or np.ptp(series) == 0:
        return math.nan
    line = np.polynomial.polynomial.polyfit(np.arange(size), series, 1)
    rest = series - np.polynomial.polynomial.polyval(np.arange(size), line)
    spectrum = np.abs(np.fft.rfft(rest * np.hanning(size))) ** 2
    bins = np.arange(LEAST_CYCLES, len(spectrum))
    around = [_around(spectrum, place) for place in bins.tolist()]
    over = np.array(
        [
            spectrum[place] / max(level, 1e-30) / _threshold(number, len(bins))
            for place, (level, number) in zip(bins.tolist(), around, strict=True)
        ]
    )
    best = int(np.argmax(over))
    if over[best] < 1:
        return math.nan
    return float(_vertex(spectrum, int(bins[best])) / (size * period_s))


def _around(spectrum: Floats, place: int) -> tuple[float, int]:
    """Mean level of the bins beside a line, from their median, and how many they are.

    An octave to either side, so that a spectrum that falls weighs out; without the line and
    the bins next to it that the window smears it over.
    """
    low = min(max(place // 2, 1), max(place - _NEIGHBOURS, 1))
    high = max(2 * place, place + _NEIGHBOURS)
    near = np.arange(low, min(high + 1, len(spectrum)))
    near = near[np.abs(near - place) > 2]
    # Noise follows an exponential law, whose median is ln 2 of its mean.
    return float(np.median(spectrum[near])) / math.log(2), len(near)


def _threshold(number: int, num_bins: int) -> float:
    """How far over the level of ``number`` bins a line has to be, by chance in 1 % of spectra.

    A bin over the mean of ``m`` others exceeds ``r`` with probability ``(1 + r / m) ** -m``.
    A median tells half as much as a mean, and the window ties neighbours together.
    """
    worth = max(number * 0.48 / 1.5, 1.0)
    return worth * float(math.pow(_CHANCE / num_bins, -1 / worth) - 1)


def _vertex(spectrum: Floats, place: int) -> float:
    if place + 1 >= len(spectrum):
        return float(place)
    left, middle, right = np.log(np.maximum(spectrum[place - 1 : place + 2], 1e-30))
    bend = left - 2 * middle + right
    return float(place + (0.5 * (left - right) / bend if bend < 0 else 0.0))
