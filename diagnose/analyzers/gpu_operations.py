"""Which GPU operations take the time: kernels, copies and fills by name, over all GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.schema import Activity, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

GPU_OPERATIONS = TableSchema(
    "gpu_operations",
    "all GPU operations of one name and class, over all GPUs of the trace",
    (
        Column("name", "int32", "name as written in the file", text=True),
        Column("activity", "int8", "compute, communication or memory", choices=Activity),
        Column("num_ops", "int64", "how many there are"),
        Column("kernel_time_ns", "int64", "sum of their durations", "ns"),
        Column("mean_ns", "float64", "mean duration", "ns"),
        Column("longest_ns", "int64", "longest duration", "ns"),
        Column("kernel_time_pct", "float64", "of the durations of all GPU operations", "%"),
    ),
    order=("name", "activity"),
)


def gpu_operations(trace: Trace) -> Table | Unavailable:
    """GPU operations by name, those with the greatest sum of durations first.

    Durations are summed, so operations that run at the same time both count: the
    sums may exceed the window. What a name takes of the wall is not known from them.
    """
    ops = trace.gpu_ops
    if not len(ops):
        return Unavailable("the trace has no GPU operation", "")
    duration = ops["end_ns"] - ops["start_ns"]
    num_kinds = len(Activity)
    keys, group = np.unique(
        ops["name"].astype(np.int64) * num_kinds + ops["activity"], return_inverse=True
    )
    counts = np.bincount(group, minlength=len(keys)).astype(np.int64)
    sums = np.zeros(len(keys), np.int64)
    longest = np.zeros(len(keys), np.int64)
    np.add.at(sums, group, duration)
    np.maximum.at(longest, group, duration)
    order = np.lexsort((keys, -sums))
    total = int(sums.sum())
    columns: dict[str, Any] = {
        "name": (keys // num_kinds).astype(np.int32),
        "activity": (keys % num_kinds).astype(np.int8),
        "num_ops": counts,
        "kernel_time_ns": sums,
        "mean_ns": sums / counts,
        "longest_ns": longest,
        "kernel_time_pct": 100 * sums / total if total else np.full(len(keys), np.nan),
    }
    return Table(
        GPU_OPERATIONS, {name: column[order] for name, column in columns.items()}, trace.strings
    )


ANALYZERS = (Analyzer("gpu_operations", Detail.GPU, GPU_OPERATIONS, gpu_operations),)
