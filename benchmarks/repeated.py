"""Repeats a recording in memory: its tables, for more sources and in time.

Nothing is read from text: the columns that the reader made are tiled. Copy k of a source is
the original with k periods added to its times; correlation ids and sequence numbers are made
fresh and references between tables point into the same copy. Source s is the original's
source s modulo their number. So the mix of operations, their nesting, lengths and gaps are
real; how often they repeat is not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.schema import NULL
from diagnose.timeline.step_times import of_source
from diagnose.trace import Table, Trace

GAP_NS = 50_000
FRESH_ID = 10_000_000
_FRESH = ("correlation", "external", "event_correlation", "sequence")
_REFERS_TO = {"launch_row": "launches", "step_row": "steps", "gpu_op_row": "gpu_ops"}
_TABLES = ("gpu_ops", "host_ops", "launches", "collectives", "steps")
_BY_THREAD = "host_ops"


def repeated(trace: Trace, num_sources: int, copies: int) -> Trace:
    """A trace of ``num_sources`` sources, each ``copies`` times as long as the original."""
    times = [trace.gpu_ops, trace.host_ops, trace.launches, trace.steps]
    first = min(int(table["start_ns"].min()) for table in times if len(table))
    last = max(int(table["end_ns"].max()) for table in times if len(table))
    period = last - first + GAP_NS
    made: dict[str, Any] = {}
    for name in _TABLES:
        table: Table = getattr(trace, name)
        parts = [
            _source(trace, name, number, copies, period, num_sources)
            for number in range(num_sources)
        ]
        columns = {
            column.name: np.concatenate([part[column.name] for part in parts])
            for column in table.schema.columns
        }
        made[name] = Table(table.schema, columns, trace.strings)
    sources = tuple(
        dataclasses.replace(trace.sources[number % len(trace.sources)], rank=number)
        for number in range(num_sources)
    )
    empty = {
        name: getattr(trace, name).take(np.empty(0, np.int64)) for name in ("syncs", "samples")
    }
    return dataclasses.replace(trace, sources=sources, **made, **empty)


def _rows(trace: Trace, name: str, source: int) -> slice:
    """Rows of a source; of collectives those of its GPU operations."""
    if name != "collectives":
        return of_source(getattr(trace, name), source)
    ops = of_source(trace.gpu_ops, source)
    low, high = np.searchsorted(trace.collectives["gpu_op_row"], [ops.start, ops.stop])
    return slice(int(low), int(high))


def _source(
    trace: Trace, name: str, number: int, copies: int, period: int, num_sources: int
) -> dict[str, npt.NDArray[Any]]:
    table: Table = getattr(trace, name)
    original = number % len(trace.sources)
    rows = _rows(trace, name, original)
    size = rows.stop - rows.start
    copy = np.repeat(np.arange(copies), size)
    found: dict[str, npt.NDArray[Any]] = {}
    for column in table.schema.columns:
        values = np.tile(table[column.name][rows], copies)
        known = np.tile(table.known(column.name)[rows], copies)
        if column.name in ("start_ns", "end_ns"):
            values = values + copy * period
        elif column.name == "source":
            values = np.full(values.size, number, values.dtype)
        elif column.name in _FRESH:
            values = np.where(known, values + copy * FRESH_ID, NULL)
        elif column.name in _REFERS_TO:
            target = _REFERS_TO[column.name]
            length = _length(trace, target, original)
            before = sum(_length(trace, target, other) * copies for other in range(number))
            moved = values - _rows(trace, target, original).start + copy * length + before
            values = np.where(known, moved, values)
        found[column.name] = values.astype(column.dtype)
    if name == _BY_THREAD:
        order = np.lexsort((found["start_ns"], found["thread"]))
        found = {key: values[order] for key, values in found.items()}
    if "op_id" in found:
        found["op_id"] = np.arange(number, size * copies * num_sources, num_sources)
    return found


def _length(trace: Trace, name: str, number: int) -> int:
    rows = _rows(trace, name, number % len(trace.sources))
    return int(rows.stop) - int(rows.start)
