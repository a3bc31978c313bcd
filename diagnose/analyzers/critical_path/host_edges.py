"""What a host call waited for: the call before it, and the GPU where it synchronised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import Confidence
from diagnose.analyzers.critical_path.edges import Edge, Edges
from diagnose.schema import NO_ROW, NULL, Call, Kind
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]
_STEPS_BACK = 64
"""How many operations that ended later but were launched after the wait are skipped."""


def host_edges(
    trace: Trace, entries: Array, start: Array, end: Array, waits: npt.NDArray[np.bool_]
) -> list[Edges]:
    """All edges into host calls and their entries. ``start``, ``end``, ``waits``: of all nodes.

    ``entries``: rows of ``launches`` of the calls that have a node for being entered.
    """
    num_ops, calls = len(trace.gpu_ops), trace.launches
    used = waits[num_ops : num_ops + len(calls)].copy()
    wait_rows = np.flatnonzero(used)
    row = trace.gpu_ops["launch_row"]
    used[row[row >= 0]] = True
    rows = np.flatnonzero(used)
    to_node = np.concatenate([num_ops + rows, num_ops + len(calls) + np.arange(entries.size)])
    if not rows.size:
        return []
    return [
        *_thread_edges(trace, rows, np.concatenate([rows, entries]), to_node, start, end, waits),
        _wait_edges(trace, wait_rows, start, end),
    ]


def _thread_edges(
    trace: Trace,
    rows: Array,
    to_row: Array,
    to_node: Array,
    start: Array,
    end: Array,
    waits: npt.NDArray[np.bool_],
) -> list[Edges]:
    """Each call after the last call of its process that had let go, own thread or another.

    The other thread counts only if the own one made no call in between: then it
    was handed the work (the backward pass of PyTorch runs so). ``rows`` are the
    calls to choose from; ``to_row`` and ``to_node`` those that get an edge.
    """
    num_ops, calls = len(trace.gpu_ops), trace.launches
    left = np.where(waits, end, start)[num_ops + rows]
    source, thread = calls["source"].astype(np.int64), calls["thread"].astype(np.int64)
    on_thread = source * (len(trace.strings) + 1) + thread
    begun = start[num_ops + to_row]
    own = _last_before(on_thread[rows], left, rows, on_thread[to_row], begun, to_row)
    latest = _last_before(source[rows], left, rows, source[to_row], begun, to_row)
    ended = end[num_ops + np.maximum(latest, 0)] <= begun
    other = (latest >= 0) & (latest != own) & (thread[latest] != thread[to_row]) & ended
    before = np.where(other, latest, own)
    known = np.flatnonzero(before >= 0)
    from_node = num_ops + before[known]
    # The thread holds a call back until it is made: one that waits returns no earlier.
    ready, handed = begun[known], other[known]
    kinds = ((~handed, Edge.THREAD_ORDER, Confidence.HIGH), (handed, Edge.HANDOFF, Confidence.LOW))
    return [
        Edges.of(from_node[which], to_node[known[which]], kind, confidence, ready[which])
        for which, kind, confidence in kinds
    ]


def _last_before(
    group: Array, time: Array, rows: Array, of_group: Array, at: Array, of_row: Array
) -> Array:
    """For each (``of_group``, ``at``, ``of_row``) the last of ``rows`` in its group before it.

    NO_ROW where there is none. int64, shape of ``at``.
    """
    asked = np.repeat(np.array([1, 0], np.int8), [rows.size, at.size])
    groups = np.concatenate([group, of_group])
    order = np.lexsort((asked, np.concatenate([rows, of_row]), np.concatenate([time, at]), groups))
    # Nothing is before itself: at equal times and rows the question comes first.
    position = np.where(asked[order] == 1, np.arange(order.size), NO_ROW)
    last = np.maximum.accumulate(position)
    found = order[np.maximum(last, 0)]
    inside = (last >= 0) & (groups[found] == groups[order])
    answer = np.full(order.size, NO_ROW, np.int64)
    answer[order] = np.where(inside, rows[np.minimum(found, rows.size - 1)], NO_ROW)
    return answer[rows.size :]


def _own_copy(trace: Trace) -> Array:
    """For each call the copy it made (-1: none). int64, shape (launches,)."""
    ops = trace.gpu_ops
    own = np.full(len(trace.launches), NO_ROW, np.int64)
    copies = np.flatnonzero((ops["launch_row"] >= 0) & (ops["kind"] == Kind.MEMCPY))
    own[ops["launch_row"][copies]] = copies
    own[trace.launches["call"] != Call.COPY] = NO_ROW
    return own


def _wait_edges(trace: Trace, rows: Array, start: Array, end: Array) -> Edges:
    """Each waiting call for the operation that ended last before it returned.

    Only work launched before the call counts, and only on the stream waited for
    where the profiler recorded it; a blocking copy waits for itself.
    """
    num_ops, ops, calls = len(trace.gpu_ops), trace.gpu_ops, trace.launches
    launch = ops["launch_row"]
    launched = np.full(num_ops, np.iinfo(np.int64).min, np.int64)
    launched[launch >= 0] = start[num_ops + launch[launch >= 0]]
    stream = _stream_waited_for(trace, rows)
    found = np.full(rows.size, NO_ROW, np.int64)
    source = calls["source"][rows]
    for one in np.unique(source).tolist():
        mine = np.flatnonzero(source == one)
        here = np.flatnonzero(ops["source"] == one)
        by_end = here[np.argsort(end[here], kind="stable")]
        at = np.searchsorted(end[by_end], end[num_ops + rows[mine]], side="right") - 1
        for _ in range(_STEPS_BACK):
            op = by_end[np.maximum(at, 0)] if by_end.size else np.zeros(at.size, np.int64)
            if not by_end.size:
                break
            late = launched[op] > start[num_ops + rows[mine]]
            other = (stream[mine] != NULL) & (ops["stream"][op] != stream[mine])
            skip = (at >= 0) & (late | other)
            if not skip.any():
                break
            at = at - skip
        else:
            at = np.where((at >= 0) & (late | other), -1, at)
        known = at >= 0
        found[mine[known]] = by_end[at[known]]
    own = _own_copy(trace)
    found = np.where(own[rows] >= 0, own[rows], found)
    known = np.flatnonzero(found >= 0).astype(np.int64)
    confidence = np.where(
        (own[rows[known]] >= 0) | (stream[known] != NULL), Confidence.HIGH, Confidence.MEDIUM
    )
    to = num_ops + rows[known]
    ready = np.minimum(end[found[known]], end[to])
    return Edges.of(found[known], to, Edge.HOST_WAIT, confidence.astype(np.int8), ready)


def _stream_waited_for(trace: Trace, rows: Array) -> Array:
    """The stream that a call synchronised with, NULL if the profiler did not say."""
    syncs, calls = trace.syncs, trace.launches
    stream = np.full(rows.size, NULL, np.int64)
    if not len(syncs):
        return stream
    of_stream = trace.strings.where(lambda kind: kind.lower() == "stream sync")
    records = np.flatnonzero(of_stream[syncs["sync_kind"]] & syncs.known("correlation"))
    known = {
        (source, correlation): number
        for source, correlation, number in zip(
            *(syncs[name][records].tolist() for name in ("source", "correlation", "stream")),
            strict=True,
        )
    }
    wanted = zip(calls["source"][rows].tolist(), calls["correlation"][rows].tolist(), strict=True)
    return np.array([known.get(key, NULL) for key in wanted], np.int64).reshape(rows.size)
