"""The critical path: walked back from the end, always to what let go last.

From an operation's start (or the return of a host call that waited) the path
goes to the edge with the latest ``ready_ns``. Each stretch of time between the
two ends of the walk lies in exactly one segment, so the lengths sum to the
length asked for, by construction.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import COPY_SWITCH_NS, SWITCH_NS, Confidence
from diagnose.analyzers.critical_path.edges import Edge
from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.schema import NO_ROW, Activity, Kind
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]

LAUNCH_LIMIT_NS = 50_000
"""Longest time from the end of a launch call to the start that counts as its latency."""


class PathClass(IntEnum):
    """What a stretch of the critical path is."""

    COMPUTE = 0
    COMMUNICATION = 1
    """Bytes move; where ranks are matched the wait for the last of them is taken out."""
    PEER_WAIT = 2
    """A collective waits for its last rank, and the path was kept on this rank."""
    MEMORY = 3
    HOST = 4
    """The host worked towards the next launch, or returned from a wait."""
    LAUNCH = 5
    """From a launch call to the start of its operation."""
    SWITCH = 6
    """The short pause between an operation and one that depends on it."""
    UNEXPLAINED = 7
    """A pause that no edge explains."""
    GRAPH_PAUSE = 8
    """The rest of a pause between two operations of one CUDA graph replay: no host is in
    between, but the profiler does not say what the GPU did."""


class Segment(NamedTuple):
    """One stretch ``[start_ns, end_ns)`` of a path, on the aligned clock."""

    kind: PathClass
    start_ns: int
    end_ns: int
    node: int
    """The operation or call; for a pause the one that begins after it. -1: none."""
    edge: int
    """The ``Edge`` by which the path goes on before this stretch; -1: none."""
    confidence: int


class PathFinder:
    """Walks one graph; what every path needs is worked out once.

    The walk itself only notes which nodes it passes and when (``_Passed``); what each stretch
    is, is told of all of them together.
    """

    def __init__(self, trace: Trace, graph: DependencyGraph, *, across_ranks: bool = True) -> None:
        self._graph = graph
        activity = trace.gpu_ops["activity"]
        of_activity = {
            Activity.COMPUTE: PathClass.COMPUTE,
            Activity.COMMUNICATION: PathClass.COMMUNICATION,
            Activity.MEMORY: PathClass.MEMORY,
        }
        self._class = np.array([of_activity[a] for a in Activity], np.int8)[activity]
        self._is_copy = trace.gpu_ops["kind"] == Kind.MEMCPY
        self._launch_row = trace.gpu_ops["launch_row"]
        self._binding = binding_edges(graph)
        # Where the path goes on from each operation, and the moment at which it leaves a node.
        own = np.arange(graph.num_ops)
        self._peer = graph.last_arrival if across_ranks else own
        self._next = _left(graph, self._binding, graph.leave_ns)

    def walk(self, node: int, begin_ns: int) -> Array:
        """The segments from the end of ``node`` back to ``begin_ns``, in order of time.

        int64, shape (segments, fields of ``Segment``).
        """
        passed = self._passed(node, begin_ns)
        segments = np.stack([*self._within(passed), *self._before(passed, begin_ns)], axis=1)
        flat = segments.reshape(-1, len(Segment._fields))[::-1]
        flat[:, 1] = np.maximum(flat[:, 1], begin_ns)
        return _merged(flat[flat[:, 2] > flat[:, 1]])

    def _passed(self, node: int, begin_ns: int) -> _Passed:
        graph, num_ops = self._graph, self._graph.num_ops
        # One element at a time: bound methods, and no `min`, are half of what this takes.
        start_of, join_of, before = graph.start_ns.item, graph.join_ns.item, graph.from_node.item
        binding, left, peer = self._binding.item, self._next.item, self._peer.item
        moment = int(graph.end_ns[node])
        found: list[tuple[int, int, int, int, int, int]] = []
        while moment > begin_ns:
            entered, end, join = node, moment, moment
            if node < num_ops:
                began = join_of(node)
                if began < moment:
                    join = began
                last = peer(node)
                if last != node:
                    node, moment = last, join
                else:
                    began = start_of(node)
                    if began < moment:
                        moment = began
            edge = binding(node)
            found.append((entered, end, join, moment, node, edge))
            if edge < 0:
                break
            let_go = left(node)
            if let_go < moment:
                moment = let_go
            node = before(edge)
        return _Passed(*np.array(found, np.int64).reshape(-1, len(_Passed._fields)).T)

    def _within(self, passed: _Passed) -> tuple[Array, Array]:
        """What the nodes themselves are: their work, and the wait for peers before it."""
        is_op = passed.entered < self._graph.num_ops
        kind = np.zeros(is_op.size, np.int64)
        kind[is_op] = self._class[passed.entered[is_op]]
        wait = np.full(is_op.size, PathClass.PEER_WAIT, np.int64)
        # Where the path goes on at a peer, or a call is passed, these are empty.
        return (
            _segments(kind, passed.join, passed.end, passed.entered, NO_ROW, Confidence.HIGH),
            _segments(wait, passed.left, passed.join, passed.entered, NO_ROW, Confidence.HIGH),
        )

    def _before(self, passed: _Passed, begin_ns: int) -> tuple[Array, Array]:
        """What lies between the moment an edge let go and the begin of its node, latest first."""
        graph, node, high = self._graph, passed.node, passed.left
        edge = np.maximum(passed.edge, 0)
        if not graph.from_node.size:
            before, kind, confidence = (np.zeros(node.size, np.int64) for _ in range(3))
        else:
            before = graph.from_node[edge]
            kind = graph.kind[edge].astype(np.int64)
            confidence = graph.confidence[edge].astype(np.int64)
        low = np.minimum(self._next[node], high)
        named, limit, rest = self._pauses(node, before, kind, low)
        middle = np.minimum(np.maximum(limit, low), high)
        by_host = np.isin(kind, (Edge.THREAD_ORDER, Edge.HANDOFF, Edge.HOST_WAIT))
        first = passed.edge < 0
        # What the host did before its first recorded call was the host's all the same.
        of_first = np.where(node >= graph.num_ops, PathClass.HOST, PathClass.UNEXPLAINED)
        upper = _segments(
            np.select([first, by_host], [of_first, np.full(node.size, PathClass.HOST)], rest),
            np.select([first, by_host], [np.full(node.size, begin_ns), low], middle),
            high,
            node,
            np.where(first, NO_ROW, kind),
            np.where(by_host & ~first, confidence, Confidence.LOW),
        )
        ends = np.where(first | by_host, low, middle)
        return upper, _segments(named, low, ends, node, kind, confidence)

    def _pauses(
        self, node: Array, before: Array, kind: Array, low: Array
    ) -> tuple[Array, Array, Array]:
        """Of each pause between operations its name, until when it counts, and what is after."""
        graph, num_ops = self._graph, self._graph.num_ops
        launched = kind == Edge.LAUNCH
        between = np.flatnonzero(~launched & (node < num_ops) & (before < num_ops))
        one, other = node[between], before[between]
        copy = self._is_copy[one] | self._is_copy[other]
        limit = graph.end_ns[before] + LAUNCH_LIMIT_NS
        limit[between] = low[between] + np.where(copy, COPY_SWITCH_NS, SWITCH_NS)
        rest = np.full(node.size, PathClass.UNEXPLAINED, np.int64)
        launch = self._launch_row[one]
        replayed = (launch >= 0) & (launch == self._launch_row[other])
        rest[between[replayed]] = PathClass.GRAPH_PAUSE
        named = np.where(launched, PathClass.LAUNCH, PathClass.SWITCH).astype(np.int64)
        return named, limit, rest


class _Passed(NamedTuple):
    """What a walk came by, latest first. int64, equal lengths."""

    entered: Array
    """The node at whose end the path arrived."""
    end: Array
    """That moment."""
    join: Array
    """When the node's own work began (of a call: ``end``)."""
    left: Array
    """When the path left the node, or the peer that came last."""
    node: Array
    """That one: the node, or the peer."""
    edge: Array
    """By which edge; -1: the walk ends there."""


