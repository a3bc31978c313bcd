"""``per_step``: how long the steps of a GPU took, and what they held on average."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.schema import NULL
from diagnose.timeline.overlap import overlap
from diagnose.timeline.tables import STEP_SUMMARY
from diagnose.trace import Table, Trace

_AVERAGED = (
    "compute_ns",
    "communication_ns",
    "memory_ns",
    "overlapped_ns",
    "exposed_communication_ns",
)


def per_step(trace: Trace) -> Table | Unavailable:
    """Step times and per-step means of each GPU. Returns a table of ``STEP_SUMMARY``.

    Means of times divide by the steps that have a time; means of work divide by
    the steps that have work on this GPU; work of no step is counted apart. So
    three marks of which two have a time give the mean of two.
    """
    rows = overlap(trace, by="step")
    if isinstance(rows, Unavailable):
        return rows
    summaries = [
        _summary(rows.take((rows["source"] == gpu.source) & (rows["device"] == gpu.device)))
        for gpu in trace.gpus
    ]
    columns: dict[str, Any] = {
        column.name: np.array([row[column.name] for row in summaries], column.dtype)
        for column in STEP_SUMMARY.columns
    }
    return Table(STEP_SUMMARY, columns, trace.strings)


def _summary(rows: Table) -> dict[str, float | int]:
    in_step = rows["step_row"] >= 0
    covered = in_step & (rows["num_ops"] > 0)
    timed = rows["step_ns"] != NULL
    step_ns = rows["step_ns"][timed]
    summary: dict[str, float | int] = {name: rows[name][0] for name in ("source", "device", "rank")}
    summary |= {
        "num_steps": int(in_step.sum()),
        "num_steps_covered": int(covered.sum()),
        "num_steps_timed": int(timed.sum()),
        "mean_step_ns": _mean(step_ns),
        "median_step_ns": float(np.median(step_ns)) if step_ns.size else np.nan,
        "min_step_ns": int(step_ns.min()) if step_ns.size else NULL,
        "max_step_ns": int(step_ns.max()) if step_ns.size else NULL,
        "mean_idle_ns": _mean(rows["idle_ns"][timed]),
        "unassigned_ops": int(rows["num_ops"][~in_step].sum()),
        "unassigned_busy_ns": int(rows["busy_ns"][~in_step].sum()),
    }
    summary |= {f"mean_{name}": _mean(rows[name][covered]) for name in _AVERAGED}
    return summary


def _mean(values: Any) -> float:
    return float(values.mean()) if values.size else float("nan")
