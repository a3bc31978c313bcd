"""The power of each class of time, from a sensor that is slower than the classes change.

Each refresh is a mean over the time that the sensor watched; what the GPU did in that
time is known exactly. So ``n`` refreshes are ``n`` equations in five unknowns,

    reading = sum over classes of power x share of the watched time,

solved by least squares with no power below 0. Shares sum to 1, so the powers times the
shares sum to the mean reading exactly (as long as none is held at 0).

When a reading is of is part of the fit: the sensor may report late (``lag``) and watch
only a part of each period (``watched``). Both are tried on a grid, and the pair that
explains the readings best is taken.

The intervals are from a bootstrap over blocks of refreshes, each as long as the
residuals are correlated, that repeats the whole fit with its choice of lag: 95 %,
estimate -+ Student's t x standard error. They hold the noise of this sensor, not the
error of its calibration (5 % by NVIDIA's word).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.power.doing import NUM_CLASSES, ClassTimes, Doing
from diagnose.analyzers.power.least_squares import (
    best_try,
    bootstrap,
    fit_many,
    make_grid,
    matrices,
    products_of,
    wide_rows,
)
from diagnose.analyzers.power.refreshes import Refreshes

Floats = npt.NDArray[np.float64]

LEAST_REFRESHES = 40
LEAST_BLOCKS = 12
MOST_CONDITION = 30.0
"""Belsley's line: beyond it columns go so well together that they cannot be told apart."""
LEAST_SECONDS = 0.5
"""Of a class, in the refreshes used: below it no power of its own is given."""
MOST_RELATIVE_WIDTH = 0.5
"""Half an interval over its figure. Beyond it the figure says nothing."""
_LAG_PERIODS = (-0.5, 2.0)
_COARSE, _FINE, _NEAR = 0.05, 0.025, 0.1
"""Steps between the lags tried, in periods."""
_WATCHED = {"energy_j": (1.0, 0.5, 0.25), "power_avg_w": ()}
_AVERAGED_NS = 1e9
_CONFIDENCE = 0.95


class ClassPowers(NamedTuple):
    """What was fitted. Powers in watts by ``Doing``; NaN where a class has none of its own."""

    column: str
    watts: Floats
    low: Floats
    high: Floats
    fitted: Floats
    """The powers of all classes, also of those whose own power says nothing. For sums."""
    draws: Floats
    """``fitted`` of each bootstrap, a row each, spread as the errors are."""
    lag_ns: float
    lag_low_ns: float
    lag_high_ns: float
    watched_ns: float
    period_ns: float
    num_refreshes: int
    block: int
    degrees: float
    residual_w: float
    """What the classes leave unexplained of a reading: its standard deviation, or more
    where errors of neighbours go together: what a mean over ``n`` readings is off by, times
    the root of ``n``."""
    noise_w: float
    """What a reading differs by from its neighbours beyond the classes: noise of the sensor."""
    condition: float

    def energy(self, seconds: Floats) -> tuple[float, float, float]:
        """Joules of so many seconds of each class, with their 95 % interval."""
        length = float(seconds.sum())
        joules = float(self.fitted @ seconds)
        unexplained = self.residual_w * math.sqrt(self.period_ns / 1e9 * length)
        error = math.hypot(float((self.draws @ seconds).std(ddof=1)), unexplained)
        reach = student_t(self.degrees) * error
        return joules, max(joules - reach, 0.0), joules + reach


