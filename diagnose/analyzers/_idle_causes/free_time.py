"""The intervals in which a GPU neither computes nor communicates, cut so that each is one thing.

Free time = window minus (compute or communication). Where a copy or fill runs
it is cut by operation (the one that began first has the time), where nothing
runs it is idle; both are cut at the ends of steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Intervals, gaps, intersect, union
from diagnose.schema import NO_ROW, NULL, Activity
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Gpu, Trace

Array = npt.NDArray[np.int64]


class FreeTime(NamedTuple):
    """Sorted and disjoint; arrays of shape (intervals,), times in ns, rows of the tables named."""

    start: Array
    end: Array
    memory_row: Array
    """Row of ``gpu_ops`` of the copy or fill that runs alone; -1: idle."""
    next_row: Array
    """Row of ``gpu_ops`` of the operation that begins at or first after the end; -1: none."""
    last_row: Array
    """Row of ``gpu_ops`` of the operation that ended last before the start; -1: none."""
    step_row: Array
    """Row of ``steps`` in whose step time it lies; -1: in no step that has a time."""


def _owned(start: Array, end: Array) -> tuple[Array, Array, Array]:
    """Sorted intervals to a disjoint cover: starts, ends, and which interval owns each."""
    done = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    begin = np.maximum(start, done)
    keep = np.flatnonzero(end > begin)
    return begin[keep], end[keep], keep.astype(np.int64)


def _cut(start: Array, end: Array, at: Array) -> tuple[Array, Array]:
    inside = at[(np.searchsorted(start, at, "left") - np.searchsorted(end, at, "right")) == 1]
    return np.sort(np.concatenate([start, inside])), np.sort(np.concatenate([end, inside]))


def free_time(trace: Trace, gpu: Gpu, window: tuple[int, int] | None = None) -> FreeTime:
    """The free intervals of one GPU in its own window (first start to last end) or a given one."""
    rows = trace.on(gpu)
    ops = trace.gpu_ops
    start, end, activity = ops["start_ns"][rows], ops["end_ns"][rows], ops["activity"][rows]
    first, last = window or (int(start.min()), int(end.max()))
    work, memory = activity != Activity.MEMORY, activity == Activity.MEMORY
    free = gaps(union(start[work], end[work]), first, last)
    memory_index = np.flatnonzero(memory)
    owned_start, owned_end, owner = _owned(start[memory], end[memory])
    alone = intersect(Intervals(owned_start, owned_end), free)
    idle = gaps(union(start, end), first, last)
    times, first_step = step_times(trace, gpu), of_source(trace.steps, gpu.source).start
    whole = np.flatnonzero(times.begin != NULL)
    step_begin, step_end = times.begin[whole], times.end[whole]
    boundaries = np.unique(np.concatenate([step_begin, step_end]))
    alone_start, alone_end = _cut(*alone, boundaries)
    idle_start, idle_end = _cut(*idle, boundaries)
    begin = np.concatenate([alone_start, idle_start])
    stop = np.concatenate([alone_end, idle_end])
    row = np.full(begin.size, NO_ROW, np.int64)
    if alone_start.size:
        which = np.searchsorted(owned_start, alone_start, side="right") - 1
        row[: alone_start.size] = rows.start + memory_index[owner[which]]
    order = np.argsort(begin, kind="stable")
    begin, stop, row = begin[order], stop[order], row[order]
    following = np.searchsorted(start, stop, side="left")
    by_end = np.argsort(end, kind="stable")
    before = np.searchsorted(end[by_end], begin, side="right") - 1
    step = np.full(begin.size, NO_ROW, np.int64)
    if whole.size:
        position = np.searchsorted(step_begin, begin, side="right") - 1
        inside = (position >= 0) & (begin < step_end[np.maximum(position, 0)])
        step[inside] = first_step + whole[position[inside]]
    return FreeTime(
        begin,
        stop,
        row,
        np.where(following < start.size, rows.start + following, NO_ROW),
        np.where(before >= 0, rows.start + by_end[np.maximum(before, 0)], NO_ROW),
        step,
    )
