"""The critical path of each step, and how much later each collective could have ended.

``graph`` says what depends on what (``gpu_edges``, ``host_edges``, ``peers``),
``search`` walks the path, ``slack`` goes over the same graph from the end, and
``cost`` draws from both what communication costs. Where operations of several
ranks are matched, the path goes through a collective to the rank that came last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._idle_causes.causes import Confidence
from diagnose.analyzers.critical_path.cost import (
    COMMUNICATION_COST,
    SLACK,
    cost_table,
    slack_table,
)
from diagnose.analyzers.critical_path.edges import Edge
from diagnose.analyzers.critical_path.graph import DependencyGraph, build
from diagnose.analyzers.critical_path.peers import find_peers
from diagnose.analyzers.critical_path.search import PathClass, PathFinder
from diagnose.analyzers.critical_path.slack import slack
from diagnose.analyzers.critical_path.spans import limits, spans
from diagnose.analyzers.critical_path.summary import PATH_CLASSES, PATH_OPS, classes_of, ops_of
from diagnose.schema import NO_ROW, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

CRITICAL_PATH = TableSchema(
    "critical_path",
    "one stretch of the critical path of one step of one GPU",
    (
        Column("source", "int32", "index into `Trace.sources`: whose step it is"),
        Column("device", "int32", "device number within its process"),
        Column("step_row", "int64", "row of `steps`; unknown: the whole window", nullable=True),
        Column("start_ns", "int64", "start on the clock of `source`", "ns"),
        Column("end_ns", "int64", "end, not included", "ns"),
        Column("length_ns", "int64", "end - start; they sum to the step time", "ns"),
        Column("path_class", "int8", "what the stretch is", choices=PathClass),
        Column("at_source", "int32", "source on which it happened: another rank's, at times"),
        Column("gpu_op_row", "int64", "operation, or the one after a pause", nullable=True),
        Column("call_row", "int64", "host call that the stretch leads to", nullable=True),
        Column("edge", "int8", "number of the `Edge` that leads back from here; -1: none"),
        Column("confidence", "int8", "how sure that edge is", choices=Confidence),
    ),
    order=("source", "device", "start_ns"),
)

_NO_WORK = Unavailable(
    "the trace holds no GPU work", "record with ProfilerActivity.CUDA and after a warm-up"
)


def critical_path(trace: Trace, across_ranks: bool = True) -> Table | Unavailable:
    """The critical path of every step that has a time, per GPU; without steps of the window.

    ``across_ranks=False`` keeps each path on its rank: waiting for peers then shows
    as ``peer_wait`` where operations are matched, else within communication.
    """
    if not trace.gpus:
        return _NO_WORK
    return path_table(trace, build(trace, find_peers(trace)), across_ranks)


def critical_path_classes(trace: Trace, across_ranks: bool = True) -> Table | Unavailable:
    """The critical path of each step by class; ``across_ranks`` as in ``critical_path``."""
    path = critical_path(trace, across_ranks)
    return path if isinstance(path, Unavailable) else classes_of(path)


def critical_path_ops(trace: Trace, across_ranks: bool = True) -> Table | Unavailable:
    """Which operations are the critical path, longest first; all steps of a GPU together."""
    path = critical_path(trace, across_ranks)
    return path if isinstance(path, Unavailable) else ops_of(trace, path)


def collective_slack(trace: Trace) -> Table | Unavailable:
    """Slack, wait, transfer, exposed and blocking time of every communication operation."""
    if not trace.gpus:
        return _NO_WORK
    peers = find_peers(trace)
    graph = build(trace, peers)
    path = path_table(trace, graph)
    limit = peers.aligned(trace.gpu_ops["source"].astype(np.int64), limits(trace))
    return slack_table(trace, graph, path, slack(graph, limit))


def communication_cost(trace: Trace) -> Table | Unavailable:
    """Per GPU: exposed and blocking communication, and overlap of the transfer alone."""
    table = collective_slack(trace)
    return table if isinstance(table, Unavailable) else cost_table(trace, table)


def path_table(trace: Trace, graph: DependencyGraph, across_ranks: bool = True) -> Table:
    """The ``critical_path`` table from a graph."""
    finder = PathFinder(trace, graph, across_ranks=across_ranks)
    parts = [np.empty((0, 10), np.int64)]
    for gpu in sorted(trace.gpus, key=lambda gpu: (gpu.source, gpu.device)):
        rows = trace.on(gpu)
        ends = trace.gpu_ops["end_ns"][rows]
        for step, begin, end in spans(trace, gpu):
            last = rows.start + int(np.flatnonzero(ends == end)[-1])
            shift = int(graph.end_ns[last]) - end
            path = finder.walk(last, begin + shift)
            owner = np.array([[gpu.source, gpu.device, step, shift]], np.int64)
            parts.append(np.hstack([np.repeat(owner, len(path), axis=0), path]))
    whole = np.concatenate(parts)
    parts.clear()  # of a long step, tens of megabytes
    return Table(CRITICAL_PATH, _columns(graph, whole), trace.strings)


def _columns(graph: DependencyGraph, table: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    source, device, step, shift, kind, start, end, node, edge, confidence = table.T
    is_op = node < graph.num_ops
    return {
        "source": source.astype(np.int32),
        "device": device.astype(np.int32),
        "step_row": step.copy(),
        "start_ns": start - shift,
        "end_ns": end - shift,
        "length_ns": end - start,
        "path_class": kind.astype(np.int8),
        "at_source": graph.source[node].astype(np.int32),
        "gpu_op_row": np.where(is_op, node, NO_ROW),
        "call_row": graph.call_row(node),
        "edge": edge.astype(np.int8),
        "confidence": confidence.astype(np.int8),
    }


ANALYZERS = (
    Analyzer("critical_path", Detail.LAUNCHES, CRITICAL_PATH, critical_path),
    Analyzer("critical_path_classes", Detail.LAUNCHES, PATH_CLASSES, critical_path_classes),
    Analyzer("critical_path_ops", Detail.LAUNCHES, PATH_OPS, critical_path_ops),
    Analyzer("slack", Detail.LAUNCHES, SLACK, collective_slack),
    Analyzer("communication_cost", Detail.LAUNCHES, COMMUNICATION_COST, communication_cost),
)

__all__ = ["ANALYZERS", "Edge", "build", "collective_slack", "critical_path"]
