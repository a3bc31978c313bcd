"""The host's part of a model: calls, the work between them, and what they wait for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diagnose.analyzers.critical_path.edges import Edge
from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.replay._host_work import HostEvents, busy_at, host_events, threads_of
from diagnose.replay._lags import CALL_NS, RETURN_NS, usual
from diagnose.replay._launch_queue import Held, time_in_full_queue
from diagnose.replay._profiler_time import profiler_time
from diagnose.replay._recorded import Queues
from diagnose.replay.model import Array, Kind, Mask
from diagnose.schema import NO_ROW
from diagnose.timeline.step_times import of_source
from diagnose.trace import Trace

SPARSE = 16
"""One in so many launches is given a dependency on the launch queue."""


class Links(NamedTuple):
    """Dependencies as recorded, between indices of ``Queues``; equal-length arrays.

    ``of`` is an operation if ``of_op``, else a call; ``to`` likewise.
    """

    of: Array
    to: Array
    of_op: Mask
    to_op: Mask
    lag_ns: Array
    kind: Array
    binds: Mask
    """Whether it was what ``to`` waited for last."""

    @staticmethod
    def joined(parts: list[Links]) -> Links:
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Links(*columns)

    def take(self, which: Array | Mask) -> Links:
        columns: list[Any] = [column[which] for column in self]
        return Links(*columns)


def links(
    of: Array, to: Array, lag: Array, kind: Kind, binds: Mask, *, of_op: bool, to_op: bool
) -> Links:
    """``Links`` of one kind."""
    size = of.size
    return Links(
        of,
        to,
        np.full(size, of_op),
        np.full(size, to_op),
        lag,
        np.full(size, kind, np.int64),
        binds,
    )


class HostPart(NamedTuple):
    """Per index of the calls' ``Queues``; names as in ``model.Calls``."""

    work_ns: Array
    call_ns: Array
    waits: Mask
    num_events: Array
    profiler_ns: Array
    links: Links


def host_part(
    trace: Trace, graph: DependencyGraph, ops: Queues, calls: Queues, held: Held
) -> HostPart:
    """What the host did, from the recorded times of its calls."""
    events = host_events(trace, threads_of(trace)[1])
    waits = graph.is_wait[graph.num_ops + calls.row]
    begin, before = calls.begin_ns, calls.before
    known = before >= 0
    back = _returns(calls, waits)
    work = np.where(known, begin - back[before], _since_mark(trace, calls))
    handed = _handoffs(trace, graph, calls, back)
    waited = _waits(graph, ops, calls)
    # What a thread did before it was handed work may happen at any time.
    to = handed.to
    work[to] = np.where(known[to], np.minimum(work[to], handed.lag_ns), handed.lag_ns)
    return HostPart(
        work,
        _call_lengths(trace, calls, back - begin, waited, held),
        waits,
        _num_events(trace, calls, handed, events),
        profiler_time(trace, calls, events),
        Links.joined([handed, waited, _full_queue(ops, calls, held)]),
    )


def _following(calls: Queues) -> Array:
    """The next call on the thread of each; -1: none."""
    following = np.full(calls.row.size, NO_ROW, np.int64)
    known = np.flatnonzero(calls.before >= 0)
    following[calls.before[known]] = known
    return following


def _returns(calls: Queues, waits: Mask) -> Array:
    """When each call let its thread go on.

    A driver call within a runtime call is the same call twice: the outer one ends
    where the inner one begins.
    """
    following = _following(calls)
    nested = (following >= 0) & ~waits
    cut = np.minimum(calls.end_ns, calls.begin_ns[following])
    returns: Array = np.where(nested, cut, calls.end_ns)
    return returns


def _since_mark(trace: Trace, calls: Queues) -> Array:
    """Time since the last step mark on the thread of each call; 0 where there is none."""
    launches, steps = trace.launches, trace.steps
    since = np.zeros(calls.row.size, np.int64)
    source, thread = launches["source"][calls.row], launches["thread"][calls.row]
    start = launches["start_ns"][calls.row]
    for one in np.unique(steps["source"]).tolist():
        marks = of_source(steps, one)
        mine = np.flatnonzero(source == one)
        at = np.searchsorted(steps["start_ns"][marks], start[mine], side="right") - 1
        mark = marks.start + np.maximum(at, 0)
        own = (at >= 0) & (steps["thread"][mark] == thread[mine])
        since[mine[own]] = (start[mine] - steps["start_ns"][mark])[own]
    return since


