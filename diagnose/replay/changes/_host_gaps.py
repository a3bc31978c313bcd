"""How much of the host's work before each call was data loading, garbage collection or absence.

Looked at is the recorded time from the call before on the thread to the call; for the
first call of a step that reaches back into the step before.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from diagnose.analyzers._idle_causes.causes import (
    ABSENT_NS,
    TAKEN_BYTES,
    copy_causes,
    taken_bytes,
)
from diagnose.analyzers._idle_causes.host_threads import DATA_LOADING, GARBAGE
from diagnose.intervals import covered_length, union
from diagnose.replay.model import Array, Kind, Mask, Model
from diagnose.schema import NO_ROW, Call
from diagnose.trace import Table

_OPEN = frozenset({"overhead", "Trace", "user_annotation", "annotation", "python_function"})
"""Categories that do not show that their thread runs: they stay open while it sleeps."""

_COUNTS = (
    Call.LAUNCH,
    Call.GRAPH_LAUNCH,
    Call.COPY,
    Call.FILL,
    Call.SYNCHRONIZE,
    Call.ALLOCATE,
)
"""What launches work, waits or allocates: what a model has calls for."""


class HostSpan(Enum):
    """What is recorded by name."""

    DATA_LOADING = DATA_LOADING
    GARBAGE = GARBAGE


def recorded_gaps(model: Model) -> tuple[Array, Array]:
    """Begin and end of the time before each call on its thread; empty where it is not known.

    It begins where the call before it returned that ``Calls.work_ns`` counts from: calls
    that neither launch, wait nor allocate (queries, events) are work. On the clock of
    the source. Shape (calls,).
    """
    launches, row = model.trace.launches, model.calls.row
    begin, end = np.zeros((2, row.size), np.int64)
    known = np.flatnonzero(row >= 0)
    if not known.size:
        return begin, end
    key = _thread_keys(model, launches)
    counts = np.isin(launches["call"], _COUNTS)
    # Between the first and the last call of the model, its own calls are all that count.
    numbers, thread = np.unique(key, return_inverse=True)
    thread = thread.reshape(-1)
    first = np.full(numbers.size, np.iinfo(np.int64).max)
    np.minimum.at(first, thread[row[known]], launches["start_ns"][row[known]])
    counts &= launches["start_ns"] < first[thread]
    counts[row[known]] = True
    order = np.flatnonzero(counts)
    order = order[np.lexsort((launches["start_ns"][order], key[order]))]
    place = np.zeros(len(launches), np.int64)
    place[order] = np.arange(order.size)
    at = place[row[known]]
    before = np.where(at > 0, order[np.maximum(at - 1, 0)], NO_ROW)
    before = np.where((before >= 0) & (key[before] == key[row[known]]), before, NO_ROW)
    end[known] = launches["start_ns"][row[known]]
    begin[known] = np.where(before >= 0, launches["end_ns"][before], end[known])
    begin = np.minimum(begin, end)
    return begin, end


def _thread_keys(model: Model, table: Table) -> Array:
    """One number for the (source, thread) of each row of a table of host events."""
    key: Array = table["source"].astype(np.int64) * (len(model.trace.strings) + 1) + table["thread"]
    return key


def taken_by(model: Model, span: HostSpan) -> Array:
    """Of the time before each call, what recorded spans of this name took. ns, shape (calls,)."""
    ops = model.trace.host_ops
    if not len(ops):
        return np.zeros(model.calls.row.size, np.int64)
    hit = model.trace.strings.where(lambda text: span.value.search(text) is not None)
    return covered_by(model, np.flatnonzero(hit[ops["name"]]))


def covered_by(model: Model, rows: Array) -> Array:
    """Of the time before each call, what these ``host_ops`` took. ns, shape (calls,)."""
    ops = model.trace.host_ops
    taken = np.zeros(model.calls.row.size, np.int64)
    if not rows.size:
        return taken
    begin, end = recorded_gaps(model)
    for calls, own in by_thread(model, rows):
        spans = union(ops["start_ns"][own], ops["end_ns"][own])
        taken[calls] = covered_length(spans, begin[calls], end[calls])
    return taken


def absent(model: Model) -> Array:
    """Before the first call of each step: how long its thread ran nothing, if 1 ms or more.

    No operator and no call: asleep, or in code that records nothing. Pieces under
    1 ms do not count, nor does the time after 1 MiB or more was copied to the host: the
    thread then works on that. ns, shape (calls,), 0 for other calls.
    """
    ops, calls, launches = model.trace.host_ops, model.calls, model.trace.launches
    taken = np.zeros(calls.row.size, np.int64)
    begin, end = recorded_gaps(model)
    first = first_of_steps(model)
    idle = model.trace.strings.where(_OPEN.__contains__)
    rows = np.flatnonzero(~idle[ops["category"]]) if len(ops) else np.zeros(0, np.int64)
    keys = _thread_keys(model, launches)
    taken_before = _taken_by_launch(model)
    for on_thread, own in by_thread(model, rows):
        called = np.flatnonzero(keys == keys[calls.row[on_thread[0]]])
        low, high = union(
            np.concatenate([ops["start_ns"][own], launches["start_ns"][called]]),
            np.concatenate([ops["end_ns"][own], launches["end_ns"][called]]),
        )
        for call in on_thread[first[on_thread]].tolist():
            before = called[launches["end_ns"][called] <= begin[call]]
            before = before[taken_before[before] >= 0]
            if before.size and taken_before[before[-1]] >= TAKEN_BYTES:
                continue
            inside = (high > begin[call]) & (low < end[call])
            edges = np.concatenate(([begin[call]], high[inside]))
            following = np.concatenate((low[inside], [end[call]]))
            pieces = following - edges
            taken[call] = pieces[pieces >= ABSENT_NS].sum()
    return taken


def _taken_by_launch(model: Model) -> Array:
    """``taken_bytes`` of what each call launched; -1: it launched nothing. Shape (launches,)."""
    trace = model.trace
    found = np.full(len(trace.launches), -1, np.int64)
    rows = np.flatnonzero(trace.gpu_ops.known("launch_row"))
    found[trace.gpu_ops["launch_row"][rows]] = taken_bytes(trace, copy_causes(trace))[rows]
    return found


def first_of_steps(model: Model) -> Mask:
    """The first call of each process in each step. Shape (calls,)."""
    calls = model.calls
    order = np.lexsort((calls.place, calls.step, calls.source))
    head = np.ones(order.size, bool)
    head[1:] = (calls.step[order][1:] != calls.step[order][:-1]) | (
        calls.source[order][1:] != calls.source[order][:-1]
    )
    found = np.zeros(order.size, bool)
    found[order[head]] = True
    return found


def without_host_time(model: Model, taken_ns: Array) -> Model:
    """The same with so much less work before each call; work does not fall below 0.

    What the work does not hold is taken from the lag of the handoff that stands for it.
    """
    calls, dependencies = model.calls, model.dependencies
    work = np.where(calls.work_ns > 0, np.maximum(calls.work_ns - taken_ns, 0), calls.work_ns)
    handed = np.flatnonzero(dependencies.kind == Kind.HANDOFF)
    lag = dependencies.lag_ns.copy()
    less = taken_ns[dependencies.to_node[handed] - model.num_ops]
    lag[handed] = np.where(lag[handed] > 0, np.maximum(lag[handed] - less, 0), lag[handed])
    return model.with_calls(work_ns=work).with_dependencies(dependencies._replace(lag_ns=lag))


def by_thread(model: Model, rows: Array) -> list[tuple[Array, Array]]:
    """Calls of each thread, and those of ``rows`` (of ``host_ops``) on it, in order of start."""
    ops, launches, calls = model.trace.host_ops, model.trace.launches, model.calls
    width = len(model.trace.strings) + 1
    key = ops["source"][rows].astype(np.int64) * width + ops["thread"][rows]
    found = []
    for thread in np.unique(calls.thread).tolist():
        mine = np.flatnonzero((calls.thread == thread) & (calls.row >= 0))
        if mine.size:
            row = calls.row[mine[0]]
            own = rows[key == int(launches["source"][row]) * width + int(launches["thread"][row])]
            found.append((mine, own))
    return found
