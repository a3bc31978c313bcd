"""What changes the speed of a GPU over a recording, as a fit to kernels that ran alone.

Drift is continuous and piecewise straight over time. With telemetry, durations are
taken to go with a power of the clock, one for each GPU and family of kernels: 1 for
kernels that compute, 0 for those that wait for memory. The power is assumed to be 1
with a standard deviation of ``CLOCK_POWER_ERROR`` as far as the kernels do not tell: so
contention is rather understated than a lower clock called contention, and intervals
hold what is not known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.contention._occurrences import Floats, Mask
from diagnose.intervals import Array

CLOCK_POWER_ERROR = 0.5
_BEYOND_CHANCE = 2.5
"""Standard deviations by which drift has to stand out before it is divided out."""


class Runs(NamedTuple):
    """Occurrences of kernels, as the fit sees them."""

    group: Array
    gpu: Array
    time: Array
    """Start, ns."""
    clock: Floats
    """Minus the natural logarithm of the clock in GHz: what durations gain that follow it fully.

    0 where clocks are not divided out.
    """
    family: Array

    def take(self, rows: Array | Mask) -> Runs:
        return Runs(
            self.group[rows], self.gpu[rows], self.time[rows], self.clock[rows], self.family[rows]
        )


class Changes(NamedTuple):
    """What changed the speed of one GPU. ``coefficients``: of the knots, then of the families."""

    knots: Floats
    """Of the drift; empty without."""
    families: Array
    """Those whose power of the clock was fitted; empty without telemetry."""
    coefficients: Floats

    @property
    def num_coefficients(self) -> int:
        return len(self.knots) + len(self.families)

    def fitted(self, runs: Runs, log: Floats, variance: float) -> tuple[Floats, float]:
        """Coefficients for the logarithms of these durations, and what they leave (squares)."""
        return System(runs.group, self.basis(runs), self.stiffness(variance)).fit(log)

    def basis(self, runs: Runs) -> Floats:
        """``(n, coefficients)``: what each contributes to the logarithm of a duration."""
        found = np.zeros((len(runs.time), self.num_coefficients))
        rows = np.arange(len(runs.time))
        if len(self.knots):
            place = np.clip(np.searchsorted(self.knots, runs.time) - 1, 0, len(self.knots) - 2)
            width = self.knots[place + 1] - self.knots[place]
            right = np.clip((runs.time - self.knots[place]) / width, 0, 1)
            found[rows, place] = 1 - right
            found[rows, place + 1] += right
        column = np.searchsorted(self.families, runs.family)
        known = column < len(self.families)
        known[known] = self.families[column[known]] == runs.family[known]
        found[rows[known], len(self.knots) + column[known]] = runs.clock[known]
        return found

    def stiffness(self, variance: float) -> Floats:
        """Precision that each coefficient has beforehand, in units of one observation's."""
        prior = np.zeros(self.num_coefficients)
        prior[len(self.knots) :] = variance / CLOCK_POWER_ERROR**2
        return prior


class System:
    """Least squares of a level per group and coefficients that all share.

    ``stiffness`` pulls coefficients towards 0. Groups are eliminated: what is solved
    is as small as the number of coefficients.
    """

    def __init__(self, group: Array, basis: Floats, stiffness: Floats) -> None:
        _, place = np.unique(group, return_inverse=True)
        self._group = place.reshape(-1)
        self.num_groups = int(self._group.max(initial=-1)) + 1
        self._basis, self._stiffness = basis, stiffness
        self._count = np.bincount(self._group, minlength=self.num_groups)[:, None]
        self._cross = np.zeros((self.num_groups, basis.shape[1]))
        np.add.at(self._cross, self._group, basis)
        schur = basis.T @ basis - self._cross.T @ (self._cross / self._count)
        # The level of the drift is not determined: it is part of every group's.
        self._inverse = np.linalg.pinv(schur + np.diag(stiffness), rcond=1e-9, hermitian=True)

    def fit(self, values: Floats) -> tuple[Floats, float]:
        """The coefficients, and the sum of squares that they leave."""
        mean = np.bincount(self._group, values, self.num_groups)[:, None] / self._count
        centred = values - mean[self._group, 0]
        found = self._inverse @ (self._basis.T @ centred)
        inside = self._basis - (self._cross / self._count)[self._group]
        rest = centred - inside @ found
        return found, float(rest @ rest)

    def influence(self, by_group: Floats, by_change: Floats) -> tuple[Floats, Floats]:
        """How ``by_group * levels + by_change * coefficients`` moves.

        With each observation, ``(n, m)``; and with what was assumed of each
        coefficient, ``(coefficients, m)``.
        """
        right = by_change - self._cross.T @ (by_group / self._count)
        shared = self._inverse @ right
        level = (by_group - self._cross @ shared) / self._count
        return level[self._group] + self._basis @ shared, self._stiffness[:, None] * shared


def stands_out(before: float, after: float, more: int, freedom: int) -> bool:
    """Whether ``more`` coefficients explain more than chance would."""
    if freedom < 2 * more or after <= 0:
        return False
    ratio = (before - after) / more / (after / freedom)
    return bool(ratio > 1 + _BEYOND_CHANCE * np.sqrt(2 / more + 2 / freedom))


def centred(coefficients: Floats, knots: Floats, time: Array) -> Floats:
    """The same drift, 0 on average over the twins."""
    level = coefficients[: len(knots)]
    shifted = coefficients.copy()
    shifted[: len(knots)] -= np.interp(time, knots, level).mean()
    return shifted
