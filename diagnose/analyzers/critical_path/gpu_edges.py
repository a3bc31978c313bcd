"""What a GPU operation waited for: its launch, its stream, events of other streams.

A recorded stream wait names the event, but recent traces leave out the call that
recorded it (-1). Then the event is inferred: it can only cover work launched
before the wait, and work that had not ended when the waiting operation started
cannot have been waited for. Of what is left, the operation that ended last is
the one that mattered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import LAUNCH_LATENCY_NS, SWITCH_NS, Confidence
from diagnose.analyzers.critical_path.edges import Edge, Edges
from diagnose.schema import NO_ROW, NULL, Activity
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]
ROOM_NS = 100_000
"""How long before a collective's end what waited for its multiprocessors may begin."""
_NEVER = int(np.iinfo(np.int64).min)


def gpu_edges(trace: Trace, start: Array, end: Array) -> list[Edges]:
    """All edges into GPU operations. ``start`` and ``end``: times of all nodes, aligned."""
    stream = _streams(trace)
    launch = _launch_edges(trace, start)
    order = _stream_edges(stream, start, end)
    waits = _event_edges(trace, stream, start, end)
    known = [launch, order, waits]
    return known + _observed_edges(trace, stream, start, end, known)


def _streams(trace: Trace) -> Array:
    """A dense number for each (source, device, stream). int64, shape (gpu_ops,)."""
    ops = trace.gpu_ops
    if not len(ops):
        return np.empty(0, np.int64)
    columns = [ops[name].astype(np.int64) for name in ("source", "device", "stream")]
    dense = np.zeros(len(ops), np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        dense = dense * values.size + codes
    return np.unique(dense, return_inverse=True)[1].astype(np.int64)


def launch_latency(trace: Trace) -> int:
    """Shortest usual time from a launch to the start of its operation, in ns.

    The first percentile over all launches; where every launch was queued, the
    limit below which nothing can have been queued.
    """
    row = trace.gpu_ops["launch_row"]
    known = row >= 0
    if not known.any():
        return 0
    delay = trace.gpu_ops["start_ns"][known] - trace.launches["start_ns"][row[known]]
    return int(min(max(np.quantile(delay, 0.01, method="lower"), 0), LAUNCH_LATENCY_NS))


def _launch_edges(trace: Trace, start: Array) -> Edges:
    num_ops, row = len(trace.gpu_ops), trace.gpu_ops["launch_row"]
    to = np.flatnonzero(row >= 0)
    call = num_ops + row[to]
    ready = np.minimum(start[call] + launch_latency(trace), start[to])
    return Edges.of(call, to, Edge.LAUNCH, Confidence.HIGH, ready)


def _stream_edges(stream: Array, start: Array, end: Array) -> Edges:
    order = np.lexsort((np.arange(stream.size), start[: stream.size], stream))
    same = stream[order][1:] == stream[order][:-1]
    before, to = order[:-1][same], order[1:][same]
    # Programmatic dependent launches begin before the one ahead has ended.
    ready = np.minimum(end[before], start[to])
    return Edges.of(before, to, Edge.STREAM_ORDER, Confidence.HIGH, ready)


def _launch_starts(trace: Trace, start: Array) -> Array:
    """When each operation was launched; before everything if that was not recorded."""
    num_ops, row = len(trace.gpu_ops), trace.gpu_ops["launch_row"]
    launched = np.full(num_ops, _NEVER, np.int64)
    launched[row >= 0] = start[num_ops + row[row >= 0]]
    return launched


def _call_of(trace: Trace, source: Array, correlation: Array) -> Array:
    """The row of ``launches`` with a correlation id (-1: none). int64, same shape."""
    calls = trace.launches
    known = np.flatnonzero(calls.known("correlation"))
    row = np.full(correlation.size, NO_ROW, np.int64)
    for one in np.unique(source).tolist():
        mine = known[calls["source"][known] == one]
        ids = calls["correlation"][mine]
        order = np.argsort(ids, kind="stable")
        here = np.flatnonzero((source == one) & (correlation != NULL))
        if not mine.size or not here.size:
            continue
        at = np.minimum(np.searchsorted(ids[order], correlation[here]), mine.size - 1)
        found = mine[order[at]]
        hit = calls["correlation"][found] == correlation[here]
        row[here[hit]] = found[hit]
    return row


def _event_edges(trace: Trace, stream: Array, start: Array, end: Array) -> Edges:
    syncs, ops, num_ops = trace.syncs, trace.gpu_ops, len(trace.gpu_ops)
    is_wait = trace.strings.where(lambda kind: kind.lower().startswith("stream wait"))
    rows = np.flatnonzero(is_wait[syncs["sync_kind"]]) if len(syncs) else np.empty(0, np.int64)
    launched = _launch_starts(trace, start)
    source = syncs["source"][rows]
    call = _call_of(trace, source, syncs["correlation"][rows])
    record = _call_of(trace, source, syncs["event_correlation"][rows])
    rows, call, record = rows[call >= 0], call[call >= 0], record[call >= 0]
    waited_at = start[num_ops + call]
    recorded_at = np.where(record >= 0, start[num_ops + np.maximum(record, 0)], waited_at)
    to = np.full(rows.size, NO_ROW, np.int64)
    best = np.full(rows.size, NO_ROW, np.int64)
    best_end = np.full(rows.size, _NEVER, np.int64)
    choices = np.zeros(rows.size, np.int64)
    by_stream = np.argsort(stream, kind="stable")
    edges = np.searchsorted(stream[by_stream], np.arange(int(stream.max(initial=-1)) + 2))
    members = [
        _in_launch_order(by_stream[low:high], start, launched)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    names = [
        (int(ops["source"][m[0]]), int(ops["device"][m[0]]), int(ops["stream"][m[0]]))
        for m, _ in members
    ]
    keys = list(
        zip(*(syncs[c][rows].tolist() for c in ("source", "device", "stream")), strict=True)
    )
    waiting = {name: number for number, name in enumerate(names)}
    on = np.array([waiting.get(key, NO_ROW) for key in keys], np.int64)
    for number, (mine, times) in enumerate(members):
        here = np.flatnonzero(on == number)
        at = np.searchsorted(times, waited_at[here], side="right")
        inside = at < mine.size
        to[here[inside]] = mine[at[inside]]
    event_stream = syncs["event_stream"][rows]
    for number, (mine, times) in enumerate(members):
        here = np.flatnonzero(
            (to >= 0)
            & (on != number)
            & (syncs["source"][rows] == names[number][0])
            & ((event_stream == NULL) | (event_stream == names[number][2]))
        )
        if not here.size:
            continue
        covered = np.searchsorted(times, recorded_at[here], side="left")
        ended = np.searchsorted(np.maximum.accumulate(end[mine]), start[to[here]], side="right")
        # An event that is known must be honoured even where clocks disagree.
        at = np.where(record[here] >= 0, covered, np.minimum(covered, ended)) - 1
        here, at = here[at >= 0], at[at >= 0]
        choices[here] += 1
        better = end[mine[at]] > best_end[here]
        best[here[better]] = mine[at[better]]
        best_end[here[better]] = end[mine[at[better]]]
    found = np.flatnonzero((to >= 0) & (best >= 0))
    confidence = np.where(choices[found] == 1, Confidence.MEDIUM, Confidence.LOW)
    confidence[record[found] >= 0] = Confidence.HIGH
    ready = np.minimum(best_end[found], start[to[found]])
    return Edges.of(best[found], to[found], Edge.EVENT_WAIT, confidence.astype(np.int8), ready)


def _in_launch_order(mine: Array, start: Array, launched: Array) -> tuple[Array, Array]:
    """The operations of one stream in order, and when each was launched (never decreasing)."""
    mine = mine[np.argsort(start[mine], kind="stable")]
    return mine, np.maximum.accumulate(launched[mine])


def _observed_edges(
    trace: Trace, stream: Array, start: Array, end: Array, known: list[Edges]
) -> list[Edges]:
    """Operations that nothing known held back, and that began right as another stream's ended.

    Where waits are recorded, the other one had taken the room (a GEMM in clusters
    beside a collective); where they are not, it may as well have been waited for.
    """
    num_ops = len(trace.gpu_ops)
    ready = np.full(num_ops, _NEVER, np.int64)
    for edges in known:
        np.maximum.at(ready, edges.to_node, edges.ready_ns)
    before, to = _just_ended(trace, start, end)
    keep = (stream[before] != stream[to]) & (end[before] > ready[to])
    keep &= start[to] - end[before] <= SWITCH_NS
    before, to = before[keep], to[keep]
    unrecorded = _waits_unrecorded(trace)[to]
    late = ~unrecorded & (start[to] - ready[to] > SWITCH_NS)
    held = start[:num_ops] - ready > SWITCH_NS
    held[to[unrecorded | late]] = False
    running, behind = _running_beside(trace, stream, start, end, ready, np.flatnonzero(held))
    return [
        Edges.of(
            before[unrecorded],
            to[unrecorded],
            Edge.OBSERVED_ORDER,
            Confidence.LOW,
            end[before[unrecorded]],
        ),
        Edges.of(before[late], to[late], Edge.ROOM, Confidence.LOW, end[before[late]]),
        Edges.of(
            running, behind, Edge.ROOM, Confidence.LOW, np.minimum(end[running], start[behind])
        ),
    ]


def _just_ended(trace: Trace, start: Array, end: Array) -> tuple[Array, Array]:
    """For each operation that has one: the last on its GPU to end before it began."""
    befores, tos = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for gpu in trace.gpus:
        rows = trace.on(gpu)
        by_end = rows.start + np.argsort(end[rows], kind="stable")
        to = np.arange(rows.start, rows.stop)
        at = np.searchsorted(end[by_end], start[to], side="right") - 1
        befores.append(by_end[at[at >= 0]])
        tos.append(to[at >= 0])
    return np.concatenate(befores), np.concatenate(tos)


def _running_beside(
    trace: Trace, stream: Array, start: Array, end: Array, ready: Array, held: Array
) -> tuple[Array, Array]:
    """What ran on another stream all the time an operation was held back, and was about to end.

    A collective gives its multiprocessors back one channel at a time: what waited
    for them begins shortly before its kernel ends.
    """
    ops = trace.gpu_ops
    best = np.full(held.size, NO_ROW, np.int64)
    best_end = np.full(held.size, np.iinfo(np.int64).max, np.int64)
    work = ops["activity"] != Activity.MEMORY
    for number in np.unique(stream[work]).tolist():
        mine = np.flatnonzero(work & (stream == number))
        mine = mine[np.argsort(start[mine], kind="stable")]
        here = np.flatnonzero(
            (stream[held] != number)
            & (ops["source"][held] == ops["source"][mine[0]])
            & (ops["device"][held] == ops["device"][mine[0]])
        )
        at = np.searchsorted(start[mine], ready[held[here]] + SWITCH_NS, side="right") - 1
        here, at = here[at >= 0], at[at >= 0]
        begun = start[held[here]]
        ends = end[mine[at]]
        fits = (ends >= begun - SWITCH_NS) & (ends <= begun + ROOM_NS) & (ends < best_end[here])
        fits &= start[mine[at]] < begun
        best[here[fits]], best_end[here[fits]] = mine[at[fits]], ends[fits]
    found = best >= 0
    return best[found], held[found]


def _waits_unrecorded(trace: Trace) -> npt.NDArray[np.bool_]:
    """Operations whose waits no trace shows: in graph replays, and without `cuda_sync` events."""
    ops, syncs = trace.gpu_ops, trace.syncs
    is_wait = trace.strings.where(lambda kind: kind.lower().startswith("stream wait"))
    recorded = np.zeros(len(trace.sources), bool)
    if len(syncs):
        recorded[syncs["source"][is_wait[syncs["sync_kind"]]]] = True
    row = ops["launch_row"]
    count = np.bincount(row[row >= 0], minlength=len(trace.launches) + 1)
    unrecorded: npt.NDArray[np.bool_] = ~recorded[ops["source"]] | ((row >= 0) & (count[row] > 1))
    return unrecorded
