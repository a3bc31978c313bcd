"""Each host thread as a timeline of what ran innermost, without a Python object per event.

Operators, annotations, Python functions and calls into the GPU runtime of one
thread nest. Sorted by start (outer first), the depth of an event is the number
of earlier events that have not ended, and its parent is the nearest earlier
event one level up: one sort and one binary search instead of a stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.schema import NO_ROW, Call, Kind
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]


class HostState(IntEnum):
    """What a host thread does at one moment, by its innermost event."""

    ABSENT = 0
    """No operator and no call: Python between operators, sleep, or nothing at all."""
    OPERATOR = 1
    """An operator, or a call that launches, records or queries."""
    PYTHON = 2
    """A Python function that was recorded (`with_stack`)."""
    SYNCHRONIZE = 3
    """A call that returns only when the GPU has got somewhere."""
    COPY = 4
    """A copy to the GPU that returned only when the copy was done."""
    ALLOCATE = 5
    DATA_LOADING = 6
    GARBAGE_COLLECTION = 7
    LOCK = 8


DATA_LOADING = re.compile(r"dataloader|data_loader|datapipe|enumerate\(data", re.IGNORECASE)
GARBAGE = re.compile(r"\bgc\.collect\b|python[ _]gc\b|garbage.?collect", re.IGNORECASE)
_LOCK = re.compile(r"_thread\.r?lock|lock\.acquire|acquire' of|wait_for_lock|\bGIL\b")
_NOT_HOST_WORK = {"overhead", "Trace"}
_ANNOTATIONS = {"user_annotation", "annotation"}
_MAX_CLIPS = 8
"""Rounds of cutting a child to its parent; Kineto's rounding needs one."""


@dataclass(frozen=True)
class ThreadTimeline:
    """One thread. Event arrays are of shape (events,), segment arrays of shape (segments,).

    ``host_op_row`` and ``call_row`` index ``host_ops`` and ``launches`` (-1:
    the event is of the other table); ``parent`` indexes the events (-1: none).
    Segments are sorted and disjoint: ``leaf`` is the innermost event in each.
    """

    source: int
    thread: int
    start: Array
    end: Array
    host_op_row: Array
    call_row: Array
    parent: Array
    state: npt.NDArray[np.int8]
    segment_start: Array
    segment_end: Array
    leaf: Array

    def leaf_at(self, moment: Array) -> Array:
        """The innermost event at each moment (-1: none). int64, same shape."""
        if not self.segment_start.size:
            return np.full(moment.shape, NO_ROW, np.int64)
        index = np.searchsorted(self.segment_start, moment, side="right") - 1
        safe = np.maximum(index, 0)
        inside = (index >= 0) & (moment < self.segment_end[safe])
        return np.where(inside, self.leaf[safe], NO_ROW)

    def overlaps(self, start: Array, end: Array) -> tuple[Array, Array, Array]:
        """Every (window, segment) that overlap: window index, innermost event, length in ns."""
        low = np.searchsorted(self.segment_end, start, side="right")
        high = np.searchsorted(self.segment_start, end, side="left")
        count = np.where(end > start, np.maximum(high - low, 0), 0)
        window = np.repeat(np.arange(start.size, dtype=np.int64), count)
        segment = np.repeat(low, count) + (
            np.arange(window.size) - np.repeat(np.cumsum(count) - count, count)
        )
        length = np.minimum(self.segment_end[segment], end[window]) - np.maximum(
            self.segment_start[segment], start[window]
        )
        return window, self.leaf[segment], length

    def ancestors(self, event: int) -> Iterator[int]:
        """The event and what encloses it, innermost first."""
        while event >= 0:
            yield event
            event = int(self.parent[event])


def nest(start: Array, end: Array) -> tuple[Array, Array, Array]:
    """Ends cut to the parent's, parents (-1: none) and depths of one thread's events.

    The events are sorted by start, the longer first, and none is empty. int64, shape (events,).
    """
    index = np.arange(start.size, dtype=np.int64)
    depth = parent = np.zeros(0, np.int64)
    for _ in range(_MAX_CLIPS):
        depth = index - np.searchsorted(np.sort(end), start, side="right")
        key = depth * start.size + index
        order = np.argsort(key, kind="stable")
        found = np.searchsorted(key[order], key - start.size, side="left") - 1
        parent = np.where(depth > 0, order[np.maximum(found, 0)], NO_ROW)
        limit = np.where(parent >= 0, end[np.maximum(parent, 0)], end)
        if (end <= limit).all():
            break
        end = np.minimum(end, limit)
    return end, parent, depth


def _segments(start: Array, end: Array, parent: Array) -> tuple[Array, Array, Array]:
    count = start.size
    index = np.arange(count, dtype=np.int64)
    moment = np.concatenate([end, start])
    # At one moment ends come before starts, inner ends before outer ones.
    is_start = np.repeat(np.array([0, 1], np.int8), count)
    order = np.lexsort((np.concatenate([-index, index]), is_start, moment))
    del is_start
    leaf = np.concatenate([parent, index])[order]
    moment = moment[order]
    keep = (moment[1:] > moment[:-1]) & (leaf[:-1] >= 0)
    return moment[:-1][keep], moment[1:][keep], leaf[:-1][keep]


class _Events(NamedTuple):
    state: npt.NDArray[np.int8]
    passes_down: npt.NDArray[np.bool_]


