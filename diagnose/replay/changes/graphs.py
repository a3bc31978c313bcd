"""The step replayed from CUDA graphs: no launch for each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._which import (
    call_kinds,
    is_communication,
    is_copy,
    named,
    stream_order,
)
from diagnose.replay.changes.loading import loading_ns
from diagnose.replay.model import Array, Kind, Mask, Model
from diagnose.schema import NO_ROW, Call

LAUNCH_NS = (5_000, 2_500, 2_500)
NODE_NS = (200, 60, 1)
"""What launching a graph takes the host, and for each node (least, likely, most gain): NVIDIA's
"Constant Time Launch for Straight-Line CUDA Graphs" has about 2 us and 0.06 to 0.2 us a node
before CUDA 12.6, 2.5 us and about 1 ns a node since."""
SHORTER_PAUSE_NS = (0, 500, 1_000)
"""By how much pauses between kernels are shorter within a graph, where the recording holds no
graph to see it: NVIDIA's "Getting Started with CUDA Graphs" has 3.8 us a kernel of 2.9 us
launched one by one and 3.4 us from a graph, so 0.4 us; 0.6 us on an H200."""
LEAST_PAUSE_NS = 400
"""What a pause that was seen is not shortened below."""
UNSEEN_PAUSE_NS = (2_000, 500, 250)
"""Pauses within a graph where the recording shows none without one either, because each kernel
waited for its launch: the same source has 0.5 us. 0.25 us is the shortest usual pause in
a graph on an H200, 2 us a usual one without a graph (``diagnose.replay._lags``)."""
SEEN = 0.9
"""Share of the recorded time between two operations from which a pause of the model is seen,
not assumed."""
ALREADY = 0.9
"""Share of operations from graphs above which there is nothing left to capture."""


@dataclass(frozen=True, kw_only=True)
class CudaGraph(Change):
    """The work of a step is captured in a CUDA graph and replayed by one launch.

    Kernels, fills and copies within the GPU of a step become one graph, or several where
    the host waits in between; collectives are captured too. Their host work and launches
    vanish but for one launch a graph; what the host does before the first call of a step
    stays (most gain: only data loading stays). Pauses within a graph are as long as those of
    graphs in the recording, else shorter by 0.5 us (0 to 1 us); 0.5 us (0.25 to 2 us) where the
    launch came so late that no pause was seen. Copies from and to the host stay outside.
    Assumes static shapes and addresses.
    """

    id = "cuda-graph"
    title = "step replayed from a CUDA graph"
    effort = 3

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        captured = _captured(model)
        if isinstance(captured, Unavailable):
            return captured
        graphs = _graphs(model, captured)
        changed = _launched_once(model, captured, graphs, assume)
        return _closer(changed, captured, graphs, assume)


def _captured(model: Model) -> Mask | Unavailable:
    """Operations that a graph would hold. Shape (ops,)."""
    call = model.launch_call()
    kind = np.append(call_kinds(model), NO_ROW)[call]
    known = call >= 0
    if not known.any():
        return Unavailable("no launch of the replayed steps is known")
    if (kind[known] == Call.GRAPH_LAUNCH).mean() > ALREADY:
        return Unavailable("the work of the replayed steps comes from CUDA graphs already")
    host_copy = is_copy(model) & ~named(model, "dtod", "devicetodevice")
    captured: Mask = known & (kind != Call.GRAPH_LAUNCH) & ~host_copy
    return captured


class _Graphs(NamedTuple):
    """One graph for each piece of a step and process between waits of the host."""

    of_call: Array
    """The number of the graph that each call would belong to. Shape (calls,)."""
    first: Array
    """The call that launches each graph; -1: it holds nothing."""
    num_nodes: Array


def _graphs(model: Model, captured: Mask) -> _Graphs:
    calls, call = model.calls, model.launch_call()
    order = np.lexsort((calls.place, calls.step, calls.source))
    new = np.ones(order.size, bool)
    new[1:] = (calls.step[order][1:] != calls.step[order][:-1]) | (
        calls.source[order][1:] != calls.source[order][:-1]
    )
    # A call that waits ends a graph: what comes after it is launched when it has returned.
    new[1:] |= calls.waits[order][:-1]
    of_call = np.empty(order.size, np.int64)
    of_call[order] = np.cumsum(new) - 1
    num = int(of_call.max(initial=-1)) + 1
    launching = np.unique(call[captured])
    first = np.full(num, NO_ROW, np.int64)
    in_order = launching[np.argsort(calls.place[launching], kind="stable")]
    graphs, heads = np.unique(of_call[in_order], return_index=True)
    first[graphs] = in_order[heads]
    return _Graphs(of_call, first, np.bincount(of_call[call[captured]], minlength=num))


def _launched_once(model: Model, captured: Mask, graphs: _Graphs, assume: Assume) -> Model:
    """Only the first call of each graph is left, as its launch."""
    calls, dependencies, num_ops = model.calls, model.dependencies, model.num_ops
    call = model.launch_call()
    gone = np.zeros(calls.row.size, bool)
    gone[call[captured]] = True
    # A call that launches something else as well is kept.
    gone[call[~captured & (call >= 0)]] = False
    gone |= (call_kinds(model) == Call.ALLOCATE) & (graphs.num_nodes[graphs.of_call] > 0)
    heads = graphs.first[graphs.first >= 0]
    work, call_ns = calls.work_ns.copy(), calls.call_ns.copy()
    before = work[heads].copy()
    if assume == Assume.MOST:
        loading, _ = loading_ns(model)
        before = np.minimum(before, loading[heads])
    work[gone], call_ns[gone] = 0, 0
    work[heads] = before
    nodes = graphs.num_nodes[graphs.of_call[heads]]
    call_ns[heads] = LAUNCH_NS[assume] + NODE_NS[assume] * nodes
    into_gone = np.append(np.zeros(num_ops, bool), gone)[dependencies.to_node]
    launches = (dependencies.kind == Kind.LAUNCH) & np.append(captured, gone)[dependencies.to_node]
    from_node = dependencies.from_node.copy()
    owner = graphs.of_call[from_node[launches] - num_ops]
    from_node[launches] = num_ops + graphs.first[owner]
    handed = into_gone & (dependencies.kind == Kind.HANDOFF)
    lag = np.where(handed, np.minimum(dependencies.lag_ns, 0), dependencies.lag_ns)
    kept = ~(into_gone & (dependencies.kind == Kind.QUEUE_LIMIT))
    # The launch of a graph waits for no thread that only captured.
    head = np.zeros(calls.row.size, bool)
    head[heads] = True
    into_head = np.append(np.zeros(num_ops, bool), head)[dependencies.to_node]
    kept &= ~(into_head & (dependencies.kind == Kind.HANDOFF))
    return model.with_calls(
        work_ns=work, call_ns=call_ns, waits=calls.waits & ~gone
    ).with_dependencies(dependencies._replace(from_node=from_node, lag_ns=lag).take(kept))


def _closer(model: Model, captured: Mask, graphs: _Graphs, assume: Assume) -> Model:
    """Pauses between operations of one graph, shorter."""
    ops = model.operations
    call = model.launch_call()
    graph = np.where(captured & (call >= 0), graphs.of_call[call], NO_ROW)
    _, before = stream_order(model)
    same = (graph >= 0) & (before >= 0) & (np.append(graph, NO_ROW)[before] == graph)
    seen = _pauses_in_graphs(model, before)
    if seen.size:
        usual = int(np.percentile(seen, (75, 50, 25)[assume]))
        shorter = np.minimum(ops.pause_ns, usual)
    else:
        shorter = np.maximum(ops.pause_ns - SHORTER_PAUSE_NS[assume], LEAST_PAUSE_NS)
        shorter = np.where(_is_seen(model, before), shorter, UNSEEN_PAUSE_NS[assume])
        shorter = np.minimum(ops.pause_ns, shorter)
    return model.with_operations(pause_ns=np.where(same, shorter, ops.pause_ns))


def _is_seen(model: Model, before: Array) -> Mask:
    """Operations whose pause is all that lay between them and the one before. Shape (ops,)."""
    table, row = model.trace.gpu_ops, model.operations.row
    ahead = np.append(row, NO_ROW)[before]
    known = (row >= 0) & (ahead >= 0)
    seen = np.ones(row.size, bool)
    gap = table["start_ns"][row[known]] - table["end_ns"][ahead[known]]
    seen[known] = model.operations.pause_ns[known] >= SEEN * gap
    return seen


def _pauses_in_graphs(model: Model, before: Array) -> Array:
    """Pauses between operations that one graph launch started; none: empty."""
    call = model.launch_call()
    from_graph = np.append(call_kinds(model) == Call.GRAPH_LAUNCH, False)[call]
    communication = is_communication(model)
    same = from_graph & (before >= 0) & (np.append(call, NO_ROW)[before] == call)
    same &= ~communication & ~np.append(communication, False)[before]
    pauses: Array = model.operations.pause_ns[same]
    return pauses


CHANGES = (CudaGraph,)
