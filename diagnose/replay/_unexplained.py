"""How much of the critical path no dependency explains: what the replay cannot account for.

The path is that of ``analyzers.critical_path.search``, of the last replayed step and across
ranks, walked over plain integers: a report asks for no more than this one number of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import COPY_SWITCH_NS, SWITCH_NS
from diagnose.analyzers.critical_path.edges import Edge
from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.analyzers.critical_path.search import LAUNCH_LIMIT_NS, binding_edges
from diagnose.analyzers.critical_path.spans import spans
from diagnose.replay._window import Part, Window
from diagnose.replay.model import Array
from diagnose.schema import NO_ROW, Kind
from diagnose.trace import Trace


def unexplained(
    trace: Trace, part: Part, graph: DependencyGraph, window: Window
) -> npt.NDArray[np.float64]:
    """Per GPU of ``trace``: unexplained pauses on the path of its last replayed step, in ns.

    NaN: a GPU without a step time. Shape (gpus,).
    """
    binding = binding_edges(graph)
    explained, rest = _explained_from(part.trace, graph, binding)
    after = np.arange(graph.start_ns.size)
    after[: graph.num_ops] = graph.last_arrival
    edge = binding[after]
    before = np.where(edge >= 0, np.append(graph.from_node, NO_ROW)[edge], NO_ROW)
    follows, arrival = before.tolist(), after.tolist()
    begins = graph.start_ns.tolist()
    found = np.full(len(trace.gpus), np.nan)
    for place, gpu in enumerate(trace.gpus):
        mine = [span for span in spans(part.trace, gpu) if _is_last(window, span[0])]
        if not mine:
            continue
        _, begin, end = mine[-1]
        rows = part.trace.on(gpu)
        last = rows.start + int(np.flatnonzero(part.trace.gpu_ops["end_ns"][rows] == end)[-1])
        begin += int(graph.end_ns[last]) - end
        path, node = [], last
        while node >= 0 and begins[node] > begin:
            path.append(arrival[node])
            node = follows[node]
        nodes = np.array(path, np.int64)
        low = np.maximum(explained[nodes], begin)
        found[place] = np.maximum(rest[nodes] - low, 0).sum() if nodes.size else 0.0
    return found


def _is_last(window: Window, step_row: int) -> bool:
    return step_row >= 0 and int(window.step_of[step_row]) == window.num_steps - 1


def _explained_from(trace: Trace, graph: DependencyGraph, binding: Array) -> tuple[Array, Array]:
    """Of each node ``[explained, begin)`` is the pause before it that nothing explains.

    Empty for calls: what a host does between calls is its work. int64 ns, shape (nodes,).
    """
    begin = graph.begin_ns
    explained = begin.copy()
    ops = np.arange(graph.num_ops)
    edge = binding[ops]
    explained[ops[edge < 0]] = np.iinfo(np.int64).min // 2
    ops, edge = ops[edge >= 0], edge[edge >= 0]
    before = graph.from_node[edge]
    is_call = before >= graph.num_ops
    left = np.where(
        is_call, graph.leave_ns[before], np.minimum(graph.end_ns[before], graph.ready_ns[edge])
    )
    is_copy = trace.gpu_ops["kind"] == Kind.MEMCPY
    copies = is_copy[ops] | (~is_call & np.append(is_copy, False)[np.where(is_call, -1, before)])
    limit = np.where(
        graph.kind[edge] == Edge.LAUNCH,
        graph.end_ns[before] + LAUNCH_LIMIT_NS,
        left + np.where(copies, COPY_SWITCH_NS, SWITCH_NS),
    )
    launch = trace.gpu_ops["launch_row"]
    of_before = np.append(launch, NO_ROW)[np.where(is_call, -1, before)]
    same_graph = (launch[ops] >= 0) & (launch[ops] == of_before)
    explained[ops] = np.where(same_graph, begin[ops], np.minimum(limit, begin[ops]))
    return explained, begin
