"""The moments of all points, by a running maximum over each level of a schedule."""

from __future__ import annotations

import numpy as np

from diagnose.replay._points import Weights
from diagnose.replay._schedule import Schedule
from diagnose.replay.model import Array

NEVER = -(2**60)
"""Earlier than any moment; far enough from the end of int64 to be added to."""
_FEW = 12
"""Points a level below which a plain loop over the points is faster (measured: a level costs
about 12 us in numpy calls, a point 0.6 us in a loop)."""


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
        self._target = schedule.target
        lengths = np.diff(schedule.targets)
        first = schedule.first_tie[schedule.targets]
        self._first = schedule.first_tie[:-1] - np.repeat(first[:-1], lengths)
        self._bounds = list(
            zip(
                schedule.slots[:-1].tolist(),
                schedule.slots[1:].tolist(),
                schedule.targets[:-1].tolist(),
                schedule.targets[1:].tolist(),
                first[:-1].tolist(),
                first[1:].tolist(),
                schedule.heads[:-1].tolist(),
                schedule.heads[1:].tolist(),
                strict=True,
            )
        )

    def run(self, release: Array) -> Array:
        """The moments by slot. ``release``: none may be earlier (``NEVER``: no bound).

        Every queue's first slot needs a bound. ``release`` is used up.
        """
        return self._by_point(release) if self._loops else self._by_level(release)

    def _by_level(self, bound: Array) -> Array:
        schedule = self._schedule
        heads = schedule.queue_head
        first = int(bound[heads].min()) if heads.size else 0
        bound -= first  # keeps numbers small: runs are told apart by an offset
        span = self._reach + int(bound.max(initial=0)) + 1
        offset = self._sum - schedule.run * (4 * span)
        head, before, tie_of = schedule.head, schedule.head_before, schedule.tie_of
        moment = np.empty(bound.size, np.int64)
        for low, high, t0, t1, e0, e1, h0, h1 in self._bounds:
            if t1 > t0:
                ready = moment[tie_of[e0:e1]]
                ready += self.tie[e0:e1]
                target = self._target[t0:t1]
                latest = np.maximum.reduceat(ready, self._first[t0:t1])
                bound[target] = np.maximum(bound[target], latest)
            if h1 > h0:
                at = head[h0:h1]
                bound[at] = np.maximum(bound[at], moment[before[h0:h1]] + self.step[at])
            here = bound[low:high]
            here -= offset[low:high]
            np.maximum.accumulate(here, out=here)
            np.add(here, offset[low:high], out=moment[low:high])
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
