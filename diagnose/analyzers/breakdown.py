"""What a GPU was doing at each instant: five states that fill the time exactly.

The figures of ``overlap`` belong to operations: a step's communication counts
for the step that launched it, whenever it ran. This table belongs to time: it
divides a stretch of time among five states that exclude each other, so they sum
to it. That is what a bar can show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer
from diagnose.intervals import Array, Intervals, covered_length, intersect, union
from diagnose.schema import NO_ROW, NULL, Activity, Column, Detail, TableSchema
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Gpu, Table, Trace

BREAKDOWN = TableSchema(
    "breakdown",
    "one stretch of time of one GPU: its whole window, or one step that has a step time",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("device", "int32", "device number within its process"),
        Column("rank", "int64", "rank of the source", nullable=True),
        Column("step_row", "int64", "row of `steps`; unknown for the whole window", nullable=True),
        Column("start_ns", "int64", "start: of the window, or the end of the step before", "ns"),
        Column("end_ns", "int64", "end: of the window, or the step's last GPU end", "ns"),
        Column("compute_only_ns", "int64", "compute and no communication", "ns"),
        Column("overlapped_ns", "int64", "compute and communication at the same time", "ns"),
        Column("exposed_communication_ns", "int64", "communication and no compute", "ns"),
        Column("memory_only_ns", "int64", "copies or fills and nothing else", "ns"),
        Column("idle_ns", "int64", "nothing", "ns"),
    ),
    order=("source", "device", "start_ns", "step_row"),
)


def breakdown(trace: Trace) -> Table:
    """Divide the window of each GPU, and each step that has a step time, among five states.

    With C and M the unions of a GPU's compute and communication and B of all its
    work, of a stretch S::

        compute_only = |S and C| - |S and C and M|     overlapped = |S and C and M|
        exposed      = |S and M| - |S and C and M|     idle       = |S| - |S and B|
        memory_only  = |S and B| - (|S and C| + |S and M| - |S and C and M|)

    A step's stretch is its step time (``diagnose.timeline.step_times``); steps
    without one have no row. Integer nanoseconds, exact.
    """
    parts = [_divide(trace, gpu, *_stretches(trace, gpu)) for gpu in trace.gpus]
    columns = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if parts
        else BREAKDOWN.empty()
    )
    return Table(BREAKDOWN, columns, trace.strings)


def _stretches(trace: Trace, gpu: Gpu) -> tuple[Array, Array, Array]:
    """Step row, start and end of what is to be divided on one GPU; the window first."""
    ops = trace.on(gpu)
    window_start = trace.gpu_ops["start_ns"][ops].min()
    window_end = trace.gpu_ops["end_ns"][ops].max()
    times = step_times(trace, gpu)
    timed = np.flatnonzero(times.begin != NULL)
    row = timed + of_source(trace.steps, gpu.source).start
    return (
        np.concatenate([[NO_ROW], row]),
        np.concatenate([[window_start], times.begin[timed]]),
        np.concatenate([[window_end], times.end[timed]]),
    )


def _divide(
    trace: Trace, gpu: Gpu, row: Array, low: Array, high: Array
) -> dict[str, npt.NDArray[Any]]:
    ops = trace.on(gpu)
    start, end = trace.gpu_ops["start_ns"][ops], trace.gpu_ops["end_ns"][ops]
    activity = trace.gpu_ops["activity"][ops]

    def united(kind: Activity) -> Intervals:
        return union(start[activity == kind], end[activity == kind])

    compute, communication = united(Activity.COMPUTE), united(Activity.COMMUNICATION)
    computing = covered_length(compute, low, high)
    communicating = covered_length(communication, low, high)
    both = covered_length(intersect(compute, communication), low, high)
    busy = covered_length(union(start, end), low, high)
    return {
        "source": np.full(len(row), gpu.source, np.int32),
        "device": np.full(len(row), gpu.device, np.int32),
        "rank": np.full(len(row), NULL if gpu.rank is None else gpu.rank, np.int64),
        "step_row": row.astype(np.int64),
        "start_ns": low,
        "end_ns": high,
        "compute_only_ns": computing - both,
        "overlapped_ns": both,
        "exposed_communication_ns": communicating - both,
        "memory_only_ns": busy - (computing + communicating - both),
        "idle_ns": (high - low) - busy,
    }


ANALYZERS = (Analyzer("breakdown", Detail.GPU, BREAKDOWN, breakdown),)
