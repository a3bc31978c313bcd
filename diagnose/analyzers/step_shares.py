"""What a step of each GPU consists of on average: the five states of ``breakdown``."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers.breakdown import breakdown
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

STATE_COLUMNS = (
    "compute_only_ns",
    "overlapped_ns",
    "exposed_communication_ns",
    "memory_only_ns",
    "idle_ns",
)

STEP_SHARES = TableSchema(
    "step_shares",
    "the mean step of one GPU, over its steps that have a step time",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("device", "int32", "device number within its process"),
        Column("rank", "int64", "rank of the source", nullable=True),
        Column("num_steps", "int64", "steps that the means are over"),
        Column("step_ns", "float64", "mean step time", "ns"),
        Column("compute_only_ns", "float64", "compute and no communication, mean", "ns"),
        Column("overlapped_ns", "float64", "compute and communication at once, mean", "ns"),
        Column("exposed_communication_ns", "float64", "communication, no compute, mean", "ns"),
        Column("memory_only_ns", "float64", "copies or fills and nothing else, mean", "ns"),
        Column("idle_ns", "float64", "nothing, mean", "ns"),
    ),
    order=("source", "device"),
)


def step_shares(trace: Trace) -> Table | Unavailable:
    """The mean step of each GPU, divided among five states that exclude each other.

    Each is the sum of ``breakdown`` over the steps that have a step time, divided
    by their number, so the five add up to the mean step time. A GPU without such a
    step has no row; Unavailable if no GPU has one. Nanoseconds.
    """
    table = breakdown(trace)
    steps = table.take(table["step_row"] >= 0)
    if not len(steps):
        return Unavailable(
            "no step of this trace has a step time",
            "record three steps or more in one window: the first has none",
        )
    rows = []
    for gpu in trace.gpus:
        mine = steps.take((steps["source"] == gpu.source) & (steps["device"] == gpu.device))
        if len(mine):
            rows.append(_mean_step(mine))
    columns: dict[str, Any] = {
        column.name: np.array([row[column.name] for row in rows], column.dtype)
        for column in STEP_SHARES.columns
    }
    return Table(STEP_SHARES, columns, trace.strings)


def _mean_step(steps: Table) -> dict[str, float | int]:
    number = len(steps)
    row: dict[str, float | int] = {name: steps[name][0] for name in ("source", "device")}
    row["rank"] = int(steps["rank"][0]) if steps.known("rank")[0] else NULL
    row["num_steps"] = number
    row["step_ns"] = int((steps["end_ns"] - steps["start_ns"]).sum()) / number
    row |= {name: int(steps[name].sum()) / number for name in STATE_COLUMNS}
    return row


ANALYZERS = (Analyzer("step_shares", Detail.LAUNCHES, STEP_SHARES, step_shares),)
