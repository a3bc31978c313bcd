"""From tables to the sub-rows of a lane: what lies on which row in which colour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array, Intervals, intersect, subtract, union
from diagnose.lanes.index import LaneIndex, SubRow, index_of, state_row
from diagnose.lanes.lane import Category, Lane, OpTable, rows_on_stream, rows_on_thread
from diagnose.lanes.rows import depths, drawing_order
from diagnose.schema import Activity
from diagnose.trace import Gpu, Trace

_OF_ACTIVITY = {
    Activity.COMPUTE: Category.COMPUTE,
    Activity.COMMUNICATION: Category.OVERLAPPED,
    Activity.MEMORY: Category.COPIES,
}


def states_of(trace: Trace, gpu: Gpu) -> dict[Category, Intervals]:
    """When a GPU was in each state, as ``breakdown`` defines them; they exclude each other."""
    rows = trace.on(gpu)
    start, end = trace.gpu_ops["start_ns"][rows], trace.gpu_ops["end_ns"][rows]
    activity = trace.gpu_ops["activity"][rows]

    def united(kind: Activity) -> Intervals:
        return union(start[activity == kind], end[activity == kind])

    compute, communication = united(Activity.COMPUTE), united(Activity.COMMUNICATION)
    works = union(
        np.concatenate([compute.start, communication.start]),
        np.concatenate([compute.end, communication.end]),
    )
    return {
        Category.COMPUTE: subtract(compute, communication),
        Category.OVERLAPPED: intersect(compute, communication),
        Category.EXPOSED: subtract(communication, compute),
        Category.COPIES: subtract(united(Activity.MEMORY), works),
    }


def states_index(states: dict[Category, Intervals]) -> LaneIndex:
    """The index of a GPU's states lane."""
    return index_of([state_row(category, 0, when) for category, when in states.items()])


def stream_index(trace: Trace, lane: Lane, exposed: Intervals) -> LaneIndex:
    """The index of a stream lane; ``exposed`` is when its GPU only communicates."""
    rows = rows_on_stream(trace, lane)
    start, end = trace.gpu_ops["start_ns"][rows], trace.gpu_ops["end_ns"][rows]
    order = drawing_order(start, end)
    rows, start, end = rows[order], start[order], end[order]
    category = np.array([_OF_ACTIVITY[a] for a in Activity], np.int8)
    found: list[SubRow] = []
    codes = category[trace.gpu_ops["activity"][rows]]
    table = np.full(rows.size, OpTable.GPU_OPS, np.int8)
    for part in _divided(depths(start, end), codes, table, start, end, rows):
        found.append(part)
        if part.category == Category.OVERLAPPED:
            alone = intersect(exposed, union(part.start, part.end))
            found.append(state_row(Category.EXPOSED, part.depth, alone))
    return index_of(found)


def thread_index(trace: Trace, lane: Lane) -> LaneIndex:
    """The index of a host thread: operators and annotations, and the calls made in them."""
    host = rows_on_thread(trace, lane, trace.host_ops)
    calls = rows_on_thread(trace, lane, trace.launches)
    rows = np.concatenate([host, calls])
    start, end = (
        np.concatenate([trace.host_ops[name][host], trace.launches[name][calls]])
        for name in ("start_ns", "end_ns")
    )
    sizes = [host.size, calls.size]
    category = np.repeat(np.array([Category.HOST, Category.CALL], np.int8), sizes)
    table = np.repeat(np.array([OpTable.HOST_OPS, OpTable.LAUNCHES], np.int8), sizes)
    order = drawing_order(start, end)
    rows, start, end = rows[order], start[order], end[order]
    depth = depths(start, end)
    return index_of(list(_divided(depth, category[order], table[order], start, end, rows)))


def _divided(
    depth: Array,
    category: npt.NDArray[np.int8],
    table: npt.NDArray[np.int8],
    start: Array,
    end: Array,
    row: Array,
) -> Iterator[SubRow]:
    """One sub-row for each row and colour. Each keeps the order of starts."""
    key = depth * (max(Category) + 1) + category
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    for part in np.split(order, cuts) if order.size else []:
        one = int(part[0])
        yield SubRow(
            int(depth[one]),
            Category(int(category[one])),
            OpTable(int(table[one])),
            start[part],
            end[part],
            row[part],
        )
