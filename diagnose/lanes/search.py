"""Operations by name: how many, where, and the next one from a moment on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.lanes.lane import Lane, LaneKind, Op, OpTable, rows_on_stream, rows_on_thread
from diagnose.trace import Table, Trace

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Hits:
    """What a search found: equal long columns, by start on the axis, then table and row."""

    text: str
    table: npt.NDArray[np.int8]
    """An ``OpTable``."""
    row: Array
    start_ns: Array

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, place: int) -> Op:
        return Op(OpTable(int(self.table[place])), int(self.row[place]))

    def after(self, time_ns: int) -> int | None:
        """Place of the first hit that starts later than a moment; None: there is none."""
        place = int(np.searchsorted(self.start_ns, time_ns, side="right"))
        return place if place < len(self) else None

    def before(self, time_ns: int) -> int | None:
        """Place of the last hit that starts earlier than a moment; None: there is none."""
        place = int(np.searchsorted(self.start_ns, time_ns, side="left")) - 1
        return place if place >= 0 else None

    def place_of(self, op: Op) -> int | None:
        """The place of an operation among the hits; None if it is not one."""
        found = np.flatnonzero((self.row == op.row) & (self.table == op.table))
        return int(found[0]) if found.size else None


def search(
    trace: Trace,
    text: str,
    lanes: Sequence[Lane] | None,
    to_common: Callable[[int, Array], Array],
) -> Hits:
    """Operations whose name contains ``text``; of these lanes only, if given."""
    wanted = text.casefold()
    named = trace.strings.where(lambda word: bool(wanted) and wanted in word.casefold())
    tables, rows, starts = [], [], []
    for kind, table in (
        (OpTable.GPU_OPS, trace.gpu_ops),
        (OpTable.HOST_OPS, trace.host_ops),
        (OpTable.LAUNCHES, trace.launches),
    ):
        found = _found(trace, kind, table, named, lanes)
        tables.append(np.full(found.size, kind, np.int8))
        rows.append(found)
        starts.append(_on_axis(table, found, to_common))
    table_, row, start = np.concatenate(tables), np.concatenate(rows), np.concatenate(starts)
    order = np.lexsort((row, table_, start))
    return Hits(text, table_[order], row[order], start[order])


def _found(
    trace: Trace, kind: OpTable, table: Table, named: Mask, lanes: Sequence[Lane] | None
) -> Array:
    if not named.any() or not len(table):
        return np.empty(0, np.int64)
    if lanes is None:
        return np.flatnonzero(named[table["name"]])
    parts = [np.empty(0, np.int64)]
    for lane in lanes:
        if lane.kind == LaneKind.STREAM and kind == OpTable.GPU_OPS:
            parts.append(rows_on_stream(trace, lane))
        elif lane.kind == LaneKind.THREAD and kind != OpTable.GPU_OPS:
            parts.append(rows_on_thread(trace, lane, table))
    rows = np.unique(np.concatenate(parts))
    found: Array = rows[named[table["name"][rows]]]
    return found


def _on_axis(table: Table, rows: Array, to_common: Callable[[int, Array], Array]) -> Array:
    """Starts on the axis of rows, which are sorted by source as every table is."""
    source, start = table["source"][rows], table["start_ns"][rows].copy()
    cuts = np.flatnonzero(source[1:] != source[:-1]) + 1
    for part in np.split(np.arange(rows.size), cuts) if rows.size else []:
        start[part] = to_common(int(source[part[0]]), start[part])
    return start
