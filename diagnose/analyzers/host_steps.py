"""``host_steps``: how long the steps of each process took on the host.

What can be said of every job, on GPUs or not. Times outside of the recorder's window
are those of the undisturbed job and come first; then those in it; then, without a
recorder, the step marks of the trace. On a GPU the host may run ahead of it, so there the
step times of the timeline are the ones to look at.

Ranks that exchange gradients wait for each other in every step, so a slow one shows
in the step times of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from diagnose.analysis import Analyzer
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.trace import Source, Table, Trace


class Seen(IntEnum):
    """Where the steps were timed."""

    NOWHERE = 0
    OUTSIDE = 1
    """Before and after the recorder's window, without a profiler."""
    WITHIN = 2
    """In the window, between optimizer steps."""
    MARKS = 3
    """In the trace, by its step marks."""


HOST_STEPS = TableSchema(
    "host_steps",
    "one process",
    (
        Column("source", "int32", "index into `trace.sources`"),
        Column("seen", "int8", "where its steps were timed", choices=Seen),
        Column("num_steps", "int64", "steps timed there"),
        Column("median_step_ns", "float64", "median of them", "ns", nullable=True),
        Column("longest_step_ns", "int64", "longest of them", "ns", nullable=True),
        Column(
            "slower_pct",
            "float64",
            "median over the least median of a process timed in the same place",
            "%",
            nullable=True,
        ),
        Column("num_ops", "int64", "operators of PyTorch in the trace", nullable=True),
    ),
    order=("source",),
)


def host_steps(trace: Trace) -> Table:
    """One row of ``HOST_STEPS`` per source; ``num_ops`` is null where operators were not read."""
    rows = [
        (*_steps(trace, at, source), NULL if source.num_ops is None else source.num_ops)
        for at, source in enumerate(trace.sources)
    ]
    names = ("seen", "num_steps", "median_step_ns", "longest_step_ns", "num_ops")
    values: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
    values |= {"source": range(len(rows)), "slower_pct": _slower(rows)}
    columns = {c.name: np.array(values[c.name], c.dtype) for c in HOST_STEPS.columns}
    return Table(HOST_STEPS, columns, trace.strings)


def _slower(rows: Sequence[tuple[Seen, int, float, int, int]]) -> list[float]:
    least: dict[Seen, float] = {}
    for seen, count, median, *_ in rows:
        if count:
            least[seen] = min(median, least.get(seen, median))
    return [
        100 * (median / least[seen] - 1) if count and least[seen] else float("nan")
        for seen, count, median, *_ in rows
    ]


def _steps(trace: Trace, at: int, source: Source) -> tuple[Seen, int, float, int]:
    seen, times = _times(trace, at, source)
    if not times:
        return Seen.NOWHERE, 0, float("nan"), NULL
    return seen, len(times), float(np.median(times)), max(times)


def _times(trace: Trace, at: int, source: Source) -> tuple[Seen, list[int]]:
    known = source.host_intervals
    if known is not None and (known.before or known.after):
        return Seen.OUTSIDE, [*known.before, *known.after]
    if known is not None and known.within:
        return Seen.WITHIN, list(known.within)
    steps = trace.steps.take(trace.steps["source"] == at)
    return Seen.MARKS, (steps["end_ns"] - steps["start_ns"]).tolist()


ANALYZERS = (Analyzer("host_steps", Detail.GPU, HOST_STEPS, host_steps),)
