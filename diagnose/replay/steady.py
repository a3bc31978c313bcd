"""The step time that a model settles at when its steps repeat.

A recording is a few steps, in which the host may be far ahead of the GPU: a change that
makes the GPU faster meets the host only many steps later. So the replayed steps are
repeated, each pass going on where the one before ended, until the time per pass no
longer changes. Where queues advance at different rates, a later pass is reached at once:
as long as every dependency binds or leaves room as it does now, each moment moves by the same
amount from pass to pass, and the first dependency that would change is known. (This is
the power algorithm of max-plus algebra, whose limit is the largest mean of a circle of
dependencies: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.replay._scan import NEVER
from diagnose.replay.execute import Execution, prepared
from diagnose.replay.model import Array, Model

MAX_PASSES = 40
"""Passes after which the mean of the last half is taken: then no rhythm was found."""
SAME = 1e-4
"""Of the time of a pass: advances that differ by no more are the same."""
MAX_PERIOD = 4
"""Longest rhythm looked for, in passes."""
FOR_EVER = 1_000
"""Passes ahead that nothing is looked for: no job's step time is that of so many steps later."""


class Steady(NamedTuple):
    """Times per step, once settled."""

    step_ns: npt.NDArray[np.float64]
    """Per GPU, shape (gpus,). NaN: a GPU without replayed work."""
    settled: bool
    """Whether the last passes took equal times. Otherwise their mean was taken."""
    num_passes: int

    @property
    def slowest_ns(self) -> float:
        """Of the slowest GPU: the job's. NaN if no GPU has work."""
        known = self.step_ns[~np.isnan(self.step_ns)]
        return float(known.max()) if known.size else float("nan")


def steady(model: Model) -> Steady | Unavailable:
    """The step time of each GPU when the replayed steps repeat for ever."""
    execution = prepared(model)
    return execution if isinstance(execution, Unavailable) else settle(model, execution)


def settle(model: Model, execution: Execution) -> Steady:
    """The same, for a model that was prepared."""
    repetition = _Repetition(model, execution)
    history: list[Array] = []
    steps: list[npt.NDArray[np.float64]] = []
    for turn in range(1, MAX_PASSES + 1):
        history = [*history, repetition.next_pass(history)][-repetition.kept :]
        if turn > 1:
            steps.append(repetition.per_gpu(history[-1]) - repetition.per_gpu(history[-2]))
        rhythm = repetition.rhythm(history)
        if rhythm is None:
            continue
        times = repetition.until_change(history, rhythm)
        if times > FOR_EVER:
            advance = rhythm.advance / rhythm.period
            return Steady(repetition.per_gpu(advance), True, turn)
        # Where it goes on from there is known for every pass that is looked back at.
        history = [moment + times * rhythm.advance for moment in history]
    return Steady(np.mean(steps[len(steps) // 2 :], axis=0), False, MAX_PASSES)


class Rhythm(NamedTuple):
    """From each pass to the one ``period`` later every moment moves by ``advance``, by slot."""

    period: int
    advance: Array


class _Repetition:
    """Passes over one model, each on the ground of those before."""

    def __init__(self, model: Model, execution: Execution) -> None:
        self._model, self._execution = model, execution
        passes = execution.schedule.past_passes
        self._memory = 1 + max(1, int(passes.max(initial=0)))
        """How many passes in a row must keep a rhythm before it is trusted."""
        self.kept = self._memory + MAX_PERIOD
        """How many passes are looked back at."""

    def next_pass(self, history: list[Array]) -> Array:
        """The moments of the next pass, by slot."""
        schedule, scan = self._execution.schedule, self._execution.scan
        bound = np.full(schedule.slot.size, NEVER, np.int64)
        heads = schedule.queue_head
        bound[heads] = 0
        if history:
            bound[heads] = history[-1][schedule.queue_last] + scan.step[heads]
        for back in np.unique(schedule.past_passes).tolist():
            if back <= len(history):
                which = schedule.past_passes == back
                ready = history[-back][schedule.past_of[which]] + scan.past[which]
                np.maximum.at(bound, schedule.past_to[which], ready)
        return scan.run(bound)

    def rhythm(self, history: list[Array]) -> Rhythm | None:
        """The shortest rhythm that all recent passes kept; None: there is none yet."""
        for period in range(1, MAX_PERIOD + 1):
            if len(history) < self._memory + period:
                break
            advance = history[-1] - history[-1 - period]
            most = int(SAME * period * advance.max(initial=0))
            if all(
                np.abs(history[-back] - history[-back - period] - advance).max(initial=0) <= most
                for back in range(2, self._memory + 1)
            ):
                return Rhythm(period, advance)
        return None

    def until_change(self, history: list[Array], rhythm: Rhythm) -> int:
        """Turns of the rhythm in which no dependency begins to bind that does not now.

        Above FOR_EVER: it goes on for ever, or as good as.
        """
        schedule, scan = self._execution.schedule, self._execution.scan
        before = np.arange(-1, schedule.slot.size - 1)
        before[schedule.head] = schedule.head_before
        inner = np.ones(before.size, bool)
        inner[schedule.queue_head] = False
        inner = np.flatnonzero(inner)
        heads, lasts = schedule.queue_head, schedule.queue_last
        target = np.repeat(schedule.target, np.diff(schedule.first_tie))
        ways = [
            (before[inner], inner, scan.step[inner], 0),
            (lasts, heads, scan.step[heads], 1),
            (schedule.tie_of, target, scan.tie, 0),
        ]
        for back in np.unique(schedule.past_passes).tolist():
            which = schedule.past_passes == back
            ways.append((schedule.past_of[which], schedule.past_to[which], scan.past[which], back))
        turns, least = FOR_EVER + 1, 2 * SAME * rhythm.advance.max(initial=0)
        for of, to, weight, back in ways:
            closing = rhythm.advance[of] - rhythm.advance[to]
            some = np.flatnonzero(closing > least)
            if not some.size:
                continue
            of, to, weight, closing = of[some], to[some], weight[some], closing[some]
            for phase in range(1, rhythm.period + 1):
                earlier = history[-phase - back]
                slack = history[-phase][to] - earlier[of] - weight
                turns = min(turns, int((np.maximum(slack, 0) // closing).min()))
        return turns

    def per_gpu(self, advance: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
        """The latest of the operations' values on each GPU, per step. By slot to (gpus,).

        Of advances: in the long run its slowest queue is the GPU's step.
        """
        model = self._model
        slots = self._execution.schedule.slot[self._execution.points.op_last]
        step = np.full(len(model.trace.gpus), -np.inf)
        np.maximum.at(step, model.operations.gpu, advance[slots] / model.num_steps)
        return np.where(np.isfinite(step), step, np.nan)
