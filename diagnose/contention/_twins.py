"""What each kernel takes alone, by its twins, and how that changed over the recording.

Twins of an overlapped kernel are occurrences of the same kernel beside no
communication. Their mean, without outliers, is what it takes alone.

All kernels that ran alone also tell how fast the GPU was at each time. Where that
changed by more than chance explains, the change is divided out. So slow changes of the
clock (heat, a power limit) do not count as contention even without telemetry. Faster
ones, such as a clock that falls within each overlapped phase, need it.
"""

from __future__ import annotations

import numpy as np

from diagnose.contention._changes import (
    CLOCK_POWER_ERROR,
    Changes,
    Runs,
    System,
    centred,
    stands_out,
)
from diagnose.contention._occurrences import Floats, Mask
from diagnose.contention._rates import Parts, Spread, spread
from diagnose.intervals import Array

_PER_KNOT = 12
"""Kernels that ran alone for each point of the drift."""
_MOST_KNOTS = 12
_LEAST_OUTLIER = 0.25
"""Natural logarithm: nothing within a factor of 1.28 of its kernel's median is an outlier."""
_LEAST_DISTURBED = 0.6
"""The same of overlapped kernels: a factor of 1.8."""
_OUTLIER = 5.0
"""Robust standard deviations beyond which an occurrence is one."""
_DISAGREE = 0.3
"""Interquartile range over median from which twins are not the same work."""


def quantile_by(group: Array, values: Floats, share: float, num_groups: int) -> Floats:
    """The quantile of the values in each group, interpolated; NaN where a group is empty."""
    return quantiles_by(group, values, (share,), num_groups)[0]


def quantiles_by(
    group: Array, values: Floats, shares: tuple[float, ...], num_groups: int
) -> list[Floats]:
    """``quantile_by`` for several shares."""
    # By value and then by group: two sorts, the second of which only merges short keys.
    order = np.argsort(values, kind="stable")
    order = order[np.argsort(_short(group, num_groups)[order], kind="stable")]
    ordered = values[order]
    count = np.bincount(group, minlength=num_groups)
    low = np.cumsum(count) - count
    some = np.flatnonzero(count)
    found = []
    for share in shares:
        quantile = np.full(num_groups, np.nan)
        at = low[some] + share * (count[some] - 1)
        below = np.floor(at).astype(np.int64)
        above = np.minimum(below + 1, low[some] + count[some] - 1)
        quantile[some] = ordered[below] + (at - below) * (ordered[above] - ordered[below])
        found.append(quantile)
    return found


def _short(group: Array, num_groups: int) -> Array:
    """The groups in the fewest bytes: numpy sorts 16 bits by radix."""
    return group.astype(np.uint16) if num_groups <= 1 << 16 else group


def outliers(group: Array, log_ratio: Floats, num_groups: int) -> Mask:
    """Occurrences far from their group's median, by the spread of all groups together."""
    far = np.abs(log_ratio - quantile_by(group, log_ratio, 0.5, num_groups)[group])
    repeated = np.bincount(group, minlength=num_groups)[group] > 2
    sigma = 1.4826 * float(np.median(far[repeated])) if repeated.any() else 0.0
    found: Mask = far > max(_LEAST_OUTLIER, _OUTLIER * sigma)
    return found


def disturbed(group: Array, log_ratio: Floats, overlapped: Floats, num_groups: int) -> Mask:
    """Overlapped occurrences far from the others of their kernel, beyond what contention does.

    ``log_ratio``: logarithm of the duration over what was expected. What is far goes by
    the spread of all, weighted by their overlapped time: heavy contention scatters
    widely. Of one or two occurrences the expectation itself is the middle.
    """
    if not len(log_ratio):
        return np.zeros(0, bool)
    repeated = np.bincount(group, minlength=num_groups)[group] > 2
    middle = quantile_by(group, log_ratio, 0.5, num_groups)[group]
    far = np.abs(log_ratio - np.where(repeated, middle, 0.0))
    chosen = repeated if repeated.any() else np.ones(len(far), bool)
    sigma = 1.4826 * _weighted_median(far[chosen], overlapped[chosen])
    least = np.where(repeated, _LEAST_DISTURBED, 2 * _LEAST_DISTURBED)
    found: Mask = far > np.maximum(least, _OUTLIER * sigma)
    return found


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