def fit_class_powers(sensor: Refreshes, times: ClassTimes, *, seed: int = 0) -> ClassPowers | str:
    """The powers of the classes, or the sentence why they cannot be told."""
    end, reading = readings(sensor)
    at = times.seconds(end)
    period = sensor.period_ns / 1e9
    parts = _WATCHED.get(sensor.column, (1.0, 0.5, 0.25)) or (_AVERAGED_NS / sensor.period_ns,)
    low, high = (bound * period for bound in _LAG_PERIODS)
    usable = (at - high - max(parts) * period >= 0) & (at - low <= times.length_s)
    at, reading = at[usable], reading[usable]
    if len(reading) < LEAST_REFRESHES:
        return (
            "too few refreshes of the power sensor lie well inside of the recorded GPU work "
            f"({len(reading)}; {LEAST_REFRESHES} are needed)"
        )
    coarse = make_grid(np.arange(low, high + period * _COARSE / 2, period * _COARSE), parts, period)
    columns = np.flatnonzero(times.total_ns > 0)
    best = best_try(times, at, reading, coarse, columns)
    near = coarse.lag[best] + period * np.arange(-_NEAR, _NEAR + _FINE / 2, _FINE)
    fine = make_grid(near, parts, period)
    wide = wide_rows(times, at, reading, fine, columns)
    shares, moments = wide[:, :, :-1], products_of(wide)
    powers, lag, watched = (found[0] for found in fit_many(matrices(moments.sum(0))[None], fine))
    nearest = np.abs(fine.lag - lag) + np.where(fine.watched == watched, 0, np.inf)
    own = shares[int(np.argmin(nearest))]
    condition, together = _condition(own, columns)
    if condition > MOST_CONDITION:
        names = " and ".join(Doing(c).name.lower() for c in together)
        return (
            f"{names} come in the same proportion in every refresh of the sensor "
            f"({sensor.period_ns / 1e6:.0f} ms), so their powers cannot be told apart"
        )
    residual = reading - own @ powers
    block = _block_length(residual)
    num_blocks = len(reading) // block
    if num_blocks < LEAST_BLOCKS:
        return (
            f"{len(reading)} refreshes whose errors are correlated over {block} make "
            f"{num_blocks} independent blocks, and at least {LEAST_BLOCKS} are needed"
        )
    draws, lags = bootstrap(moments, fine, block, np.random.default_rng(seed))
    degrees = max(num_blocks - len(columns) - 1.0, 3.0)
    # Drawn blocks carry residuals, which are smaller than errors by the powers fitted.
    widen = math.sqrt(num_blocks / max(num_blocks - len(columns), 1))
    draws = powers + (draws - powers) * widen
    reach = student_t(degrees) * draws.std(0, ddof=1)
    bounds = np.quantile(lags, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    seconds = own.sum(0) * period
    unknown = (seconds < LEAST_SECONDS) | (reach > MOST_RELATIVE_WIDTH * powers)
    every = np.full((3, NUM_CLASSES), np.nan)
    told = columns[~unknown]
    every[:, told] = np.stack([powers, np.maximum(powers - reach, 0), powers + reach])[:, ~unknown]
    whole = np.zeros((1 + len(draws), NUM_CLASSES))
    whole[:, columns] = np.vstack([powers, draws])
    return ClassPowers(
        column=sensor.column,
        watts=every[0],
        low=every[1],
        high=every[2],
        fitted=whole[0],
        draws=whole[1:],
        lag_ns=1e9 * float(lag),
        lag_low_ns=1e9 * float(bounds[0]),
        lag_high_ns=1e9 * float(bounds[1]),
        watched_ns=1e9 * float(watched),
        period_ns=sensor.period_ns,
        num_refreshes=len(reading),
        block=block,
        degrees=degrees,
        residual_w=_long_run(residual, block, len(columns)),
        noise_w=float(np.std(np.diff(residual))) / math.sqrt(2),
        condition=condition,
    )


def readings(sensor: Refreshes) -> tuple[npt.NDArray[np.int64], Floats]:
    """The end of each reading's time, and its mean power. A missed refresh makes no reading."""
    if sensor.column == "energy_j":
        passed, spent = np.diff(sensor.at_ns), np.diff(sensor.value)
        # A counter that falls was reset: the driver was loaded again.
        whole = (np.diff(sensor.beats) == 1) & (passed > 0) & (spent >= 0)
        return sensor.at_ns[1:][whole], spent[whole] / (passed[whole] / 1e9)
    return sensor.at_ns, sensor.value


def _block_length(residual: Floats) -> int:
    """Long enough for the correlation that the residuals show: Carlstein's rule for AR(1).

    At least the cube root of their number, which also covers a weak and slow correlation.
    """
    size = len(residual)
    spread = float(residual @ residual)
    correlation = abs(float(residual[1:] @ residual[:-1])) / spread if spread else 0.0
    correlation = min(correlation, 0.95)
    root = math.pow(size, 1 / 3)
    length = math.pow(math.sqrt(6) * correlation / (1 - correlation**2), 2 / 3) * root
    return max(round(length), round(root))


def _long_run(residual: Floats, block: int, num_powers: int) -> float:
    """Standard deviation of residuals as a long mean sees it; at least that of single ones."""
    single = float(np.sqrt(residual @ residual / max(len(residual) - num_powers, 1)))
    num_blocks = len(residual) // block
    means = residual[: num_blocks * block].reshape(num_blocks, block).mean(1)
    together = math.sqrt(block * float(means @ means) / max(num_blocks - num_powers, 1))
    return max(single, together)


def _condition(shares: Floats, columns: npt.NDArray[np.int64]) -> tuple[float, list[int]]:
    """Condition number of the columns at unit length, and the classes that go together."""
    norm = np.sqrt((shares**2).sum(0))
    if not norm.all():
        return math.inf, [int(c) for c in columns[norm == 0]]
    _, size, directions = np.linalg.svd(shares / norm, full_matrices=False)
    weak = np.abs(directions[-1])
    together = columns[weak > 0.3 * weak.max()]
    return float(size[0] / max(size[-1], 1e-300)), [int(c) for c in together]


def student_t(degrees: float) -> float:
    """The 97.5 % point of Student's t (Hill's expansion; within 0.01 from 3 degrees on)."""
    z = 1.959963984540054
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))