def _host_op_states(trace: Trace) -> _Events:
    names, categories = trace.host_ops["name"], trace.host_ops["category"]

    def named(pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        hit = trace.strings.where(lambda text: pattern.search(text) is not None)
        found: npt.NDArray[np.bool_] = hit[names]
        return found

    def of_category(wanted: set[str]) -> npt.NDArray[np.bool_]:
        hit: npt.NDArray[np.bool_] = trace.strings.where(wanted.__contains__)[categories]
        return hit

    state = np.full(len(trace.host_ops), HostState.OPERATOR, np.int8)
    if not state.size:
        return _Events(state, np.zeros(0, bool))
    state[of_category({"python_function"})] = HostState.PYTHON
    state[of_category(_ANNOTATIONS)] = HostState.ABSENT
    state[named(_LOCK) & (state == HostState.PYTHON)] = HostState.LOCK
    loading, garbage = named(DATA_LOADING), named(GARBAGE)
    state[loading] = HostState.DATA_LOADING
    state[garbage] = HostState.GARBAGE_COLLECTION
    return _Events(state, loading | garbage)


def call_states(trace: Trace) -> npt.NDArray[np.int8]:
    """The ``HostState`` of every row of ``launches``. int8, shape (launches,).

    A copy call waited if nine tenths of its copy were done when it returned (one
    from pageable memory returns when the last piece is staged): one from the GPU
    then is a synchronisation, one to the GPU a wait for the copy.
    """
    call, state = trace.launches["call"], np.full(len(trace.launches), HostState.OPERATOR, np.int8)
    state[call == Call.SYNCHRONIZE] = HostState.SYNCHRONIZE
    state[call == Call.ALLOCATE] = HostState.ALLOCATE
    ops = trace.gpu_ops
    copies = np.flatnonzero((ops["kind"] == Kind.MEMCPY) & ops.known("launch_row"))
    row = ops["launch_row"][copies]
    early = ops["end_ns"][copies] - trace.launches["end_ns"][row]
    waited = call[row] == Call.COPY
    waited &= 10 * early <= ops["end_ns"][copies] - ops["start_ns"][copies]
    to_host = trace.strings.where(lambda text: "DtoH" in text or "DeviceToHost" in text)
    back = to_host[ops["name"][copies]] if copies.size else np.zeros(0, bool)
    state[row[waited & ~back]] = HostState.COPY
    state[row[waited & back]] = HostState.SYNCHRONIZE
    return state


def _inherit(state: npt.NDArray[np.int8], down: Any, parent: Array, depth: Array) -> None:
    """What runs inside a data loader or a collection belongs to it, unless it is a GPU call."""
    plain = np.isin(state, (HostState.ABSENT, HostState.OPERATOR, HostState.PYTHON, HostState.LOCK))
    if not down.any():
        return
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(1, int(depth.max()) + 2))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        level = order[low:high]
        level = level[down[parent[level]] & plain[level]]
        state[level] = state[parent[level]]
        down[level] = True


def host_threads(trace: Trace) -> dict[tuple[int, int], ThreadTimeline]:
    """The timeline of every thread that called into the GPU runtime, by (source, thread code)."""
    calls, ops = trace.launches, trace.host_ops
    op_events, of_calls = _host_op_states(trace), call_states(trace)
    work = ~trace.strings.where(_NOT_HOST_WORK.__contains__)[ops["category"]] if len(ops) else None
    width = len(trace.strings) + 1
    call_key = calls["source"].astype(np.int64) * width + calls["thread"]
    op_key = ops["source"].astype(np.int64) * width + ops["thread"]
    call_order = np.argsort(call_key, kind="stable")
    sorted_key = call_key[call_order]
    threads = {}
    for key in np.unique(sorted_key).tolist():
        low, high = np.searchsorted(sorted_key, [key, key + 1])
        call_rows = call_order[low:high].astype(np.int64)
        low, high = np.searchsorted(op_key, [key, key + 1])
        op_rows = np.arange(low, high, dtype=np.int64)
        if work is not None:
            op_rows = op_rows[work[op_rows]]
        start = np.concatenate([ops["start_ns"][op_rows], calls["start_ns"][call_rows]])
        end = np.concatenate([ops["end_ns"][op_rows], calls["end_ns"][call_rows]])
        is_call = np.repeat([0, 1], [op_rows.size, call_rows.size])
        order = np.lexsort((is_call, -end, start))
        order = order[end[order] > start[order]]
        end_cut, parent, depth = nest(start[order], end[order])
        # A driver call within a runtime call is the same call twice.
        twice = (is_call[order] == 1) & (parent >= 0) & (is_call[order][parent] == 1)
        if twice.any():
            order = order[~twice]
            end_cut, parent, depth = nest(start[order], end[order])
        start, end, is_call = start[order], end_cut, is_call[order]
        rows = np.concatenate([op_rows, call_rows])[order]
        state = np.concatenate([op_events.state[op_rows], of_calls[call_rows]])[order]
        down = np.concatenate([op_events.passes_down[op_rows], np.zeros(call_rows.size, bool)])
        if start.size:
            _inherit(state, down[order], parent, depth)
        source, thread = divmod(key, width)
        threads[source, thread] = ThreadTimeline(
            source,
            thread,
            start,
            end,
            np.where(is_call == 0, rows, NO_ROW),
            np.where(is_call == 1, rows, NO_ROW),
            parent,
            state,
            *_segments(start, end, parent),
        )
    return threads
