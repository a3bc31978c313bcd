"""How much of a difference between two recordings their own steps could explain."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROBUST_FROM = 10
"""Steps from which the median deviation replaces the standard deviation: with fewer it is
itself a matter of chance, with more a single checkpoint step would widen the band."""
_MAD_TO_SIGMA = 1.4826
_MEDIAN_PENALTY = 1.2533
"""Standard error of a median over that of a mean: sqrt(pi / 2), for three values and more."""
# 97.5 % quantile of Student's t for 1, 2, ... 30 degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T_LIMIT = 1.96


class Judgement(IntEnum):
    """What the noise band says of a change."""

    UNKNOWN = 0
    """Too few steps to know the noise."""
    WITHIN = 1
    """The steps of each recording differ by as much."""
    BEYOND = 2
    """More than the steps explain."""


class Change(NamedTuple):
    """A measure in two recordings (ns per step); NaN where unknown."""

    before: float
    after: float
    noise: float

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def judgement(self) -> Judgement:
        if math.isnan(self.noise) or math.isnan(self.change):
            return Judgement.UNKNOWN
        return Judgement.BEYOND if abs(self.change) > self.noise else Judgement.WITHIN


def compared(before: Floats, after: Floats) -> Change:
    """Two recordings' values of one measure, one value a step.

    The value of a recording is the median over its steps. The noise band is a
    95 % interval of the difference of two medians from the pooled spread::

        noise = t(0.975, n_a + n_b - 2) * c * s * sqrt(1 / n_a + 1 / n_b)
        s^2   = ((n_a - 1) s_a^2 + (n_b - 1) s_b^2) / (n_a + n_b - 2)

    ``s_a`` is the standard deviation over steps, from ten steps on 1.4826 times the
    median absolute deviation; ``c`` is 1.2533 (the median's loss against the mean),
    1 where both have at most two steps. With two steps each t is 4.3: a wide band,
    as it has to be. NaN with fewer than three steps in all. Steps are taken as
    independent, and what differs between two runs of the same job is not in it.
    """
    value_before = float(np.median(before)) if before.size else math.nan
    value_after = float(np.median(after)) if after.size else math.nan
    freedom = before.size + after.size - 2
    if not before.size or not after.size or freedom < 1:
        return Change(value_before, value_after, math.nan)
    pooled = sum((part.size - 1) * _spread(part) ** 2 for part in (before, after)) / freedom
    quantile = _T[freedom - 1] if freedom <= len(_T) else _T_LIMIT
    penalty = 1.0 if max(before.size, after.size) <= 2 else _MEDIAN_PENALTY
    error = math.sqrt(pooled * (1 / before.size + 1 / after.size))
    return Change(value_before, value_after, quantile * penalty * error)


def _spread(values: Floats) -> float:
    if values.size < 2:
        return 0.0
    if values.size >= _ROBUST_FROM:
        return _MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))
    return float(np.std(values, ddof=1))
