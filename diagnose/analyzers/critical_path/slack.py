"""How much later each operation could end without moving the end of its step.

A pass from the end over the same graph. Every edge into v has a margin, by how
much it could let go later: ``latest ready of v - its own ready`` (none for the
edge that binds). Then::

    slack(u) = min(end of u's step - end(u), min over edges u -> v of margin + slack at v's begin)

The begin of a matched collective has more slack than its end: until the last
rank arrives nothing moves, on any rank.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.critical_path.graph import DependencyGraph

Array = npt.NDArray[np.int64]


def margins(graph: DependencyGraph) -> Array:
    """By how much each edge could let go later on its own. int64 ns, shape (edges,)."""
    count = np.diff(graph.first_edge)
    some = np.flatnonzero(count)
    if not some.size:
        return np.empty(0, np.int64)
    latest = np.maximum.reduceat(graph.ready_ns, graph.first_edge[some])
    margin: Array = np.repeat(latest, count[some]) - graph.ready_ns
    return margin


def slack(graph: DependencyGraph, limit_ns: Array) -> Array:
    """Slack of every GPU operation's end. int64 ns, shape (gpu_ops,).

    ``limit_ns``, shape (gpu_ops,): the end of each operation's step, on the
    aligned clock. Nodes are visited by time, latest first; each looks at the nodes that wait
    for it, which all come later.
    """
    nodes = graph.start_ns.size
    used = np.zeros(nodes, bool)
    used[: graph.num_ops] = True
    used[graph.from_node] = True
    order = np.empty(nodes, np.int64)
    order[graph.place] = np.arange(nodes)
    by_source = np.argsort(graph.from_node, kind="stable")
    first = _plain(np.searchsorted(graph.from_node[by_source], np.arange(nodes + 1)))
    targets = _plain(graph.to_node[by_source])
    margin = _plain(margins(graph)[by_source])

    far = int(np.iinfo(np.int64).max) // 4
    own_limit = np.full(nodes, far, np.int64)
    own_limit[: graph.num_ops] = np.maximum(limit_ns - graph.end_ns[: graph.num_ops], 0)
    at_end, at_begin = _plain(own_limit), array("q", [far]) * nodes
    match = _plain(np.concatenate([graph.match, np.full(nodes - graph.num_ops, -1, np.int64)]))
    transfer_limit = [far] * (int(graph.match.max(initial=-1)) + 1)
    early = np.zeros(nodes, np.int64)
    early[: graph.num_ops] = graph.join_ns - graph.start_ns[: graph.num_ops]
    early_by = _plain(early)
    for node in _plain(order[used[order]][::-1]):
        best = at_end[node]
        for index in range(first[node], first[node + 1]):
            target = targets[index]
            group = match[target]
            begin = at_begin[target] if group < 0 else transfer_limit[group] + early_by[target]
            begin += margin[index]
            if begin < best:  # `min` costs a third of the loop
                best = begin
        at_end[node] = at_begin[node] = best
        group = match[node]
        if group >= 0 and best < transfer_limit[group]:
            transfer_limit[group] = best
    return np.array(at_end, np.int64)[: graph.num_ops]


def _plain(values: Array) -> array[int]:
    """The same as Python's own array: as quick as a list one by one, a fifth of its memory."""
    return array("q", np.ascontiguousarray(values, np.int64).tobytes())
