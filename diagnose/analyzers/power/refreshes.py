"""When a sensor has a new value, whatever the pace at which it is read.

A driver gives the same value until the sensor has another, on many GPUs every 100 ms.
Reading more often adds rows, not knowledge: everything here rests on *refreshes*.

A refresh is seen between two rows: it lies after the last row with the old value and
not after the first with the new one. Where all refreshes fit one regular beat, the
beat says where in between; a sensor read every 20 ms is so timed to about 1 ms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.schema import SAMPLES
from diagnose.trace import Table

Floats = npt.NDArray[np.float64]

_LEAST = 3
_MOST_OFF_BEAT = 0.1
"""Share of refreshes that may lie off the beat (they are moved into their rows' gap)."""
_SLACK = 0.02
"""What a sensor's own pace may vary by, in periods."""
_PIECE = 2000


class Refreshes(NamedTuple):
    """The refreshes of one sensor.

    ``value[i]`` holds from ``at_ns[i]`` (unix time) to the next; the first value of a
    recording is not among them, since nobody saw when it came. ``beats[i]`` counts
    periods since the first: a step of 2 is a refresh that was missed.
    """

    column: str
    at_ns: Array
    value: Floats
    beats: Array
    period_ns: float
    uncertainty_ns: float
    """How far a time may be off: half a row's gap, or what is left of it on a beat."""
    on_beat: bool

    @property
    def nyquist_hz(self) -> float:
        """The highest frequency that this sensor can show."""
        return 0.5e9 / self.period_ns


def refreshes(samples: Table, column: str) -> Refreshes | None:
    """The refreshes of a column of ``samples`` (one source's rows); None if fewer than 3."""
    if column not in {c.name for c in SAMPLES.columns}:
        return None
    known = samples.known(column)
    time, value = samples["unix_ns"][known], samples[column][known]
    new = np.flatnonzero(value[1:] != value[:-1]) + 1
    if len(new) < _LEAST:
        return None
    before, after = time[new - 1], time[new]
    origin = int(before[0])
    low, high = (before - origin).astype(np.float64), (after - origin).astype(np.float64)
    middle = (low + high) / 2
    beats, period, beat = _regular(low, high)
    slack = _SLACK * period
    off = (beat < low - slack) | (beat > high + slack)
    on_beat = bool(np.mean(off) <= _MOST_OFF_BEAT)
    at = np.clip(beat, low, high) if on_beat else middle
    half_gap = float(np.median(high - low)) / 2
    # n intervals that all hold one line leave it about 1/n of their width.
    uncertainty = max(half_gap / len(new), 1e5) if on_beat else half_gap
    rounded = np.rint(at).astype(np.int64) + origin
    return Refreshes(column, rounded, value[new], beats, period, uncertainty, on_beat)


def _regular(low: Floats, high: Floats) -> tuple[Array, float, Floats]:
    """Beats counted from 0, their period, and the beat's own time of each refresh."""
    middle = (low + high) / 2
    beats = np.empty(len(middle), np.int64)
    beat = np.empty(len(middle))
    periods = []
    for begin in range(0, len(middle), _PIECE):
        # The two clocks drift apart by some 10 ms an hour: no single line holds for long.
        piece = slice(begin, begin + _PIECE)
        own, beat[piece], period = _on_one_line(low[piece], high[piece])
        first = 0
        if begin:
            steps = (middle[begin] - middle[begin - 1]) / period
            first = int(beats[begin - 1]) + max(round(steps), 1)
        beats[piece] = first + own - own[0]
        periods.append(period)
    return beats, float(np.median(periods)), beat


def _on_one_line(low: Floats, high: Floats) -> tuple[Array, Floats, float]:
    """Beats, their times and their period, of refreshes on one regular beat."""
    middle, gap = (low + high) / 2, high - low
    narrow = gap <= 1.5 * np.median(gap)
    if np.count_nonzero(narrow) < _LEAST:
        narrow[:] = True
    period = _period(middle[narrow])
    turns = np.exp(2j * np.pi * middle[narrow] / period).sum()
    offset = float(np.angle(turns)) / (2 * np.pi) * period
    beats = np.rint((middle - offset) / period)
    for _ in range(2):
        # What a late row shows is the last refresh before it.
        beats[~narrow] = np.floor((high[~narrow] - offset) / period + _SLACK)
        if len(np.unique(beats[narrow])) > 1:
            period, offset = (float(c) for c in np.polyfit(beats[narrow], middle[narrow], 1))
        beats = np.where(narrow, np.rint((middle - offset) / period), beats)
    late = np.flatnonzero(~narrow[:-1] & (beats[:-1] >= beats[1:]))
    beats[late] = beats[late + 1] - 1
    return beats.astype(np.int64), offset + period * beats, period


def _period(middle: Floats) -> float:
    """The period near the usual distance that most refreshes agree on."""
    if len(middle) < _LEAST:
        return float(np.ptp(middle)) or 1.0
    steps = np.diff(middle)
    single = steps < 1.5 * np.median(steps)
    usual = float(steps[single].mean())
    step = usual**2 / (4 * max(float(np.ptp(middle)), usual))
    tried = np.arange(0.95 * usual, 1.05 * usual, step)
    agreement = np.abs(np.exp(2j * np.pi * middle / tried[:, None]).sum(1))
    return float(tried[np.argmax(agreement)])
