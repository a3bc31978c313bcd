"""Which steps of a recording are replayed, and the part of the trace that this takes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.replay.model import Array, Mask
from diagnose.schema import NO_ROW, NULL
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Table, Trace

NO_STEPS = Unavailable(
    "no step has a time on every GPU: what repeats is not known",
    "record at least 3 steps with step marks (`diagnose attach`, or a profiler whose step() "
    "is called after every step)",
)
NO_LAUNCHES = Unavailable(
    "the recording does not say which host call launched which GPU work",
    "record with ProfilerActivity.CPU and ProfilerActivity.CUDA together",
)
STEPS_BEFORE = 1
"""Steps kept before the first replayed one: what its work waited for."""


class Window(NamedTuple):
    """The replayed steps. ``begin_ns``, ``end_ns``: (gpus,), on the clocks of the sources."""

    first_number: int
    """Position of the first replayed step among the marks of every source: see ``step_of``."""
    num_steps: int
    step_of: Array
    """For each row of ``Trace.steps`` which replayed step it is; the one before them is -1."""
    begin_ns: Array
    end_ns: Array
    """NULL on a GPU that has no step time at all."""


OUTSIDE = int(np.iinfo(np.int32).min)
"""In ``Window.step_of``: long before or after."""


def window_of(trace: Trace, max_steps: int) -> Window | Unavailable:
    """The last ``max_steps`` steps in a row that have a time on every GPU that has step times."""
    if not len(trace.launches) or not (trace.gpu_ops["launch_row"] >= 0).any():
        return NO_LAUNCHES
    number = _numbers(trace)
    timed: dict[int, dict[int, tuple[int, int]]] = {}
    for place, gpu in enumerate(trace.gpus):
        rows, times = of_source(trace.steps, gpu.source), step_times(trace, gpu)
        known = np.flatnonzero(times.end != NULL)
        if known.size:
            keys = number[rows][known].tolist()
            spans = zip(times.begin[known].tolist(), times.end[known].tolist(), strict=True)
            timed[place] = dict(zip(keys, spans, strict=True))
    if not timed:
        return NO_STEPS
    common = sorted(set.intersection(*(set(steps) for steps in timed.values())))
    if not common:
        return NO_STEPS
    last = common[-1]
    first = last
    # The step before the first one is needed too: what it hands over, each step does.
    marked = set(number.tolist())
    while first - 1 in common and first - 2 in marked and last - first + 1 < max_steps:
        first -= 1
    begin, end = np.full(len(trace.gpus), NULL), np.full(len(trace.gpus), NULL)
    for place, steps in timed.items():
        begin[place], end[place] = steps[first][0], steps[last][1]
    step_of = np.where((number >= first - STEPS_BEFORE) & (number <= last), number - first, OUTSIDE)
    return Window(first, last - first + 1, step_of, begin, end)


def _numbers(trace: Trace) -> Array:
    """The number of each step mark; counted per source where the marks have none."""
    number = trace.steps["number"].astype(np.int64).copy()
    for source in np.unique(trace.steps["source"]).tolist():
        rows = of_source(trace.steps, source)
        if (number[rows] == NULL).any():
            number[rows] = np.arange(rows.stop - rows.start)
    return number


class Part(NamedTuple):
    """A piece of a trace, and the rows of the whole that its rows were."""

    trace: Trace
    gpu_op_row: Array
    call_row: Array


def part_of(trace: Trace, window: Window) -> Part:
    """The trace of the replayed steps and the one before, as its own small trace.

    All of the recording's step marks stay: only rows of operations, calls, waits and
    collectives are left out, so that the cost does not grow with the recording.
    """
    ops, calls = trace.gpu_ops, trace.launches
    since = np.full(len(trace.sources), np.iinfo(np.int64).max)
    until = np.full(len(trace.sources), np.iinfo(np.int64).min)
    rows = np.flatnonzero(window.step_of != OUTSIDE)
    np.minimum.at(since, trace.steps["source"][rows], trace.steps["start_ns"][rows])
    np.maximum.at(until, trace.steps["source"][rows], trace.steps["end_ns"][rows])
    launched = ops["launch_row"] >= 0
    moment = ops["start_ns"].copy()
    moment[launched] = calls["start_ns"][ops["launch_row"][launched]]
    source = ops["source"]
    # What was launched earlier but runs on is what the first steps waited for.
    kept = (moment <= until[source]) & (ops["end_ns"] >= since[source])
    op_row = np.flatnonzero(kept)
    call_kept = _within(calls, since, until)
    call_kept[ops["launch_row"][op_row][launched[op_row]]] = True
    call_row = np.flatnonzero(call_kept)
    if op_row.size == len(ops) and call_row.size == len(calls):
        return Part(trace, op_row, call_row)
    collectives = trace.collectives
    collective_kept = kept[collectives["gpu_op_row"]]
    return Part(
        replace(
            trace,
            gpu_ops=_renumbered(ops.take(op_row), "launch_row", call_row, len(calls)),
            launches=calls.take(call_row),
            host_ops=trace.host_ops.take(_within(trace.host_ops, since, until)),
            syncs=trace.syncs.take(_within(trace.syncs, since, until)),
            collectives=_renumbered(
                collectives.take(collective_kept), "gpu_op_row", op_row, len(ops)
            ),
        ),
        op_row,
        call_row,
    )


def _within(table: Table, since: Array, until: Array) -> Mask:
    """Rows that overlap the time kept of their source."""
    source = table["source"]
    kept: Mask = (table["start_ns"] <= until[source]) & (table["end_ns"] >= since[source])
    return kept


def _renumbered(table: Table, name: str, kept: Array, num: int) -> Table:
    """``table`` with a reference to rows of another table of which only ``kept`` are left."""
    new = np.full(num + 1, NO_ROW, np.int64)
    new[kept] = np.arange(kept.size)
    columns: dict[str, npt.NDArray[np.generic]] = {**table.columns, name: new[table[name]]}
    return Table(table.schema, columns, table.strings)
