"""The GPU's part of a model: operations, pauses on their streams, what they wait for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analyzers._lanes import is_symmetric
from diagnose.analyzers.critical_path.edges import Edge
from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.analyzers.critical_path.search import binding_edges
from diagnose.replay._calls import Links, links
from diagnose.replay._lags import COPY_PAUSE_NS, EVENT_NS, LAUNCH_NS, PAUSE_NS, usual
from diagnose.replay._recorded import Queues
from diagnose.replay.model import Array, Kind, Mask
from diagnose.schema import NO_ROW, NULL
from diagnose.schema import Kind as OpKind
from diagnose.trace import Trace

_KINDS = {
    Edge.LAUNCH: Kind.LAUNCH,
    Edge.EVENT_WAIT: Kind.EVENT_WAIT,
    Edge.OBSERVED_ORDER: Kind.OBSERVED_ORDER,
    Edge.ROOM: Kind.ROOM,
}
_OTHERWISE = {
    Kind.LAUNCH: LAUNCH_NS,
    Kind.EVENT_WAIT: EVENT_NS,
    Kind.OBSERVED_ORDER: EVENT_NS,
    Kind.ROOM: 0,
}


class GpuPart(NamedTuple):
    """Per index of the operations' ``Queues``."""

    duration_ns: Array
    pause_ns: Array
    match: Array
    bytes: Array
    links: Links


def gpu_part(trace: Trace, graph: DependencyGraph, ops: Queues, calls: Queues) -> GpuPart:
    """What the GPUs did, from recorded times."""
    binding = binding_edges(graph)[ops.row]
    by_stream = (binding >= 0) & (np.append(graph.kind, -1)[binding] == Edge.STREAM_ORDER)
    match, duration = _transfers(trace, graph, ops)
    return GpuPart(
        duration,
        _pauses(trace, ops, by_stream),
        match,
        _bytes(trace, ops),
        _links(graph, ops, calls, binding),
    )


def _pauses(trace: Trace, ops: Queues, by_stream: Mask) -> Array:
    """Pause of each operation after the one before it on its stream; 0 for the first."""
    before = ops.before
    measured = np.where(before >= 0, ops.begin_ns - ops.end_ns[before], 0)
    is_copy = trace.gpu_ops["kind"][ops.row] == OpKind.MEMCPY
    with_copy = is_copy | ((before >= 0) & is_copy[before])
    kernels = usual(measured, by_stream & ~with_copy & (before >= 0), PAUSE_NS)
    copies = usual(measured, by_stream & with_copy & (before >= 0), COPY_PAUSE_NS)
    pause: Array = np.where(
        by_stream, measured, np.minimum(np.where(with_copy, copies, kernels), measured)
    )
    return pause


def _links(graph: DependencyGraph, ops: Queues, calls: Queues, binding: Array) -> Links:
    """Launches and waits for other streams. ``binding``: the edge that binds each operation."""
    op_index, call_index = ops.index_of(graph.num_ops), calls.index_of(graph.num_calls)
    to_node, parts = graph.to_node, []
    for edge, kind in _KINDS.items():
        edges = np.flatnonzero(graph.kind == edge)
        to = op_index[to_node[edges]]
        from_node = graph.from_node[edges]
        if kind == Kind.LAUNCH:
            of = call_index[graph.call_row(from_node)]
            moment = calls.begin_ns[of]
        else:
            of = op_index[from_node]
            moment = ops.end_ns[of]
        lag = ops.begin_ns[to] - moment
        binds = binding[to] == edges
        lag = np.where(binds, lag, np.minimum(usual(lag, binds, _OTHERWISE[kind]), lag))
        parts.append(links(of, to, lag, kind, binds, of_op=kind != Kind.LAUNCH, to_op=True))
    return Links.joined(parts)


def _transfers(trace: Trace, graph: DependencyGraph, ops: Queues) -> tuple[Array, Array]:
    """Collective of each operation (-1: none), and its duration without waiting for late ranks.

    The transfer of a member is its end less the begin of the last member, so that it
    ends when it did; where the clocks leave doubt (below half of the shortest duration, or
    above its own) the shortest duration of all members. Who left before the last one came,
    as the root of a broadcast, did not wait and belongs to no collective here.
    """
    start, end = ops.begin_ns, ops.end_ns
    match = graph.match[ops.row].copy()
    duration = end - start
    members = np.flatnonzero(match >= 0)
    if not members.size:
        return match, duration
    size = int(match.max()) + 1
    last = np.full(size, np.iinfo(np.int64).min)
    shortest = np.full(size, np.iinfo(np.int64).max)
    np.maximum.at(last, match[members], start[members])
    np.minimum.at(shortest, match[members], duration[members])
    group = match[members]
    stay = end[members] - last[group]
    left_early = (stay <= 0) & ~_symmetric(trace, ops.row[members])
    doubted = (stay < shortest[group] // 2) | (stay > duration[members])
    duration[members] = np.where(
        left_early, duration[members], np.where(doubted, shortest[group], stay)
    )
    match[members[left_early]] = NO_ROW
    return match, duration


def _symmetric(trace: Trace, row: Array) -> Mask:
    """Whether nobody can leave the collective before all members have entered."""
    content = np.full(len(trace.gpu_ops), NO_ROW, np.int64)
    content[trace.collectives["gpu_op_row"]] = trace.collectives["collective"]
    return is_symmetric(trace, content[row])


def _bytes(trace: Trace, ops: Queues) -> Array:
    """Message size of communication, bytes of copies and fills; NULL: unknown."""
    num_bytes = trace.gpu_ops["bytes"].copy()
    table = trace.collectives
    known = table["bytes"] != NULL
    num_bytes[table["gpu_op_row"][known]] = table["bytes"][known]
    found: Array = num_bytes[ops.row]
    return found
