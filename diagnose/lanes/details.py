"""One operation and what it hangs together with: its launch, its callers, its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.intervals import Array
from diagnose.lanes.lane import Op, OpTable
from diagnose.schema import NO_ROW, NULL
from diagnose.timeline.step_times import of_source
from diagnose.trace import Table, Trace

_MOST_OPS = 50


class Fact(NamedTuple):
    """Something known of an operation. ``unit`` as in the schema; empty for texts and counts."""

    label: str
    value: int | float | str
    unit: str = ""


class Peer(NamedTuple):
    """A GPU's part in the same collective. Times are null where the clocks do not compare."""

    op: Op
    source: int
    duration_ns: int
    late_ns: int | None
    """Own arrival less the first; None: unknown."""
    wait_ns: int


@dataclass(frozen=True)
class Details:
    """All that the trace knows of one operation.

    ``launch`` of a GPU operation: the call that launched it; ``launched`` of a host operation
    or a call: the first GPU operations by start that were launched within it, ``num_launched``
    all of them. ``stack``: operators and annotations around it on its host thread (around its
    launch for a GPU operation), the outermost first. ``peers``: the same collective on every
    GPU, this one included, if it was matched.
    """

    op: Op
    name: str
    facts: tuple[Fact, ...]
    launch: Op | None = None
    launched: tuple[Op, ...] = ()
    num_launched: int = 0
    stack: tuple[Op, ...] = ()
    peers: tuple[Peer, ...] = ()


def details_of(trace: Trace, op: Op, rank_waits: Table | Unavailable | None = None) -> Details:
    """Everything about one row. ``rank_waits``: that analysis, for the peers of a collective."""
    table = {
        OpTable.GPU_OPS: trace.gpu_ops,
        OpTable.HOST_OPS: trace.host_ops,
        OpTable.LAUNCHES: trace.launches,
    }[op.table]
    name = trace.strings[int(table["name"][op.row])]
    launch = _launch(trace, op)
    launched = _launched(trace, op)
    around = launch if op.table == OpTable.GPU_OPS else op
    return Details(
        op,
        name,
        (*_facts(trace, table, op.row), *_collective(trace, op)),
        launch,
        tuple(Op(OpTable.GPU_OPS, row) for row in launched[:_MOST_OPS].tolist()),
        len(launched),
        () if around is None else _stack(trace, around),
        _peers(op, rank_waits),
    )


def _launch(trace: Trace, op: Op) -> Op | None:
    if op.table != OpTable.GPU_OPS:
        return None
    row = int(trace.gpu_ops["launch_row"][op.row])
    return Op(OpTable.LAUNCHES, row) if row >= 0 else None


def _launched(trace: Trace, op: Op) -> Array:
    """Rows of the GPU operations launched by a call, or by calls within a host operation."""
    empty = np.empty(0, np.int64)
    if op.table == OpTable.GPU_OPS:
        return empty
    by = trace.gpu_ops["launch_row"]
    if op.table == OpTable.LAUNCHES:
        return np.flatnonzero(by == op.row)
    held = trace.host_ops
    source, thread = int(held["source"][op.row]), held["thread"][op.row]
    start, end = int(held["start_ns"][op.row]), int(held["end_ns"][op.row])
    calls = of_source(trace.launches, source)
    first = calls.start + int(np.searchsorted(trace.launches["start_ns"][calls], start))
    last = calls.start + int(np.searchsorted(trace.launches["start_ns"][calls], end))
    within = np.zeros(len(trace.launches) + 1, bool)
    within[first:last] = trace.launches["thread"][first:last] == thread
    # A row of -1 (no launch) looks at the entry behind the last one, which is never within.
    found: Array = np.flatnonzero(within[np.where(by < 0, len(trace.launches), by)])
    return found


def _stack(trace: Trace, op: Op) -> tuple[Op, ...]:
    held = trace.launches if op.table == OpTable.LAUNCHES else trace.host_ops
    source, thread = int(held["source"][op.row]), held["thread"][op.row]
    start, end = int(held["start_ns"][op.row]), int(held["end_ns"][op.row])
    hosts = trace.host_ops
    own = of_source(hosts, source)
    around = (
        (hosts["thread"][own] == thread)
        & (hosts["start_ns"][own] <= start)
        & (hosts["end_ns"][own] >= end)
    )
    rows = np.flatnonzero(around) + own.start
    if op.table == OpTable.HOST_OPS:
        rows = rows[rows != op.row]
    length = hosts["end_ns"][rows] - hosts["start_ns"][rows]
    order = np.lexsort([hosts["op_id"][rows], -length])
    return tuple(Op(OpTable.HOST_OPS, row) for row in rows[order].tolist())


def _facts(trace: Trace, table: Table, row: int) -> list[Fact]:
    """Every known column of a row that says something to a person."""
    start, end = int(table["start_ns"][row]), int(table["end_ns"][row])
    facts = [Fact("duration", end - start, "ns")]
    for column in table.schema.columns:
        if column.name in _TOLD_ELSEWHERE:
            continue
        value = table[column.name][row].item()
        if column.name == "certain":
            if not value:
                facts.append(Fact("class", "likely, told by the name alone"))
        elif column.text:
            if value >= 0:
                facts.append(Fact(_label(column.name), trace.strings[value]))
        elif column.choices is not None:
            facts.append(Fact(_label(column.name), column.choices(value).name.lower()))
        elif column.name == "step_row":
            if value >= 0:
                facts.append(Fact("step", trace.strings[int(trace.steps["name"][value])]))
        elif not (column.nullable and value in (NULL, NO_ROW)):
            facts.append(Fact(_label(column.name), value, column.unit))
    return facts


_TOLD_ELSEWHERE = frozenset({"op_id", "source", "start_ns", "end_ns", "name", "launch_row"})


def _label(name: str) -> str:
    return name.replace("_", " ")


def _collective(trace: Trace, op: Op) -> list[Fact]:
    if op.table != OpTable.GPU_OPS:
        return []
    at = int(np.searchsorted(trace.collectives["gpu_op_row"], op.row))
    if at == len(trace.collectives) or trace.collectives["gpu_op_row"][at] != op.row:
        return []
    found = []
    for column in trace.collectives.schema.columns:
        value = trace.collectives[column.name][at].item()
        if column.name in ("gpu_op_row", "name"):
            continue
        if column.text:
            if value >= 0:
                found.append(Fact(_label(column.name), trace.strings[value]))
        elif not (column.nullable and value == NULL):
            found.append(Fact(_label(column.name), value, column.unit))
    return found


def _peers(op: Op, waits: Table | Unavailable | None) -> tuple[Peer, ...]:
    if op.table != OpTable.GPU_OPS or waits is None or isinstance(waits, Unavailable):
        return ()
    own = np.flatnonzero(waits["gpu_op_row"] == op.row)
    if not own.size:
        return ()
    rows = np.flatnonzero(waits["match"] == waits["match"][own[0]])
    late = waits.known("late_ns")
    return tuple(
        Peer(
            Op(OpTable.GPU_OPS, int(waits["gpu_op_row"][row])),
            int(waits["source"][row]),
            int(waits["duration_ns"][row]),
            int(waits["late_ns"][row]) if late[row] else None,
            int(waits["wait_ns"][row]),
        )
        for row in rows.tolist()
    )
