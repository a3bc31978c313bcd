"""The recorded operations and calls of the replayed steps, in queues, on one clock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.replay._host_work import threads_of
from diagnose.replay._window import OUTSIDE, Window
from diagnose.replay.model import Array, Mask
from diagnose.schema import NO_ROW, Call
from diagnose.timeline.step_times import of_source
from diagnose.trace import Trace


class Queues(NamedTuple):
    """Things in queues (operations in streams, or calls in threads): one row each, all of
    the part of the trace that was kept, also from before the replayed steps.

    ``row`` is a row of ``gpu_ops`` or ``launches``, sorted by (queue, begin).
    """

    row: Array
    queue: Array
    step: Array
    """The replayed step, from 0; below: an earlier one; OUTSIDE: not known."""
    begin_ns: Array
    end_ns: Array
    before: Array
    """Index of the one before it in the queue; -1: none."""
    number: Array
    """Its number in the model; -1: not in the replayed steps."""

    @property
    def chosen(self) -> Array:
        """Indices of those in the model, in the order of their numbers."""
        return np.flatnonzero(self.number >= 0)

    def index_of(self, num_rows: int) -> Array:
        """The index of each row of the table; -1: not in a queue."""
        index = np.full(num_rows + 1, NO_ROW, np.int64)
        index[self.row] = np.arange(self.row.size)
        return index

    def counterpart(self, index: Array, num_steps: int) -> Array:
        """What does in the last replayed step as ``index`` did in the step before the first.

        The same number of places before the end of the step in its queue; the number in
        the model, -1 where there is no such one.
        """
        num = self.row.size
        first = np.full(int(self.queue.max(initial=-1)) + 2, num)
        chosen = self.chosen
        np.minimum.at(first, self.queue[chosen], chosen)
        last_step = np.flatnonzero(self.step == num_steps - 1)
        count = np.bincount(self.queue[last_step], minlength=first.size)
        end = np.zeros(first.size, np.int64)
        np.maximum.at(end, self.queue[chosen], chosen + 1)
        queue = self.queue[index]
        back = first[queue] - index
        at = end[queue] - back
        fits = (back > 0) & (back <= count[queue]) & (self.number[index] < 0)
        return np.where(fits, self.number[np.where(fits, at, 0)], NO_ROW)


def _queued(
    row: Array, queue: Array, step: Array, begin: Array, end: Array, replayed: Mask
) -> Queues:
    order = np.lexsort((np.arange(row.size), begin, queue))
    row, queue, step, begin, end = (a[order] for a in (row, queue, step, begin, end))
    before = np.arange(-1, row.size - 1)
    if row.size:
        before[np.append(True, queue[1:] != queue[:-1])] = NO_ROW
    inside = replayed[order]
    return Queues(
        row, queue, step, begin, end, before, np.where(inside, np.cumsum(inside) - 1, NO_ROW)
    )


def step_of_calls(trace: Trace, window: Window) -> Array:
    """The replayed step of each call: that of the last mark that began before it.

    What is called between two marks belongs to the first; after the last, to none.
    """
    calls, steps = trace.launches, trace.steps
    step = np.full(len(calls), OUTSIDE, np.int64)
    for source in np.unique(calls["source"]).tolist():
        marks, rows = of_source(steps, source), of_source(calls, source)
        if marks.stop == marks.start:
            continue
        start = calls["start_ns"][rows]
        at = np.searchsorted(steps["start_ns"][marks], start, side="right") - 1
        inside = (at >= 0) & (start < steps["end_ns"][marks].max())
        step[rows] = np.where(inside, window.step_of[marks][np.maximum(at, 0)], OUTSIDE)
    return step


def queues_of(trace: Trace, graph: DependencyGraph, window: Window) -> tuple[Queues, Queues]:
    """Operations by stream, and by thread the calls that launch work, wait or allocate."""
    ops, calls, num_ops = trace.gpu_ops, trace.launches, graph.num_ops
    call_step = step_of_calls(trace, window)
    launch = ops["launch_row"]
    op_step = np.where(launch >= 0, np.append(call_step, OUTSIDE)[launch], OUTSIDE)
    stream = _dense(ops["source"], ops["device"], ops["stream"])
    every = np.arange(num_ops)
    operations = _queued(
        every, stream, op_step, graph.start_ns[:num_ops], graph.end_ns[:num_ops], op_step >= 0
    )
    used = graph.is_wait[num_ops : num_ops + len(calls)] | (calls["call"] == Call.ALLOCATE)
    used[launch[launch >= 0]] = True
    rows = np.flatnonzero(used)
    thread, _ = threads_of(trace)
    host = _queued(
        rows,
        thread[rows],
        call_step[rows],
        graph.start_ns[num_ops + rows],
        graph.end_ns[num_ops + rows],
        call_step[rows] >= 0,
    )
    return operations, host


def _dense(*columns: Array) -> Array:
    dense = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        dense = dense * max(values.size, 1) + codes.reshape(-1)
    return np.unique(dense, return_inverse=True)[1].reshape(-1).astype(np.int64)
