"""When everything in a model happens: as early as its definition (``model``) allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay._points import Points, Weights, points_of, weights_of
from diagnose.replay._scan import NEVER, Scan
from diagnose.replay._schedule import ContradictoryOrderError, Schedule, schedule_of
from diagnose.replay.model import Array, Entries, Model

CIRCLE = Unavailable(
    "after these changes some work would have to wait for itself",
    "apply fewer changes at a time: two of them order the same work differently",
)


class Times(NamedTuple):
    """int64 ns from the origin of ``Model.entries``; operations (ops,), calls (calls,)."""

    begin_ns: Array
    """Of an operation, before it waits for the other members of its collective."""
    end_ns: Array
    start_ns: Array
    return_ns: Array


class Execution(NamedTuple):
    """A model made ready to be executed, once or pass after pass."""

    points: Points
    weights: Weights
    schedule: Schedule
    scan: Scan

    def reweighted(self, model: Model) -> Execution:
        """The same for a model that differs from this one's in durations, work and lags only."""
        weights = weights_of(model, self.points)
        return self._replace(weights=weights, scan=Scan(self.schedule, weights))


def prepared(model: Model) -> Execution | Unavailable:
    """What is worked out once for a model. Unavailable: its dependencies lead in a circle."""
    points = points_of(model)
    try:
        schedule = schedule_of(points)
    except ContradictoryOrderError:
        return CIRCLE
    weights = weights_of(model, points)
    return Execution(points, weights, schedule, Scan(schedule, weights))


def execute(model: Model) -> Times | Unavailable:
    """One pass over the replayed steps, from what they found when they began.

    That is ``Model.entries``; a queue without one begins at 0. What is left out is what
    ``steps_ahead`` says of earlier passes.
    """
    execution = prepared(model)
    if isinstance(execution, Unavailable):
        return execution
    return times_of(model, execution, execution.scan.run(first_bounds(model, execution)))


def first_bounds(model: Model, execution: Execution) -> Array:
    """The least moment of each slot in the first pass."""
    points, schedule = execution.points, execution.schedule
    bound = np.full(points.num, NEVER, np.int64)
    entries: Entries = model.entries
    node = np.concatenate([points.op_first, points.call_first, points.call_last])
    np.maximum.at(bound, schedule.slot[node[entries.node]], entries.moment_ns)
    heads = schedule.queue_head
    bound[heads] = np.where(bound[heads] == NEVER, 0, bound[heads])
    return bound


def times_of(model: Model, execution: Execution, moment: Array) -> Times:
    """The moments of slots, as times of operations and calls."""
    points, slot = execution.points, execution.schedule.slot
    start, back = moment[slot[points.call_first]], moment[slot[points.call_last]]
    return Times(
        moment[slot[points.op_first]],
        moment[slot[points.op_last]] + model.operations.duration_ns,
        start,
        np.where(model.calls.waits, back, start + model.calls.call_ns),
    )