def _handoffs(trace: Trace, graph: DependencyGraph, calls: Queues, back: Array) -> Links:
    """Work that one thread gave to another: the graph's handoffs, where the receiver was idle.

    Without that test two threads that launch side by side would take turns.
    """
    edges = np.flatnonzero(graph.kind == Edge.HANDOFF)
    target = graph.to_node[edges]
    edges = edges[target < graph.num_ops + graph.num_calls]
    index = calls.index_of(graph.num_calls)
    of = index[graph.call_row(graph.from_node[edges])]
    to = index[graph.call_row(graph.to_node[edges])]
    both = (of >= 0) & (to >= 0)
    of, to = of[both], to[both]
    _, keys = threads_of(trace)
    own_clock = trace.launches["end_ns"][calls.row[of]]
    idle = ~busy_at(trace, keys, calls.queue[to], own_clock)
    of, to = of[idle], to[idle]
    lag = calls.begin_ns[to] - back[of]
    return links(of, to, lag, Kind.HANDOFF, np.ones(to.size, bool), of_op=False, to_op=False)


def _waits(graph: DependencyGraph, ops: Queues, calls: Queues) -> Links:
    """Which operation each waiting call waited for, and how long after its end it returned."""
    edges = np.flatnonzero(graph.kind == Edge.HOST_WAIT)
    of = ops.index_of(graph.num_ops)[graph.from_node[edges]]
    to = calls.index_of(graph.num_calls)[graph.call_row(graph.to_node[edges])]
    lag = calls.end_ns[to] - ops.end_ns[of]
    binds = ops.end_ns[of] > calls.begin_ns[to]
    lag = np.where(binds, lag, np.minimum(usual(lag, binds, RETURN_NS), lag))
    return links(of, to, lag, Kind.HOST_WAIT, binds, of_op=True, to_op=False)


def _full_queue(ops: Queues, calls: Queues, held: Held) -> Links:
    """The call after one that was held back by a full launch queue, for what held it."""
    following = _following(calls)
    to = following[held.call]
    known = to >= 0
    to, of, binds = to[known], held.ahead[known], held.held[known]
    lag = calls.begin_ns[to] - ops.end_ns[of]
    lag = np.where(binds, lag, np.minimum(usual(lag, binds, RETURN_NS), lag))
    # Calls that were not held back get every 16th: as good as all of them, to within 16 launches.
    kept = binds | (np.arange(to.size) % SPARSE == 0)
    found = links(of, to, lag, Kind.QUEUE_LIMIT, binds, of_op=True, to_op=False)
    return found.take(kept)


def _call_lengths(trace: Trace, calls: Queues, length: Array, waited: Links, held: Held) -> Array:
    """How long each call takes when it waits for nothing.

    Where it waited that is not seen: the median of the same call without waiting, at
    most what was measured, less what CUPTI saw it wait for room in the launch queue.
    """
    name = trace.launches["name"][calls.row].astype(np.int64)
    full = time_in_full_queue(trace, calls)
    waiting = full > 0
    waiting[waited.to[waited.binds]] = True
    waiting[held.call[held.held]] = True
    bare: Array = np.maximum(length - full, 0)
    for one in np.unique(name[waiting]).tolist():
        mine = name == one
        free = length[mine & ~waiting]
        typical = int(np.median(free)) if free.size else CALL_NS
        bare[mine & waiting] = np.minimum(bare[mine & waiting], typical)
    return bare


def _num_events(trace: Trace, calls: Queues, handed: Links, events: HostEvents) -> Array:
    """Host events recorded since the call before; after a handoff those on both threads."""
    start, end = (trace.launches[name][calls.row] for name in ("start_ns", "end_ns"))
    low = np.where(calls.before >= 0, start[calls.before], start - 1)
    count = events.between(calls.queue, low, start)
    of, to = handed.of, handed.to
    given = events.between(calls.queue[of], start[of], start[to])
    count[to] = events.between(calls.queue[to], end[of], start[to]) + given
    return count
