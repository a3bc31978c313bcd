"""The critical path: walked back from the end, always to what let go last.

From an operation's start (or the return of a host call that waited) the path
goes to the edge with the latest ``ready_ns``. Each stretch of time between the
two ends of the walk lies in exactly one segment, so the lengths sum to the
length asked for, by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Walks one graph; what every path needs is worked out once, as plain lists."""

    def __init__(self, trace: Trace, graph: DependencyGraph, *, across_ranks: bool = True) -> None:
        self._graph, self._across = graph, across_ranks
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
        self._leave = graph.leave_ns

    def walk(self, node: int, begin_ns: int) -> list[Segment]:
        """The segments from the end of ``node`` back to ``begin_ns``, in order of time."""
        segments = [
            segment._replace(start_ns=max(segment.start_ns, begin_ns))
            for segment in self._back(node, begin_ns)
            if segment.end_ns > max(segment.start_ns, begin_ns)
        ]
        return _merged(segments[::-1])

    def _back(self, node: int, begin_ns: int) -> Iterator[Segment]:
        graph, moment = self._graph, int(self._graph.end_ns[node])
        while moment > begin_ns:
            if node < graph.num_ops:
                join = min(int(graph.join_ns[node]), moment)
                start = min(int(graph.start_ns[node]), moment)
                kind = PathClass(int(self._class[node]))
                peer = int(graph.last_arrival[node])
                yield Segment(kind, join, moment, node, NO_ROW, Confidence.HIGH)
                if peer != node and self._across:
                    node, moment = peer, join
                else:
                    yield Segment(PathClass.PEER_WAIT, start, join, node, NO_ROW, Confidence.HIGH)
                    moment = start
            edge = int(self._binding[node])
            if edge < 0:
                # What the host did before its first recorded call was the host's all the same.
                is_call = node >= graph.num_ops
                kind = PathClass.HOST if is_call else PathClass.UNEXPLAINED
                yield Segment(kind, begin_ns, moment, node, NO_ROW, Confidence.LOW)
                return
            before = int(graph.from_node[edge])
            reached = min(self._left(before, edge), moment)
            yield from self._pause(node, before, edge, reached, moment)
            node, moment = before, reached

    def _left(self, before: int, edge: int) -> int:
        """The moment at which the path leaves the earlier node."""
        left = int(self._leave[before])
        # A collective gives its multiprocessors back before its kernel ends.
        return min(left, int(self._graph.ready_ns[edge])) if before < self._graph.num_ops else left

    def _pause(self, node: int, before: int, edge: int, low: int, high: int) -> Iterator[Segment]:
        """What lies between the moment an edge let go and the begin of its node, latest first."""
        graph = self._graph
        kind, confidence = int(graph.kind[edge]), int(graph.confidence[edge])
        rest = PathClass.UNEXPLAINED
        if kind in (Edge.THREAD_ORDER, Edge.HANDOFF, Edge.HOST_WAIT):
            yield Segment(PathClass.HOST, low, high, node, kind, confidence)
            return
        if kind == Edge.LAUNCH:
            limit = int(graph.end_ns[before]) + LAUNCH_LIMIT_NS
            named = PathClass.LAUNCH
        else:
            copy = self._is_copy[node] or self._is_copy[before]
            limit = low + (COPY_SWITCH_NS if copy else SWITCH_NS)
            named = PathClass.SWITCH
            launch = int(self._launch_row[node])
            if launch >= 0 and launch == int(self._launch_row[before]):
                rest = PathClass.GRAPH_PAUSE
        middle = min(max(limit, low), high)
        yield Segment(rest, middle, high, node, kind, Confidence.LOW)
        yield Segment(named, low, middle, node, kind, confidence)


def binding_edges(graph: DependencyGraph) -> Array:
    """For each node the edge that let go last (-1: none). int64, shape (nodes,).

    Among equals the later kind of ``Edge`` wins, as the more telling one.
    """
    to = graph.to_node
    order = np.lexsort((graph.kind, graph.ready_ns, to))
    binding = np.full(graph.start_ns.size, NO_ROW, np.int64)
    binding[to[order]] = order
    return binding


def _merged(segments: list[Segment]) -> list[Segment]:
    """Host work in one piece: the calls in between are no news."""
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.kind == segment.kind == PathClass.HOST
            and last.end_ns == segment.start_ns
        ):
            merged[-1] = segment._replace(
                start_ns=last.start_ns,
                edge=last.edge,
                confidence=min(last.confidence, segment.confidence),
            )
        else:
            merged.append(segment)
    return merged
