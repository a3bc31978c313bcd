"""The host's part of operators that a change does away with: time, calls, what they launched.

The profiler's cost is known per event on average only. In operators of many short events the
average takes out more than was there, and less elsewhere; the sum is right. So the time of an
operator without the profiler is what it took in the recording, times the share of its
thread's recorded host time that the model has left. What the work around it does not hold is
taken from the thread's other work in the step.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import ABSENT_NS
from diagnose.replay.change import Assume
from diagnose.replay.changes._host_gaps import (
    by_thread,
    covered_by,
    recorded_gaps,
    without_host_time,
)
from diagnose.replay.model import Array, Kind, Mask, Model

LONG_CALL_NS = 100_000
"""A call of that length waited for something: it does not show how fast the host was."""


MESSAGE = re.compile(r"c10d::|record_param_comms$|nccl:")
"""Operators and annotations of PyTorch around the launch of a message."""


def spans_around(
    model: Model, pattern: re.Pattern[str], wanted: Mask, unwanted: Mask
) -> tuple[Array, Mask]:
    """Operators of these names around a ``wanted`` call and no ``unwanted`` one.

    Rows of ``host_ops``, and which calls of the model are made within them. ``wanted``,
    ``unwanted``: shape (calls,).
    """
    ops, launches, calls = model.trace.host_ops, model.trace.launches, model.calls
    inside = np.zeros(calls.row.size, bool)
    if not len(ops):
        return np.zeros(0, np.int64), inside
    hit = model.trace.strings.where(lambda text: pattern.match(text) is not None)
    found = [np.zeros(0, np.int64)]
    for mine, rows in by_thread(model, np.flatnonzero(hit[ops["name"]])):
        moment = launches["start_ns"][calls.row[mine]]
        low, high = ops["start_ns"][rows], ops["end_ns"][rows]
        kept = (_within(low, high, moment[wanted[mine]]) > 0) & (
            _within(low, high, moment[unwanted[mine]]) == 0
        )
        found.append(rows[kept])
        edges, order = np.sort(low[kept]), np.sort(high[kept])
        # As many have begun as have ended: outside of all.
        begun = np.searchsorted(edges, moment, side="right")
        inside[mine] = begun > np.searchsorted(order, moment, side="right")
    return np.concatenate(found), inside


def _within(low: Array, high: Array, moment: Array) -> Array:
    """How many of ``moment`` each span holds."""
    moment = np.sort(moment)
    count: Array = np.searchsorted(moment, high) - np.searchsorted(moment, low)
    return count


def without_spans(model: Model, rows: Array, assume: Assume) -> Model:
    """The same without the host's time in these ``host_ops``; the calls in them stay.

    Least gain: only as far as the work before the calls in and behind them holds it.
    """
    calls = model.calls
    taken = np.rint(covered_by(model, rows) * _share(model)[calls.thread])
    held = _held(model)
    own = np.minimum(taken, held)
    if assume != Assume.LEAST:
        queue = calls.thread.astype(np.int64) * model.num_steps + calls.step
        begin, end = recorded_gaps(model)
        left = np.where(end - begin < ABSENT_NS, held - own, 0)
        missing = np.bincount(queue, taken - own)
        part = np.minimum(missing / np.maximum(np.bincount(queue, left), 1), 1.0)
        own = own + part[queue] * left
    return without_host_time(model, np.rint(own).astype(np.int64))


def spans_of(model: Model, pattern: re.Pattern[str], gone: Array) -> Array:
    """Rows of the operators of these names that launch of all operations only ``gone``."""
    call = model.launch_call()
    wanted, used = np.zeros((2, model.calls.row.size), bool)
    wanted[call[gone][call[gone] >= 0]] = True
    others = np.ones(model.num_ops, bool)
    others[gone] = False
    used[call[others & (call >= 0)]] = True
    return spans_around(model, pattern, wanted & ~used, used)[0]


def without_messages_of(model: Model, gone: Array, assume: Assume) -> Model:
    """The same without the host's time in the operators that launch the messages ``gone``."""
    rows = spans_of(model, MESSAGE, gone)
    return without_spans(model, rows, assume) if rows.size else model


def _held(model: Model) -> npt.NDArray[np.float64]:
    """The host's time before each call in ns: its work, or the lag of its handoff."""
    dependencies = model.dependencies
    held = np.maximum(model.calls.work_ns, 0).astype(np.float64)
    handed = np.flatnonzero(dependencies.kind == Kind.HANDOFF)
    to = dependencies.to_node[handed] - model.num_ops
    held[to] = np.maximum(dependencies.lag_ns[handed], 0)
    return held


def _share(model: Model) -> npt.NDArray[np.float64]:
    """Of each thread's recorded host time, what the model has left; at most 1. By thread.

    Over calls whose work is recorded, but for those that waited, were handed work, or
    came after their thread was away.
    """
    calls, launches, dependencies = model.calls, model.trace.launches, model.dependencies
    begin, end = recorded_gaps(model)
    length = np.zeros(calls.row.size, np.int64)
    known = calls.row >= 0
    row = calls.row[known]
    length[known] = launches["end_ns"][row] - launches["start_ns"][row]
    handed = np.zeros(calls.row.size, bool)
    handed[dependencies.to_node[dependencies.kind == Kind.HANDOFF] - model.num_ops] = True
    counts = known & ~handed & ~calls.waits & (length < LONG_CALL_NS)
    counts &= (end > begin) & (end - begin < ABSENT_NS)
    recorded = np.bincount(calls.thread, np.where(counts, end - begin + length, 0))
    now = np.bincount(
        calls.thread, np.where(counts, np.maximum(calls.work_ns, 0) + calls.call_ns, 0)
    )
    share: npt.NDArray[np.float64] = np.ones(recorded.size)
    np.divide(now, recorded, out=share, where=recorded > 0)
    return np.minimum(share, 1.0)