def _left(graph: DependencyGraph, binding: Array, leave_ns: Array) -> Array:
    """When the path that came by each node's binding edge leaves the node before it.

    int64, shape (nodes,); 0 where there is no edge.
    """
    left = np.zeros(binding.size, np.int64)
    node = np.flatnonzero(binding >= 0)
    edge = binding[node]
    before = graph.from_node[edge]
    # A collective gives its multiprocessors back before its kernel ends.
    held = np.where(before < graph.num_ops, graph.ready_ns[edge], leave_ns[before])
    left[node] = np.minimum(leave_ns[before], held)
    return left


def _segments(
    kind: Array,
    start: Array,
    end: Array,
    node: Array,
    edge: Array | int,
    confidence: Array | int,
) -> Array:
    """Columns as ``Segment``; int64, shape (segments, fields)."""
    segments = np.empty((node.size, len(Segment._fields)), np.int64)
    for place, column in enumerate((kind, start, end, node, edge, confidence)):
        segments[:, place] = column
    return segments


def binding_edges(graph: DependencyGraph) -> Array:
    """For each node the edge that let go last (-1: none). int64, shape (nodes,).

    Among equals the later kind of ``Edge`` wins, as the more telling one.
    """
    to = graph.to_node
    order = np.lexsort((graph.kind, graph.ready_ns, to))
    binding = np.full(graph.start_ns.size, NO_ROW, np.int64)
    binding[to[order]] = order
    return binding


def _merged(segments: Array) -> Array:
    """Host work in one piece: the calls in between are no news. The last names the node."""
    kind, start, end = segments[:, 0], segments[:, 1], segments[:, 2]
    first = np.ones(len(segments), bool)
    is_host = kind == PathClass.HOST
    first[1:] = ~(is_host[1:] & is_host[:-1] & (end[:-1] == start[1:]))
    begin = np.flatnonzero(first)
    if not begin.size:
        return segments
    last = np.append(begin[1:], len(segments)) - 1
    merged: Array = segments[last]
    merged[:, 1] = start[begin]
    merged[:, 4] = segments[begin, 4]
    merged[:, 5] = np.minimum.reduceat(segments[:, 5], begin)
    return merged
