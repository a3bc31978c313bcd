"""What the tables are made of: each compute kernel, what it takes alone, the estimates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from diagnose.contention._changes import Runs
from diagnose.contention._clock import Clocks
from diagnose.contention._occurrences import Floats, Mask, Occurrences
from diagnose.contention._rates import Estimate, Parts, Sample, Spread, rates
from diagnose.contention._twins import Twins
from diagnose.intervals import Array


class Fate(IntEnum):
    """What became of a compute kernel."""

    ALONE = 0
    """Beside no communication."""
    PAIRED = 1
    """Overlapped, and the same kernel ran alone: it is compared."""
    NO_TWIN = 2
    """Overlapped, and the same kernel never ran alone."""
    CROWDED = 3
    """Other compute ran beside it as well: slower for two reasons."""
    TWINS_DISAGREE = 4
    """Its twins' durations differ too much to be the same work."""
    OUTLIER = 5
    """Far from all others of its kernel."""
    UNCLEAR = 6
    """Its input shapes were not recorded, and others of its name have several."""
    OTHER_COMPANY = 7
    """Another rank on the same GPU computed beside it, but not beside its twins, or the reverse."""


class Split(NamedTuple):
    """Paired kernels, divided among the rows of a table."""

    rows: Array
    """Which compute kernels."""
    shares: Floats
    """``(n, m)``: how much each counts for each row of the table; at most 1 in all."""
    beside: Floats
    """``(n, m)``: its time beside communication that belongs to each, ns."""


