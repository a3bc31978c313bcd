"""How fast work goes beside communication: the estimate and its interval. Arrays only.

A kernel that takes ``a`` alone and runs ``t0`` alone and ``t[k]`` beside
communication of class ``k`` does, if work goes at the rate ``r[k] = 1 / slowdown[k]``
there::

    a = t0 + sum(r[k] * t[k])

which is linear in the rates. This holds whatever part of the kernel was overlapped:
the share of *time* grows with the slowdown, the share of work does not, and a
regression of the duration on the share of time would be wrong by up to a point.

The equations solved are, for each class ``k``::

    sum over kernels of z[k] * (a - t0 - sum(r * t)) = 0

``z[k]`` is how the exposure of the kernel (the part of ``[start, start + a)`` that
communication covers) divides among the classes. It is made without the kernel's own
duration: a kernel that happens to take longer also overlaps longer, and with the
measured share in its place that would be taken for speed. So the slowdown of a class
is overlapped time over the time that the same work takes alone, which is what costs;
where kernels are overlapped completely, it is the ratio of mean durations.

A rate can come out at 0 or below: kernels that wait until the collective has left the
multiprocessors, or that keep a bad placement of their blocks after it, lose more time
than the overlap lasted. Then there is a lower bound of the slowdown and no estimate.

The interval is that of a stratified sample: kernels are the strata, their variances
(relative to what they take alone, and shrunk towards all kernels': many have 2 or 3
occurrences) are carried through the equations, with a t quantile of Satterthwaite's
degrees of freedom. A percentile bootstrap over occurrences needs no formula but covers
the truth too rarely with few occurrences a kernel (``docs/contention.md`` has both side
by side).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.contention._occurrences import Floats
from diagnose.intervals import Array

_PRIOR = 4.0
"""Occurrences that the pooled variance counts for in that of one kernel."""


class Spread(NamedTuple):
    """Relative variances of durations, per group; NaN where nothing tells."""

    variance: Floats
    freedom: Floats
    """Degrees of freedom behind each."""


def spread(group: Array, relative: Floats, num_groups: int) -> Spread:
    """Variance of ``relative`` around each group's mean."""
    count = np.bincount(group, minlength=num_groups)
    mean = np.bincount(group, relative, num_groups) / np.maximum(count, 1)
    square = np.bincount(group, (relative - mean[group]) ** 2, num_groups)
    freedom = np.maximum(count - 1, 0)
    if not freedom.sum():
        nothing = np.full(num_groups, np.nan)
        return Spread(nothing, nothing)
    pooled = square.sum() / freedom.sum()
    return Spread((square + _PRIOR * pooled) / (freedom + _PRIOR), freedom + _PRIOR)


class Parts(NamedTuple):
    """Variances by stratum, ``(strata, m)``, and the degrees of freedom of each stratum.

    These have the shape ``(strata,)``, or ``(strata, m)`` where they differ.
    """

    variance: Floats
    freedom: Floats

    @property
    def reach(self) -> Floats:
        """Half the width of the 95 % interval. ``(m,)``."""
        total = self.variance.sum(0)
        behind = self.freedom if self.freedom.ndim > 1 else self.freedom[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            freedom = total**2 / (self.variance**2 / behind).sum(0)
        found: Floats = quantile(np.where(freedom > 0, freedom, np.inf)) * np.sqrt(total)
        return found


class Estimate(NamedTuple):
    """A value for each class or label, with its 95 % interval; NaN where there is none."""

    value: Floats
    low: Floats
    high: Floats


class Sample(NamedTuple):
    """The paired overlapped kernels, in nanoseconds."""

    alone: Floats
    """What each takes alone."""
    free: Floats
    """Its time beside no communication."""
    beside: Floats
    """``(n, classes)``: its time beside each class."""
    exposure: Floats
    """``(n, classes)``: the shares ``z``."""


def rates(sample: Sample) -> tuple[Floats, Floats]:
    """The rates per class (NaN where unknown), and the inverse of the matrix (0 there)."""
    exposure, beside = sample.exposure, sample.beside
    matrix = exposure.T @ beside
    right = exposure.T @ (sample.alone - sample.free)
    found = np.full(len(right), np.nan)
    inverse = np.zeros(matrix.shape)
    used = np.flatnonzero(np.diag(matrix) > 0)
    if used.size:
        inner = matrix[np.ix_(used, used)]
        scale = np.sqrt(np.diag(inner))
        scaled = inner / scale[:, None] / scale[None, :]
        if np.linalg.cond(scaled) < 1e6:
            inverse[np.ix_(used, used)] = np.linalg.inv(scaled) / scale[:, None] / scale[None, :]
            found[used] = inverse[np.ix_(used, used)] @ right[used]
    return found, inverse


def quantile(freedom: Floats) -> Floats:
    """The 97.5 % point of Student's t, within 0.5 % from 3 degrees of freedom on.

    Fisher's expansion around the normal (Abramowitz and Stegun 26.7.5).
    """
    z, n = 1.959963984540054, np.maximum(freedom, 1.0)
    return np.asarray(
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def slowdowns(rate: Estimate) -> Estimate:
    """Slowdowns from rates. No estimate and no upper end where the rate may be 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        positive = (rate.value > 0) & ~(rate.low <= 0)
        value = np.where(positive, 1 / rate.value, np.nan)
        low = np.where(rate.high > 0, 1 / rate.high, np.nan)
        high = np.where(rate.low > 0, 1 / rate.low, np.nan)
    return Estimate(value, low, high)
