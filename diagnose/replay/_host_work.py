"""What host threads did between the calls that matter to the GPU, and what handed over to what."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.replay.model import Array, Mask
from diagnose.schema import NO_ROW
from diagnose.trace import Trace

_NOT_THE_JOB = frozenset({"overhead", "Trace"})
"""Categories of spans by which the profiler speaks of itself."""
_NOT_BUSY = frozenset({"overhead", "Trace", "user_annotation", "annotation", "python_function"})
"""Categories that do not prove that their thread runs: they stay open while it waits."""


class HostEvents(NamedTuple):
    """All events of the threads that make calls, sorted by (thread, start)."""

    thread: Array
    """Dense thread number, that of ``threads_of``."""
    start_ns: Array
    begins: Array
    """Where each thread begins. Shape (threads + 1,)."""

    def between(self, thread: Array, low: Array, high: Array) -> Array:
        """How many events of each thread start after ``low`` and no later than ``high``."""
        count = np.zeros(thread.size, np.int64)
        for one in np.unique(thread).tolist():
            mine = thread == one
            start = self.start_ns[self.begins[one] : self.begins[one + 1]]
            ends = [np.searchsorted(start, moment[mine], side="right") for moment in (low, high)]
            count[mine] = np.maximum(ends[1] - ends[0], 0)
        return count


def threads_of(trace: Trace) -> tuple[Array, Array]:
    """A dense number for the thread of each call, and the key (source, thread) of each number."""
    calls = trace.launches
    key = _key(trace, calls["source"], calls["thread"])
    keys, number = np.unique(key, return_inverse=True)
    return number.reshape(-1).astype(np.int64), keys


def _key(trace: Trace, source: Array, thread: Array) -> Array:
    key: Array = source.astype(np.int64) * (len(trace.strings) + 1) + thread
    return key


def _of_category(trace: Trace, words: frozenset[str]) -> Mask:
    hit: Mask = trace.strings.where(words.__contains__)[trace.host_ops["category"]]
    return hit


def host_events(trace: Trace, keys: Array) -> HostEvents:
    """Starts of operators, annotations and calls on the threads ``keys``, on their own clocks.

    Each of them cost the job something to record.
    """
    ops, calls = trace.host_ops, trace.launches
    key = [_key(trace, calls["source"], calls["thread"])]
    start = [calls["start_ns"]]
    if len(ops):
        kept = np.flatnonzero(~_of_category(trace, _NOT_THE_JOB))
        key.append(_key(trace, ops["source"][kept], ops["thread"][kept]))
        start.append(ops["start_ns"][kept])
    every = np.concatenate(key)
    at = np.minimum(np.searchsorted(keys, every), max(keys.size - 1, 0))
    here = np.flatnonzero(keys[at] == every) if keys.size else np.empty(0, np.int64)
    number, moment = at[here], np.concatenate(start)[here]
    order = np.lexsort((moment, number))
    number = number[order]
    return HostEvents(number, moment[order], np.searchsorted(number, np.arange(keys.size + 1)))


def busy_at(trace: Trace, keys: Array, thread: Array, moment: Array) -> Mask:
    """Whether each thread was inside an operator at each moment (on its source's clock)."""
    ops = trace.host_ops
    busy = np.zeros(thread.size, bool)
    if not len(ops) or not thread.size:
        return busy
    rows = np.flatnonzero(~_of_category(trace, _NOT_BUSY))
    key = _key(trace, ops["source"][rows], ops["thread"][rows])
    for one in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == one)
        own = rows[key == keys[one]]
        if not own.size:
            continue
        start = ops["start_ns"][own]
        reached = np.maximum.accumulate(ops["end_ns"][own])
        at = np.searchsorted(start, moment[mine], side="right") - 1
        busy[mine] = (at >= 0) & (reached[np.maximum(at, 0)] > moment[mine])
    return busy


def call_before(thread: Array, start: Array) -> Array:
    """For each of these calls the one before it on its thread; NO_ROW: none."""
    order = np.lexsort((np.arange(start.size), start, thread))
    before = np.full(start.size, NO_ROW, np.int64)
    same = thread[order][1:] == thread[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before