@dataclass(frozen=True)
class Measured:
    """Everything the tables are made of. Arrays have one entry per compute kernel."""

    seen: Occurrences
    twins: Twins
    fate: Array
    exposure: Floats
    """``(n, classes)``."""
    alone: Floats
    """Nanoseconds that each would have taken alone at its time; NaN where unknown."""
    stratum: Array
    """Of each that is paired: its kernel and the class that most of it was beside; else -1."""
    noise: Spread
    """Of each stratum: how much work differs from what was expected, relative to that."""
    whole_noise: Spread
    """Of each stratum: how much durations vary, relative to what the kernel takes alone."""
    runs: Runs
    clocks: Clocks
    step_row: Array
    """Row of ``steps`` in which each was launched, or -1."""

    @property
    def changes_divided(self) -> bool:
        """Whether changes of the clock or a drift were divided out of any kernel's time."""
        return self.twins.changed or bool(self.runs.clock.any())

    @property
    def paired(self) -> Array:
        return np.flatnonzero(self.fate == Fate.PAIRED)

    @property
    def overlapped(self) -> Floats:
        """Time beside any communication."""
        found: Floats = self.seen.beside.sum(1).astype(np.float64)
        return found

    @property
    def is_overlapped(self) -> Mask:
        """Which kernels count as overlapped: beside communication, or expected to be.

        The latter ran shorter than expected; to leave them out would make the others slow.
        """
        beside: Mask = self.seen.beside.sum(1) > 0
        found: Mask = (beside & (self.fate != Fate.ALONE)) | (self.fate == Fate.PAIRED)
        return found

    def by_label(self, rows: Array, label: Array, num_labels: int) -> Split:
        """The paired ``rows``, each under one label."""
        shares = np.zeros((len(rows), num_labels))
        shares[np.arange(len(rows)), label] = 1.0
        return Split(rows, shares, shares * self.overlapped[rows][:, None])

    def by_class(self, rows: Array) -> Split:
        """The paired ``rows``, divided among the classes of communication."""
        return Split(rows, self.exposure[rows], self.seen.beside[rows].astype(np.float64))

    def rates(self, split: Split) -> Estimate:
        """How fast work goes beside communication, 1 being as fast as alone."""
        alone = self.alone[split.rows]
        free = self.seen.duration[split.rows] - self.overlapped[split.rows]
        rate, inverse = rates(Sample(alone, free, split.beside, split.shares))
        weights = (split.shares @ inverse.T) * alone[:, None]
        return self._with_interval(rate, split, weights, weights, self.noise)

    def ratios(self, split: Split) -> Estimate:
        """Whole duration over what the kernels take alone, sums over the paired."""
        alone = split.shares * self.alone[split.rows][:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = (split.shares.T @ self.seen.duration[split.rows]) / alone.sum(0)
            weights = alone / alone.sum(0)
        weights = np.nan_to_num(weights)
        return _positive(
            self._with_interval(
                ratio, split, weights * np.nan_to_num(ratio), weights, self.whole_noise
            )
        )

    def cost(self, split: Split) -> Estimate:
        """Time of the paired beyond what they would have taken alone, ns, summed.

        What is uncertain is how long each would have taken: its twins' mean, and how it
        would have varied around that itself.
        """
        alone = self.alone[split.rows]
        total = split.shares.T @ (self.seen.duration[split.rows] - alone)
        weights = split.shares * alone[:, None]
        return self._with_interval(total, split, weights, weights, self._twin_noise)

    def _with_interval(
        self, value: Floats, split: Split, of_twins: Floats, of_own: Floats, noise: Spread
    ) -> Estimate:
        """The value with its interval.

        The weights ``(n, m)`` say how a relative error of what each kernel takes alone
        moves the values, and how one of what it did.
        """
        if not self.has_noise:
            unknown = np.full(value.shape, np.nan)
            return Estimate(value, unknown, unknown)
        twins = self.twins.carried(self.runs.take(split.rows), of_twins)
        own = np.zeros((len(noise.variance), of_own.shape[1]))
        stratum = self.stratum[split.rows]
        variance = np.nan_to_num(noise.variance)
        np.add.at(own, stratum, of_own**2 * variance[stratum][:, None])
        reach = Parts(
            np.concatenate([twins.variance, own]),
            np.concatenate([twins.freedom, noise.freedom]),
        ).reach
        return Estimate(value, value - reach, value + reach)

    @property
    def _twin_noise(self) -> Spread:
        """Of each stratum: how much its kernel varies when it runs alone."""
        group = np.zeros(len(self.noise.variance), np.int64)
        rows = self.paired
        group[self.stratum[rows]] = self.seen.group[rows]
        return Spread(self.twins.spread.variance[group], self.twins.spread.freedom[group])

    @property
    def has_noise(self) -> bool:
        """Whether repeated kernels told how much durations vary; else there is no interval."""
        return bool(
            np.isfinite(self.twins.spread.variance).any() and np.isfinite(self.noise.variance).any()
        )

    def per_kernel(self) -> tuple[Estimate, Estimate, Estimate]:
        """Rate, ratio of durations and cost of each group of kernels.

        As ``rates``, ``ratios`` and ``cost``, for thousands of kernels at once: what they
        share, the error of the drift and of the clock, is left out of the intervals.
        """
        rows, num = self.paired, self.seen.num_groups
        group, alone = self.seen.group[rows], self.alone[rows]
        took, beside = self.seen.duration[rows].astype(np.float64), self.overlapped[rows]
        total: dict[str, Floats] = {
            name: np.bincount(group, values, num).astype(np.float64)
            for name, values in (("alone", alone), ("took", took), ("beside", beside))
        }
        lost = total["took"] - total["alone"]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio: Floats = total["took"] / total["alone"]
            rate: Floats = 1 - lost / total["beside"]
            twins = self.twins.spread.variance / self.twins.count
        stratum = self.stratum[rows]

        def around(value: Floats, scale: Floats, of_twins: Floats, noise: Spread) -> Estimate:
            with np.errstate(invalid="ignore", divide="ignore"):
                weight = (alone / scale[group]) ** 2
                own = np.bincount(group, weight * noise.variance[stratum], num)
                of_all = (total["alone"] / scale * of_twins) ** 2 * twins
                freedom = np.bincount(group, noise.freedom[stratum], num) / np.bincount(
                    group, minlength=num
                )
                parts = Parts(
                    np.stack([of_all, own]), np.stack([self.twins.spread.freedom, freedom])
                )
                return Estimate(value, value - parts.reach, value + parts.reach)

        one = np.ones(num, np.float64)
        return (
            around(rate, total["beside"], one, self.noise),
            _positive(around(ratio, total["alone"], ratio, self.whole_noise)),
            around(lost, one, one, self._twin_noise),
        )


def _positive(ratio: Estimate) -> Estimate:
    """A ratio of durations cannot be negative."""
    return ratio._replace(low=np.maximum(ratio.low, 0.0))
