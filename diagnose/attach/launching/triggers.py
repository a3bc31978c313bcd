"""When a window is due. Pure: fed with steps and their times, they answer with a decision."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Due:
    """A window to record now. ``at_step`` None: as soon as can be."""

    at_step: int | None
    reason: str


@dataclass(frozen=True)
class Interval:
    """The host time between two optimizer steps, of which ``step`` is the later."""

    step: int
    duration_ns: int


class Trigger(Protocol):
    """Decides on windows from what one rank's steps say."""

    def observe(self, intervals: Sequence[Interval]) -> Due | None:
        """Take in new intervals, oldest first; answer if a window is due."""

    def recorded(self, first_step: int, last_step: int) -> None:
        """A window of these steps was recorded: their times are not the job's own."""


class Schedule:
    """Windows at fixed step numbers, the same on every host that counts the same steps.

    ``every`` N: at each multiple of N; ``at``: at these steps. A window needs
    ``prepare_s`` of time before it (the agents are found, armed and told), and what
    is not asked for now is asked for ``poll_s`` later. A multiple that cannot be met
    any more is passed over; a step of ``at`` is made up for as soon as can be.
    """

    def __init__(
        self,
        *,
        every: int | None = None,
        at: Sequence[int] = (),
        prepare_s: float = 2.0,
        poll_s: float = 1.0,
    ) -> None:
        self._every = every
        self._at = sorted(at)
        self._prepare_s = prepare_s
        # A poll may come late, on a host that has other things to do.
        self._ahead_s = prepare_s + 2 * poll_s
        self._recent: deque[int] = deque(maxlen=20)
        self._last = 0
        self._asked = 0

    def observe(self, intervals: Sequence[Interval]) -> Due | None:
        for interval in intervals:
            if interval.step < self._last:  # the job was restarted and counts anew
                self._recent.clear()
                self._asked = 0
            self._last = interval.step
            self._recent.append(interval.duration_ns)
        if not self._recent:
            return None
        step_ns = max(1, statistics.median(self._recent))
        earliest = self._last + math.ceil(self._prepare_s * 1e9 / step_ns) + 1
        latest = self._last + math.ceil(self._ahead_s * 1e9 / step_ns) + 1
        due = self._fixed(earliest, latest) or self._repeated(earliest, latest)
        if due is not None and due.at_step is not None:
            self._asked = due.at_step
        return due

    def recorded(self, first_step: int, last_step: int) -> None:
        del first_step  # the steps between two windows are enough
        self._recent.clear()
        self._asked = max(self._asked, last_step)

    def _fixed(self, earliest: int, latest: int) -> Due | None:
        if not self._at or self._at[0] > latest:
            return None
        wanted = self._at.pop(0)
        if wanted >= earliest:
            return Due(wanted, f"step {wanted}")
        return Due(None, f"step {wanted} comes too soon to be prepared at step {self._last}")

    def _repeated(self, earliest: int, latest: int) -> Due | None:
        if self._every is None:
            return None
        after = max(earliest, self._asked + 1)
        target = math.ceil(after / self._every) * self._every
        if target <= latest:
            return Due(target, f"step {target}, a multiple of {self._every}")
        return None


class AfterSteps:
    """One window, as soon as so many steps are over."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._fired = False

    def observe(self, intervals: Sequence[Interval]) -> Due | None:
        if self._fired or not intervals or intervals[-1].step < self._steps:
            return None
        self._fired = True
        return Due(None, f"{self._steps} steps of warming up are over")

    def recorded(self, first_step: int, last_step: int) -> None:
        """Nothing follows."""


class OnSlow:
    """A window when steps have become slower than usual, by at least ``percent``.

    "Usual" is the median of the last ``baseline`` steps that were not slow, "now" the
    median of the last ``recent`` steps: one long step (a checkpoint, an evaluation) never
    decides, nor do two. The first ``warm_up`` steps (compilation, autotuning, caches)
    never count. After a window the next one waits until the steps have recovered half
    of the way, and at least ``cool_down`` steps; where they stay slow for ``cool_down``
    steps, that becomes the new usual.
    """

    def __init__(
        self,
        percent: float,
        *,
        recent: int = 5,
        baseline: int = 200,
        least_baseline: int = 20,
        warm_up: int = 20,
        cool_down: int = 200,
    ) -> None:
        self._percent = percent
        self._now: deque[int] = deque(maxlen=recent)
        self._usual: deque[int] = deque(maxlen=baseline)
        self._least = least_baseline
        self._warm_up = warm_up
        self._cool_down = cool_down
        self._fired_at: int | None = None
        self._recovered = False
        self._first = self._last = 0
        self._ours = (0, 0)

    def observe(self, intervals: Sequence[Interval]) -> Due | None:
        due = None
        for interval in intervals:
            due = self._one(interval) or due
        return due

    def recorded(self, first_step: int, last_step: int) -> None:
        self._ours = (first_step, last_step)
        self._now.clear()

    def _one(self, interval: Interval) -> Due | None:
        step, duration = interval.step, interval.duration_ns
        if not self._first or step <= self._last:  # the first, or the job counts anew
            self._begin(step)
        self._last = step
        if step - self._first < self._warm_up or self._ours[0] <= step <= self._ours[1] + 1:
            return None
        if len(self._now) == self._now.maxlen:
            oldest = self._now[0]
            if self._fired_at is None and not self._slow(oldest, 1.0):
                self._usual.append(oldest)
        self._now.append(duration)
        if len(self._now) < (self._now.maxlen or 0):
            return None
        return self._judge(step)

    def _begin(self, step: int) -> None:
        self._first = step
        self._now.clear()
        self._usual.clear()
        self._fired_at = None
        self._ours = (0, 0)

    def _slow(self, duration_ns: float, share: float) -> bool:
        if len(self._usual) < self._least:
            return False
        return duration_ns > statistics.median(self._usual) * (1 + share * self._percent / 100)

    def _judge(self, step: int) -> Due | None:
        now = statistics.median(self._now)
        if self._fired_at is not None:
            self._recovered = self._recovered or not self._slow(now, 0.5)
            if step - self._fired_at < self._cool_down:
                return None
            self._fired_at = None
            if not self._recovered:
                self._usual.clear()
        if not self._slow(now, 1.0):
            return None
        self._fired_at, self._recovered = step, False
        usual = statistics.median(self._usual)
        return Due(
            None,
            f"steps take {now / 1e6:.1f} ms, {100 * (now / usual - 1):.0f} % more than the usual "
            f"{usual / 1e6:.1f} ms",
        )
