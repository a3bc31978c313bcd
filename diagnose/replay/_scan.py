"""The moments of all points, by a running maximum over each level of a schedule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.replay._points import Weights
from diagnose.replay._schedule import Schedule
from diagnose.replay.model import Array

NEVER = -(2**60)
"""Earlier than any moment; far enough from the end of int64 to be added to."""
_FEW = 8
"""Points a level below which a plain loop over the points is faster (measured: a level costs
about 5 us in numpy calls, a point 0.6 us in a loop)."""


class Scan:
    """Finds the moments under one set of weights, pass after pass."""

    def __init__(self, schedule: Schedule, weights: Weights) -> None:
        self._schedule = schedule
        num = schedule.slot.size
        self.step = np.empty(num, np.int64)
        """``Weights.step`` by slot."""
        self.step[schedule.slot] = weights.step
        self.tie = weights.tie[schedule.tie]
        self.past = weights.tie[schedule.past_tie]
        reach = int(np.abs(weights.step).sum() + np.abs(weights.tie).sum()) + 1
        self._reach = reach
        many = int(schedule.run.max(initial=0)) + 1
        self._loops = num < _FEW * schedule.num_levels or 16 * reach * many > -NEVER
        self._sum = np.cumsum(self.step)
        self._into = _into(schedule)

    def run(self, release: Array) -> Array:
        """The moments by slot. ``release``: none may be earlier (``NEVER``: no bound).

        Every queue's first slot needs a bound. ``release`` is used up.
        """
        return self._by_point(release) if self._loops else self._by_level(release)

    def _by_level(self, moment: Array) -> Array:
        # Within a run moments less the steps up to them never fall, so a running maximum
        # finds them; an offset tells runs apart. All is done in these shifted moments.
        schedule, into = self._schedule, self._into
        heads = schedule.queue_head
        first = int(moment[heads].min()) if heads.size else 0
        moment -= first  # keeps numbers small
        span = self._reach + int(moment.max(initial=0)) + 1
        offset = self._sum - schedule.run * (4 * span)
        moment -= offset
        weight = np.concatenate([self.tie, self.step[schedule.head]])[into.order]
        weight += offset[into.of]
        weight -= offset[into.to]
        of, target, begin, least = into.of, into.target, into.begin, moment[into.target]
        latest_of, larger, running = np.maximum.reduceat, np.maximum, np.maximum.accumulate
        for low, high, t0, t1, e0, e1 in into.levels:
            if t1 > t0:
                ready = moment.take(of[e0:e1])
                ready += weight[e0:e1]
                if e1 - e0 > t1 - t0:
                    ready = latest_of(ready, begin[t0:t1])
                moment[target[t0:t1]] = larger(ready, least[t0:t1], out=ready)
            if high - low > 1:
                here = moment[low:high]
                running(here, out=here)
        moment += offset
        moment += first
        return moment

    def _by_point(self, bound: Array) -> Array:
        schedule = self._schedule
        moment, step = bound.tolist(), self.step.tolist()
        before = np.arange(-1, bound.size - 1)
        before[schedule.head] = schedule.head_before
        before[schedule.queue_head] = -1
        previous = before.tolist()
        first = np.zeros(bound.size + 1, np.int64)
        first[schedule.target + 1] = np.diff(schedule.first_tie)
        begin = np.cumsum(first).tolist()
        tie_of, tie = schedule.tie_of.tolist(), self.tie.tolist()
        low = 0
        for slot, ahead in enumerate(previous):
            now = moment[slot]
            if ahead >= 0:
                after = moment[ahead] + step[slot]
                if after > now:
                    now = after
            high = begin[slot + 1]
            while low < high:
                ready = moment[tie_of[low]] + tie[low]
                if ready > now:
                    now = ready
                low += 1
            moment[slot] = now
        return np.array(moment, np.int64)


class _Into(NamedTuple):
    """What leads to slots from earlier levels: ties, and the slot before in the queue."""

    order: Array
    """Of the ties and then the ``Schedule.head`` s; the next two are in this order."""
    of: Array
    to: Array
    target: Array
    """Slots that something leads to, each once, rising."""
    begin: Array
    """Where what leads to each target begins, from the first of its level."""
    levels: list[tuple[int, int, int, int, int, int]]
    """Of each level its slots, targets, and what leads to them: begin and end."""


def _into(schedule: Schedule) -> _Into:
    tied = np.repeat(schedule.target, np.diff(schedule.first_tie))
    to = np.concatenate([tied, schedule.head])
    order = np.argsort(to, kind="stable")
    to = to[order]
    of = np.concatenate([schedule.tie_of, schedule.head_before])[order]
    is_first = np.ones(to.size, bool)
    is_first[1:] = to[1:] != to[:-1]
    begin = np.flatnonzero(is_first)
    target = to[begin]
    targets = np.searchsorted(target, schedule.slots)
    entries = np.append(begin, to.size)[targets]
    columns = [
        column.tolist()
        for bounds in (schedule.slots, targets, entries)
        for column in (bounds[:-1], bounds[1:])
    ]
    within = begin - np.repeat(entries[:-1], np.diff(targets))
    return _Into(order, of, to, target, within, list(zip(*columns, strict=True)))
