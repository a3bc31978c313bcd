"""What communication costs a step: slack, waiting, exposed and blocking time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.analyzers.critical_path.spans import spans
from diagnose.intervals import (
    Intervals,
    covered_length,
    intersect,
    intersection_length,
    union,
    union_length,
)
from diagnose.schema import NO_ROW, NULL, Activity, Column, TableSchema
from diagnose.trace import Gpu, Table, Trace

Array = npt.NDArray[np.int64]

_SOURCE = Column("source", "int32", "index into `Trace.sources`")
_DEVICE = Column("device", "int32", "device number within its process")

SLACK = TableSchema(
    "slack",
    "one operation that is communication, and what it costs its step",
    (
        Column("gpu_op_row", "int64", "row of `gpu_ops`"),
        _SOURCE,
        _DEVICE,
        Column("step_row", "int64", "row of `steps` that launched it", nullable=True),
        Column("slack_ns", "int64", "how much later it could end at no cost to a step", "ns"),
        Column("wait_ns", "int64", "waiting for the last rank; unknown: unmatched", "ns", True),
        Column("transfer_ns", "int64", "its duration without that wait", "ns"),
        Column("exposed_ns", "int64", "time without compute beside it on its GPU", "ns"),
        Column("exposed_transfer_ns", "int64", "the same, of the transfer alone", "ns"),
        Column("on_path_ns", "int64", "transfer on its GPU's critical path", "ns"),
        Column("blocking_ns", "int64", "exposed transfer on that path", "ns"),
    ),
    order=("gpu_op_row",),
)

COMMUNICATION_COST = TableSchema(
    "communication_cost",
    "one GPU: what its communication costs, from the upper bound down to what blocks",
    (
        _SOURCE,
        _DEVICE,
        Column(
            "step_time_ns", "int64", "the steps with a time (else the window); all is of it", "ns"
        ),
        Column("communication_ns", "int64", "union of communication", "ns"),
        Column("exposed_ns", "int64", "of it without compute beside it", "ns"),
        Column("blocking_ns", "int64", "exposed transfer on the critical path", "ns"),
        Column("num_ops", "int64", "communication operations"),
        Column("num_matched", "int64", "of them matched with other ranks"),
        Column("transfer_ns", "int64", "union of the transfer of the matched", "ns", nullable=True),
        Column("overlapped_transfer_ns", "int64", "of it beside compute", "ns", nullable=True),
        Column(
            "overlap_of_transfer_pct", "float64", "overlapped share of transfer", "%", nullable=True
        ),
    ),
    order=("source", "device"),
)


class _Costs(NamedTuple):
    exposed: Array
    exposed_transfer: Array
    on_path: Array
    blocking: Array


def _busy(trace: Trace, gpu: Gpu) -> Intervals:
    on, ops = trace.on(gpu), trace.gpu_ops
    compute = ops["activity"][on] == Activity.COMPUTE
    return union(ops["start_ns"][on][compute], ops["end_ns"][on][compute])


def _uncovered(busy: Intervals, start: Array, end: Array) -> Array:
    left: Array = end - start - covered_length(busy, start, end)
    return left


def _gpu_index(gpus: list[Gpu], table: Table) -> Array:
    """The place in ``gpus`` of each row of a table with ``source`` and ``device``."""
    index = np.full(len(table), NO_ROW, np.int64)
    for number, gpu in enumerate(gpus):
        index[(table["source"] == gpu.source) & (table["device"] == gpu.device)] = number
    return index


def _costs(trace: Trace, graph: DependencyGraph, rows: Array, wait: Array, path: Table) -> _Costs:
    gpus = sorted(trace.gpus, key=lambda gpu: (gpu.source, gpu.device))
    start, end = trace.gpu_ops["start_ns"][rows] + wait, trace.gpu_ops["end_ns"][rows]
    exposed, exposed_transfer = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
    on_path, blocking = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
    path = path.take(path["path_class"] == PathClass.COMMUNICATION)
    of_path = _gpu_index(gpus, path)
    for number, gpu in enumerate(gpus):
        on, busy = trace.on(gpu), _busy(trace, gpu)
        mine = np.arange(*np.searchsorted(rows, [on.start, on.stop]))
        exposed[mine] = _uncovered(busy, start[mine] - wait[mine], end[mine])
        exposed_transfer[mine] = _uncovered(busy, start[mine], end[mine])
        segments = np.flatnonzero(of_path == number)
        at = _same_collective(graph.match, rows[mine], path["gpu_op_row"][segments])
        segments, at = segments[at >= 0], mine[at[at >= 0]]
        # Ranks do not leave a collective at the same nanosecond: what counts is the own stay.
        begin = np.maximum(path["start_ns"][segments], start[at])
        stop = np.maximum(np.minimum(path["end_ns"][segments], end[at]), begin)
        np.add.at(on_path, at, stop - begin)
        np.add.at(blocking, at, _uncovered(busy, begin, stop))
    return _Costs(exposed, exposed_transfer, on_path, blocking)


def _same_collective(match: Array, own: Array, met: Array) -> Array:
    """For each operation ``met`` on a path: which of ``own`` it is, or is one collective with.

    Where the path is on another rank it runs through the same collective there.
    An index into ``own``, -1: none of them. int64, shape of ``met``.
    """
    if not own.size:
        return np.full(met.size, NO_ROW, np.int64)
    # What is not matched is only itself: its row, below all numbers of matches.
    wanted = np.where(match[met] >= 0, match[met], -1 - met)
    numbers = np.where(match[own] >= 0, match[own], -1 - own)
    order = np.argsort(numbers, kind="stable")
    found = numbers[order]
    at = np.minimum(np.searchsorted(found, wanted), own.size - 1)
    return np.where(found[at] == wanted, order[at], NO_ROW)


def slack_table(trace: Trace, graph: DependencyGraph, path: Table, slack: Array) -> Table:
    """The ``slack`` table. ``slack``: of every GPU operation, int64 ns, shape (gpu_ops,)."""
    ops = trace.gpu_ops
    rows = np.flatnonzero(ops["activity"] == Activity.COMMUNICATION).astype(np.int64)
    wait = graph.join_ns[rows] - graph.start_ns[rows]
    costs = _costs(trace, graph, rows, wait, path)
    return Table(
        SLACK,
        {
            "gpu_op_row": rows,
            "source": ops["source"][rows],
            "device": ops["device"][rows],
            "step_row": ops["step_row"][rows],
            "slack_ns": slack[rows],
            "wait_ns": np.where(graph.match[rows] >= 0, wait, NULL),
            "transfer_ns": ops["end_ns"][rows] - ops["start_ns"][rows] - wait,
            "exposed_ns": costs.exposed,
            "exposed_transfer_ns": costs.exposed_transfer,
            "on_path_ns": costs.on_path,
            "blocking_ns": costs.blocking,
        },
        trace.strings,
    )


def cost_table(trace: Trace, table: Table) -> Table:
    """The ``communication_cost`` table from the ``slack`` table."""
    gpus = sorted(trace.gpus, key=lambda gpu: (gpu.source, gpu.device))
    rows = [_cost(trace, table, gpu) for gpu in gpus]
    typed = {
        c.name: np.array([r[c.name] for r in rows], c.dtype) for c in COMMUNICATION_COST.columns
    }
    return Table(COMMUNICATION_COST, typed, trace.strings)


def _cost(trace: Trace, table: Table, gpu: Gpu) -> dict[str, float]:
    ops, on, busy = trace.gpu_ops, trace.on(gpu), _busy(trace, gpu)
    mine = (table["gpu_op_row"] >= on.start) & (table["gpu_op_row"] < on.stop)
    row, wait = table["gpu_op_row"][mine], table["wait_ns"][mine]
    steps = spans(trace, gpu)
    asked = union(
        np.array([begin for _, begin, _ in steps], np.int64),
        np.array([end for _, _, end in steps], np.int64),
    )
    start, end, matched = ops["start_ns"][row], ops["end_ns"][row], wait != NULL
    inside = (end > asked.start[0]) & (start < asked.end[-1])
    communication = intersect(union(start, end), asked)
    moving = intersect(union((start + wait)[matched], end[matched]), asked)
    transfer, hidden = union_length(*moving), intersection_length(moving, busy)
    known = bool(matched[inside].any())
    return {
        "source": gpu.source,
        "device": gpu.device,
        "step_time_ns": union_length(*asked),
        "communication_ns": union_length(*communication),
        "exposed_ns": union_length(*communication) - intersection_length(communication, busy),
        "blocking_ns": int(table["blocking_ns"][mine].sum()),
        "num_ops": int(inside.sum()),
        "num_matched": int((inside & matched).sum()),
        "transfer_ns": transfer if known else NULL,
        "overlapped_transfer_ns": hidden if known else NULL,
        "overlap_of_transfer_pct": 100 * hidden / transfer if known and transfer else float("nan"),
    }
