"""``observer_effect``: what recording cost the job's steps.

Before and after the window only the host was watched: there a step is the interval
between two optimizer steps on the host's clock, the median over all ranks. A host that
runs ahead of its GPU has to wait for it sooner or later, so over some steps it advances
at the GPU's rate. In a window of a few steps it need not: it may fill or drain the queue.
The step in the window is therefore that of the GPU, the median over all ranks of the
step times of the trace (``diagnose.timeline.step_times``); where no step has one, the
host's interval, and ``within_from`` says which. Without launches nobody knows whether a
step has one, and nothing is said.
"""

from __future__ import annotations

import statistics
from enum import IntEnum
from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.schema import NULL, Column, TableSchema
from diagnose.timeline.step_times import step_times
from diagnose.trace import Observer, Table, Trace

LEAST_SPREAD = 0.01
"""Of the step before: over a few steps, less than that is not told from chance."""


class StepClock(IntEnum):
    """Where a step time is from."""

    NONE = 0
    HOST = 1
    GPU = 2


OBSERVER_EFFECT = TableSchema(
    "observer_effect",
    "one recording",
    (
        Column("before_ns", "int64", "median host interval before the window", "ns", True),
        Column("before_spread_ns", "int64", "between the quartiles of those", "ns", True),
        Column("within_ns", "int64", "median step in the window, by `within_from`", "ns", True),
        Column("within_from", "int8", "whose steps those are", choices=StepClock),
        Column("after_ns", "int64", "median host interval once caught up", "ns", True),
        Column("num_before", "int64", "intervals of all ranks before the window"),
        Column("num_within", "int64", "steps of all ranks in the window, by `within_from`"),
        Column("num_after", "int64", "intervals of all ranks that `after_ns` is the median of"),
        Column(
            "change_pct",
            "float64",
            "step in the window against the one before it, else after it",
            "%",
            nullable=True,
        ),
        Column(
            "beyond_variation",
            "bool",
            "whether the step in the window lies further outside of those before and after it "
            "than `before_spread_ns`",
        ),
        Column(
            "job_varies",
            "bool",
            "whether before and after differ by more than `before_spread_ns` and 1 %",
        ),
    ),
)


def observer_effect(trace: Trace) -> Table | Unavailable:
    """What recording cost, as one row of ``OBSERVER_EFFECT``."""
    observer = trace.observer
    if observer is None:
        return Unavailable(
            "the recording does not say how long steps took around its window",
            "record it with `diagnose attach`, one recording at a time",
        )
    on_gpu = _gpu_steps(trace)
    if on_gpu:
        within, origin = round(statistics.median(on_gpu)), StepClock.GPU
    elif observer.within_ns is not None:
        within, origin = observer.within_ns, StepClock.HOST
    else:
        within, origin = None, StepClock.NONE
    row: dict[str, Any] = {
        "before_ns": observer.before_ns,
        "before_spread_ns": observer.before_spread_ns,
        "within_ns": within,
        "within_from": origin,
        "after_ns": observer.after_ns,
        "num_before": observer.num_before,
        "num_within": len(on_gpu) or observer.num_within,
        "num_after": observer.num_after,
        "change_pct": _change_pct(observer, within),
        "beyond_variation": _beyond_variation(observer, within),
        "job_varies": _varies(observer),
    }
    columns = {
        column.name: np.array([_stored(row[column.name], column)], column.dtype)
        for column in OBSERVER_EFFECT.columns
    }
    return Table(OBSERVER_EFFECT, columns, trace.strings)


def _gpu_steps(trace: Trace) -> list[int]:
    """The step times of all GPUs that are known."""
    known: list[int] = []
    for gpu in trace.gpus:
        begin, end = step_times(trace, gpu)
        timed = end != NULL
        known += (end[timed] - begin[timed]).tolist()
    return known


def _change_pct(observer: Observer, within: int | None) -> float | None:
    outside = observer.before_ns if observer.before_ns is not None else observer.after_ns
    return 100 * (within - outside) / outside if outside and within is not None else None


def _beyond_variation(observer: Observer, within: int | None) -> bool:
    """Steps that differ that much anyway tell nothing of what recording cost."""
    outside = [ns for ns in (observer.before_ns, observer.after_ns) if ns is not None]
    if within is None or not outside:
        return False
    spread = observer.before_spread_ns or 0
    return not min(outside) - spread <= within <= max(outside) + spread


def _varies(observer: Observer) -> bool:
    before, after = observer.before_ns, observer.after_ns
    if before is None or after is None or observer.before_spread_ns is None:
        return False
    return abs(after - before) > max(observer.before_spread_ns, LEAST_SPREAD * before)


def _stored(value: Any, column: Column) -> Any:
    if value is not None:
        return value
    return np.nan if column.dtype == "float64" else NULL
