"""What had to happen before what: GPU operations and host calls as one graph of arrays.

Nodes ``0 .. num_ops - 1`` are the rows of ``gpu_ops``, the following are rows of
``launches`` (only those that launch GPU work or wait for it have edges). A call
that does both, as a blocking copy, has a second node for being entered: its
first stands for its return. An edge says that its node could not begin (a call
that waits: not return) before a moment, ``ready_ns``; so

    begin of v = max over its edges of ready_ns + delay(v)

and ``delay`` is what no edge explains. The graph has no cycle: every edge leads
from an earlier to a later place in ``place``, and what contradicts that (the
clocks of host and GPU disagree, one operation overtakes another) is left out.
Nothing here knows of paths: the search (``search``) and the slack (``slack``)
use the same graph, and so can a replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.host_threads import HostState, call_states
from diagnose.analyzers.critical_path.edges import Edge, Edges
from diagnose.analyzers.critical_path.gpu_edges import gpu_edges
from diagnose.analyzers.critical_path.host_edges import host_edges
from diagnose.analyzers.critical_path.peers import Peers, alone, joins
from diagnose.schema import NO_ROW
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DependencyGraph:
    """Times of shape (nodes,), edges sorted by node in compressed rows (``first_edge``).

    ``match`` gives for each GPU operation the collective it is part of, across
    ranks (-1: not matched); ``join_ns`` is when its bytes could begin to move (its
    own start if not matched) and ``last_arrival`` the operation of the rank that
    came last (itself if not matched, or if the clocks do not tell).
    """

    num_ops: int
    num_calls: int
    start_ns: Array
    end_ns: Array
    source: npt.NDArray[np.int32]
    is_wait: npt.NDArray[np.bool_]
    """Calls that return only when the GPU has got somewhere."""
    place: Array
    """Where each node stands in the order of time: every edge leads to a later place."""
    entered_row: Array
    """Rows of ``launches`` that have a second node, for being entered; those nodes come last."""
    first_edge: Array
    """Shape (nodes + 1,): the edges of node v are ``first_edge[v]:first_edge[v + 1]``."""
    from_node: Array
    kind: npt.NDArray[np.int8]
    confidence: npt.NDArray[np.int8]
    ready_ns: Array
    match: Array
    join_ns: Array
    last_arrival: Array

    def call_row(self, node: Array) -> Array:
        """The row of ``launches`` of each node (NO_ROW: a GPU operation). int64, same shape."""
        row = np.where(node < self.num_ops, NO_ROW, node - self.num_ops)
        late = row >= self.num_calls
        row[late] = self.entered_row[row[late] - self.num_calls]
        return row

    @property
    def leave_ns(self) -> Array:
        """When each node lets go what waits for it: a call that does not wait when it begins."""
        is_call = np.arange(self.start_ns.size) >= self.num_ops
        return np.where(is_call & ~self.is_wait, self.start_ns, self.end_ns)

    @property
    def to_node(self) -> Array:
        """The node of every edge."""
        return np.repeat(np.arange(self.start_ns.size), np.diff(self.first_edge))

    @property
    def begin_ns(self) -> Array:
        """What an edge holds back: the start of an operation or call, the return of a wait."""
        return np.where(self.is_wait, self.end_ns, self.start_ns)


def _order(start: Array, begin: Array, num_ops: int, launch: Array, match: Array) -> Array:
    """The place of each node in the order in which they begin. int64, shape (nodes,).

    An operation comes after its launch even where the clocks of host and GPU
    disagree; the operations of one collective stand together, where the last began.
    """
    time = begin.copy()
    known = np.flatnonzero(launch >= 0)
    time[known] = np.maximum(time[known], start[num_ops + launch[known]])
    group = np.full(begin.size, NO_ROW, np.int64)
    group[:num_ops] = match
    joined = np.flatnonzero(group >= 0)
    last = np.full(int(match.max(initial=-1)) + 1, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last, group[joined], time[joined])
    time[joined] = last[group[joined]]
    nodes = np.arange(begin.size)
    place = np.empty(begin.size, np.int64)
    place[np.lexsort((nodes, group, nodes < num_ops, time))] = nodes
    return place


def build(trace: Trace, peers: Peers | None = None) -> DependencyGraph:
    """The dependency graph of a whole trace; without ``peers`` each rank is on its own."""
    peers = alone(trace) if peers is None else peers
    ops, calls = trace.gpu_ops, trace.launches
    num_ops, num_calls = len(ops), len(calls)
    call_waits = np.isin(call_states(trace), (HostState.SYNCHRONIZE, HostState.COPY))
    launching = np.zeros(num_calls, bool)
    launching[ops["launch_row"][ops["launch_row"] >= 0]] = True
    entered = np.flatnonzero(launching & call_waits).astype(np.int64)
    columns = ("source", "start_ns", "end_ns")
    source, start, end = (
        np.concatenate([ops[name], calls[name], calls[name][entered]]) for name in columns
    )
    start, end = peers.aligned(source, start), peers.aligned(source, end)
    # Nothing is empty here: a node must lie between what it waits for and what waits for it.
    end = np.maximum(end, start + 1)
    waits = np.zeros(start.size, bool)
    waits[num_ops : num_ops + num_calls] = call_waits
    joined = joins(num_ops, start, end, peers)
    found = [*gpu_edges(trace, start, end), *host_edges(trace, entered, start, end, waits)]
    edges = _from_entries(Edges.joined(found), num_ops, num_calls, entered)
    begin = np.where(waits, end, start)
    place = _order(start, begin, num_ops, ops["launch_row"], joined.match)
    edges = edges.take(place[edges.from_node] < place[edges.to_node])
    edges = edges.take(np.argsort(edges.to_node, kind="stable"))
    return DependencyGraph(
        num_ops,
        num_calls,
        start,
        end,
        source,
        waits,
        place,
        entered,
        np.searchsorted(edges.to_node, np.arange(start.size + 1)),
        edges.from_node,
        edges.kind,
        edges.confidence,
        np.minimum(edges.ready_ns, begin[edges.to_node]),
        *joined,
    )


def _from_entries(edges: Edges, num_ops: int, num_calls: int, entered: Array) -> Edges:
    """Launches by calls that also wait come from their entry, not from their return."""
    entry = np.full(num_ops + num_calls, NO_ROW, np.int64)
    entry[num_ops + entered] = num_ops + num_calls + np.arange(entered.size)
    moved = (edges.kind == Edge.LAUNCH) & (entry[edges.from_node] >= 0)
    return edges._replace(from_node=np.where(moved, entry[edges.from_node], edges.from_node))
