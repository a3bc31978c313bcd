"""Energy between two moments from a counter that moves only at refreshes.

Between refreshes the counter is joined by straight lines. What that can be off by:

- the sensor reports late, by a lag that was fitted or lies within 0 to 150 ms;
- at each edge, power within the refresh may have been anywhere between the least and
  the greatest reading: at most ``f (1 - f) x period x range`` for an edge at the share
  ``f`` of a refresh;
- readings have noise, and a sensor that watches only a part of each period is a sample:
  what the classes leave unexplained, and the scatter of readings about their neighbours,
  times the root of their number.

The first two are bounds, the third is 95 %; the interval adds all three.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.power.fit import ClassPowers, readings
from diagnose.analyzers.power.refreshes import Refreshes

Floats = npt.NDArray[np.float64]

LEAST_REFRESHES = 10
"""A window shorter than this says more of its edges than of itself."""
UNKNOWN_LAG_NS = (0.0, 0.0, 150e6)
AVERAGE_LAG_NS = (0.0, 500e6, 1000e6)
LEAST_WATCHED = 0.25
"""Of each period, where nothing is known: what was found of A100 and H100 (arXiv 2312.02741)."""


class Energy(NamedTuple):
    """Joules with an interval, from so many refreshes."""

    joules: float
    low: float
    high: float
    num_refreshes: int


class Counter:
    """A counter of energy, or one made of power readings, that answers for any stretch of time."""

    def __init__(self, sensor: Refreshes, powers: ClassPowers | None) -> None:
        self._sensor = sensor
        self._origin = int(sensor.at_ns[0])
        self._at: Floats = (sensor.at_ns - self._origin).astype(np.float64)
        self._joules = _counted(sensor)
        end, reading = readings(sensor)
        self._end, self._reading = end, reading
        self._range = float(np.ptp(reading)) if len(reading) else 0.0
        if powers is not None:
            self._lag = (powers.lag_low_ns, powers.lag_ns, powers.lag_high_ns)
            self._watched = min(powers.watched_ns / powers.period_ns, 1.0)
            self._noise = powers.noise_w
        else:
            average = sensor.column == "power_avg_w"
            self._lag = AVERAGE_LAG_NS if average else UNKNOWN_LAG_NS
            self._watched = LEAST_WATCHED
            self._noise = 0.0

    def covers(self, begin_ns: int, end_ns: int) -> bool:
        """Whether refreshes were seen before and after, whatever the lag."""
        return bool(
            begin_ns + min(self._lag) >= self._sensor.at_ns[0]
            and end_ns + max(self._lag) <= self._sensor.at_ns[-1]
        )

    def was_reset(self, begin_ns: int, end_ns: int) -> bool:
        """Whether the counter fell in between: the driver was loaded again."""
        near = (self._sensor.at_ns >= begin_ns + min(self._lag) - self._sensor.period_ns) & (
            self._sensor.at_ns <= end_ns + max(self._lag) + self._sensor.period_ns
        )
        return bool((np.diff(self._joules[near]) < 0).any())

    def num_refreshes(self, begin_ns: int, end_ns: int) -> int:
        """Whole refreshes within a stretch, by its length: how well it can be resolved."""
        return int((end_ns - begin_ns) / self._sensor.period_ns)

    def between(self, begin_ns: int, end_ns: int) -> Energy:
        """The energy of ``[begin_ns, end_ns)`` (unix time); it must be covered."""
        begin, end = float(begin_ns - self._origin), float(end_ns - self._origin)
        lags = np.append(np.linspace(self._lag[0], self._lag[2], 7), self._lag[1])
        found = self._until(end + lags) - self._until(begin + lags)
        edges = self._edge(begin + lags[-1]) + self._edge(end + lags[-1])
        reach = edges + self._sampling(begin_ns + int(lags[-1]), end_ns + int(lags[-1]))
        joules = float(found[-1])
        low, high = float(found.min()) - reach, float(found.max()) + reach
        return Energy(joules, max(low, 0.0), high, self.num_refreshes(begin_ns, end_ns))

    def _until(self, moment: Floats) -> Floats:
        joules: Floats = np.interp(moment, self._at, self._joules)
        return joules

    def _edge(self, moment: float) -> float:
        after = int(np.clip(np.searchsorted(self._at, moment), 1, len(self._at) - 1))
        length = self._at[after] - self._at[after - 1]
        share = min(max((moment - self._at[after - 1]) / length, 0.0), 1.0)
        return float(share * (1 - share) * length / 1e9 * self._range)

    def _sampling(self, begin_ns: int, end_ns: int) -> float:
        inside = self._reading[(self._end > begin_ns) & (self._end <= end_ns)]
        if len(inside) < 3:
            return 0.0
        scatter = float(np.std(np.diff(inside))) / math.sqrt(2)
        single = math.hypot(scatter * math.sqrt(1 - self._watched), self._noise)
        return 1.96 * single * math.sqrt(len(inside)) * self._sensor.period_ns / 1e9


def _counted(sensor: Refreshes) -> Floats:
    """Joules at each refresh since the first."""
    if sensor.column == "energy_j":
        joules: Floats = sensor.value - sensor.value[0]
        return joules
    # A reading is of the time before it.
    lengths = np.diff(sensor.at_ns) / 1e9
    return np.concatenate([[0.0], np.cumsum(sensor.value[1:] * lengths)])