class Twins:
    """Twins by kernel, and what changed their durations over time; see ``find_twins``."""

    def __init__(self, runs: Runs, duration: Floats, num_groups: int) -> None:
        self._runs, self._duration = runs, duration
        self._changes: dict[int, Changes] = {}
        self.count = np.bincount(runs.group, minlength=num_groups)
        self._average()

    def _average(self) -> None:
        num_groups, group = len(self.count), self._runs.group
        level = self._duration / self.factor(self._runs)
        total = np.bincount(group, level, num_groups)
        self.alone = np.divide(
            total, self.count, out=np.full(num_groups, np.nan), where=self.count > 0
        )
        """What each kernel takes alone where ``factor`` is 1; NaN without twins."""
        self.spread: Spread = spread(group, level / self.alone[group], num_groups)

    def factor(self, runs: Runs) -> Floats:
        """How much longer each takes, alone, than at 1 GHz and without drift."""
        found = np.exp(runs.clock)
        for number, changes in self._changes.items():
            own = np.flatnonzero(runs.gpu == number)
            found[own] *= np.exp(changes.basis(runs.take(own)) @ changes.coefficients)
        return found

    @property
    def median(self) -> Floats:
        """Median duration of each kernel's twins, as it was; NaN without."""
        return quantile_by(self._runs.group, self._duration, 0.5, len(self.count))

    @property
    def changed(self) -> bool:
        """Whether anything was divided out but the clock of each run."""
        return bool(self._changes)

    @property
    def drift(self) -> float:
        """Highest over lowest drift that was divided out, less 1; 0 without."""
        spans = [
            float(np.ptp(changes.coefficients[: len(changes.knots)]))
            for changes in self._changes.values()
            if len(changes.knots)
        ]
        return float(np.expm1(max(spans, default=0.0)))

    @property
    def clock_powers(self) -> Floats:
        """The fitted powers of the clock, of all GPUs and families; empty without telemetry."""
        return np.concatenate(
            [np.zeros(0)] + [1 + c.coefficients[len(c.knots) :] for c in self._changes.values()]
        )

    def follow_changes(self, *, drift: bool) -> None:
        """Fit how each GPU's durations follow its clock, and drift where it stands out."""
        if not self._runs.group.size or np.isnan(self.spread.variance).all():
            return
        for number in np.unique(self._runs.gpu).tolist():
            own = np.flatnonzero(self._runs.gpu == number)
            changes = self._fitted(own[self.count[self._runs.group[own]] > 1], drift)
            if changes is not None:
                self._changes[number] = changes
        if self._changes:
            self._average()

    def _fitted(self, own: Array, drift: bool) -> Changes | None:
        """The changes of one GPU, by its kernels that ran alone more than once."""
        runs, nothing = self._runs.take(own), np.zeros(0)
        level = self._duration[own] / np.exp(runs.clock)
        log = np.log(level / self.alone[runs.group])
        plain = Changes(nothing, np.unique(runs.family[runs.clock != 0]), nothing)
        wider = plain
        num_knots = min(_MOST_KNOTS, own.size // _PER_KNOT)
        if drift and num_knots >= 2:
            knots = np.unique(np.quantile(runs.time, np.linspace(0, 1, num_knots)))
            wider = plain._replace(knots=knots) if len(knots) >= 2 else plain
        # How much durations vary, if nothing is assumed of the clock.
        free = System(runs.group, wider.basis(runs), wider.stiffness(0.0))
        num = wider.num_coefficients
        freedom = len(own) - free.num_groups - num
        freely = free.fit(log)
        variance = freely[1] / freedom if freedom > num else self._variance
        coefficients, before = plain.fitted(runs, log, variance)
        if wider is not plain:
            # Without telemetry nothing is assumed beforehand: that is the free fit.
            fitted, after = wider.fitted(runs, log, variance) if wider.families.size else freely
            if stands_out(before, after, len(wider.knots) - 1, freedom):
                return wider._replace(coefficients=centred(fitted, wider.knots, runs.time))
        return plain._replace(coefficients=coefficients) if plain.num_coefficients else None

    @property
    def _variance(self) -> float:
        """Mean relative variance of all kernels."""
        return float(np.nanmean(self.spread.variance))

    def carried(self, runs: Runs, weights: Floats) -> Parts:
        """Variances that the twins bring to ``sum(weights * relative error of what is predicted)``.

        ``weights`` is ``(n, m)`` for the ``n`` predictions of ``runs``. The strata are the
        kernels, and what was assumed of the clock.
        """
        num_groups, m = len(self.count), weights.shape[1]
        by_group = np.zeros((num_groups, m))
        np.add.at(by_group, runs.group, weights)
        variance = np.nan_to_num(self.spread.variance)
        share = by_group**2 / np.maximum(self.count, 1)[:, None]
        parts, assumed = share * variance[:, None], np.zeros((1, m))
        for number, changes in self._changes.items():
            mine = np.flatnonzero(self._runs.gpu == number)
            own = np.flatnonzero(runs.gpu == number)
            groups, local = np.unique(self._runs.group[mine], return_inverse=True)
            stiffness = changes.stiffness(self._variance)
            system = System(local.reshape(-1), changes.basis(self._runs.take(mine)), stiffness)
            by_change = changes.basis(runs.take(own)).T @ weights[own]
            effect, prior = system.influence(by_group[groups], by_change)
            parts[groups] = 0.0
            group = self._runs.group[mine]
            np.add.at(parts, group, effect**2 * variance[group][:, None])
            assumed += (prior**2).sum(0) * CLOCK_POWER_ERROR**2
        return Parts(np.concatenate([parts, assumed]), np.append(self.spread.freedom, np.inf))


def find_twins(runs: Runs, duration: Floats, num_groups: int) -> tuple[Twins, Mask, Mask]:
    """The twins among occurrences that ran alone.

    Returns them, which occurrences are outliers, and for each group whether its twins
    disagree so much that they cannot be the same work (such a group has no twins).
    """
    # Whether durations follow the clock is not known yet: either way will do.
    far, disagree = _odd(runs.group, duration, num_groups)
    if runs.clock.any():
        ways = _odd(runs.group, duration / np.exp(runs.clock), num_groups)
        far, disagree = far & ways[0], disagree & ways[1]
    kept = ~far & ~disagree[runs.group]
    return Twins(runs.take(kept), duration[kept], num_groups), far, disagree


def _odd(group: Array, duration: Floats, num_groups: int) -> tuple[Mask, Mask]:
    """Which occurrences are outliers, and the twins of which groups disagree."""
    low, middle, high = quantiles_by(group, duration, (0.25, 0.5, 0.75), num_groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        disagree = (high - low) / middle > _DISAGREE
        return outliers(group, np.log(duration / middle[group]), num_groups), disagree
