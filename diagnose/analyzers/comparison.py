"""What changed between two recordings: per step and GPU, with the noise of the steps.

Four areas, each by falling change:

- measures: step time and the five states that fill it (``breakdown``), and, where
  ranks were matched, exposed communication divided into waiting and transfer.
  Steps that have a time. Rows with a rank are about that rank alone.
- collectives by kind and size, kernels (copies and fills too) by name: durations
  of what was launched in a step, summed. Collectives include waiting for late ranks.
- stalls by cause (``stalls``), within the steps that have a time.

Every value is the mean over GPUs of each step, then the median over steps, so the
number of ranks and of steps may differ. The noise band is ``_noise.compared``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._noise import Change, Floats, Judgement, compared
from diagnose.analyzers._step_figures import (
    COMMUNICATION,
    HIDDEN,
    CollectiveKey,
    Part,
    StepFigures,
    step_figures,
)
from diagnose.errors import UsageError
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.timeline.overlap import steps_missing
from diagnose.trace import Strings, Table, Trace


class Area(IntEnum):
    """What a row is about."""

    MEASURE = 0
    COLLECTIVE = 1
    KERNEL = 2
    STALL = 3


COMPARISON = TableSchema(
    "comparison",
    "one measure, kind of collective, kernel or stall cause in two recordings",
    (
        Column("area", "int8", "what the row is about", choices=Area),
        Column("name", "int32", "measure, collective, kernel or cause", text=True),
        Column("bytes", "int64", "message size of a collective", "bytes", nullable=True),
        Column("rank", "int64", "the rank; unknown: mean over all GPUs", nullable=True),
        Column("before_ns", "float64", "in the first recording, per step", "ns", nullable=True),
        Column("after_ns", "float64", "in the second recording, per step", "ns", nullable=True),
        Column("change_ns", "float64", "after less before", "ns", nullable=True),
        Column("change_pct", "float64", "change over before", "%", nullable=True),
        Column("noise_ns", "float64", "half width of the band of chance", "ns", nullable=True),
        Column("judgement", "int8", "the change against that band", choices=Judgement),
        Column("before_count", "float64", "how many per step and GPU", nullable=True),
        Column("after_count", "float64", "how many per step and GPU", nullable=True),
        Column("before_overlap_pct", "float64", "hidden over communication", "%", nullable=True),
        Column("after_overlap_pct", "float64", "hidden over communication", "%", nullable=True),
        Column("before_steps", "int64", "steps that the first value rests on"),
        Column("after_steps", "int64", "steps that the second value rests on"),
    ),
    order=("area", "rank", "change_ns", "name", "bytes"),
)


class _HasTrace(Protocol):
    @property
    def trace(self) -> Trace: ...


class _Row(NamedTuple):
    area: Area
    name: str
    change: Change
    steps: tuple[int, int]
    num_bytes: int = NULL
    rank: int = NULL
    number: tuple[float, float] = (np.nan, np.nan)
    overlap_pct: tuple[float, float] = (np.nan, np.nan)

    @property
    def place(self) -> tuple[Any, ...]:
        size = abs(self.change.change)
        return (
            self.area,
            self.rank != NULL,
            -size if size == size else np.inf,
            self.name,
            self.num_bytes,
            self.rank,
        )


def compare(trace: Trace, other: Trace | _HasTrace) -> Table | Unavailable:
    """What changed from this recording to ``other``. Returns a table of ``COMPARISON``.

    ``other`` is a Recording or a Trace. Rows by area, rows about one rank after those
    about all, then by falling change. Stalls are compared where both traces hold all
    detail. What is missing in one recording is 0 there, as its time was; a measure
    that could not be determined is null.

    Unavailable where a recording has no step marks.
    """
    second = other if isinstance(other, Trace) else getattr(other, "trace", None)
    if not isinstance(second, Trace):
        raise UsageError(
            f"cannot compare with {type(other).__name__}",
            hint="give a recording: recording.compare(diagnose.load(path))",
        )
    for which, one in (("first", trace), ("second", second)):
        if missing := steps_missing(one):
            return Unavailable(f"in the {which} recording: {missing.because}", missing.remedy)
    rows = sorted(_rows(step_figures(trace), step_figures(second)), key=lambda row: row.place)
    return _table(rows)


def _rows(before: StepFigures, after: StepFigures) -> Iterator[_Row]:
    timed = (before.num_timed, after.num_timed)
    yield from _measure_rows(before.measures, after.measures)
    for rank in sorted(before.by_rank.keys() & after.by_rank.keys()):
        first, second = before.by_rank[rank], after.by_rank[rank]
        yield from _measure_rows(first, second, rank)
    covered = (before.num_covered, after.num_covered)
    if not all(covered):
        return
    for key in before.collectives.keys() | after.collectives.keys():
        row = _part_row(Area.COLLECTIVE, key, before.collectives, after.collectives, covered)
        yield row._replace(name=key.name, num_bytes=key.num_bytes)
    for name in before.kernels.keys() | after.kernels.keys():
        yield _part_row(Area.KERNEL, name, before.kernels, after.kernels, covered)
    if before.stalls is not None and after.stalls is not None and all(timed):
        for name in before.stalls.keys() | after.stalls.keys():
            yield _part_row(Area.STALL, name, before.stalls, after.stalls, timed)


def _measure_rows(
    before: Mapping[str, Floats], after: Mapping[str, Floats], rank: int = NULL
) -> Iterator[_Row]:
    nothing = np.empty(0)
    for name in dict.fromkeys([*before, *after]):
        first, second = before.get(name, nothing), after.get(name, nothing)
        row = _Row(
            Area.MEASURE, name, compared(first, second), (first.size, second.size), rank=rank
        )
        if name == HIDDEN:
            row = row._replace(overlap_pct=(_overlap_pct(before), _overlap_pct(after)))
        yield row


def _overlap_pct(measures: Mapping[str, Floats]) -> float:
    """Over all steps together: a mean of ratios would give short steps the same say."""
    if HIDDEN not in measures or not measures[COMMUNICATION].sum():
        return float("nan")
    return float(100 * measures[HIDDEN].sum() / measures[COMMUNICATION].sum())


def _part_row(
    area: Area,
    key: str | CollectiveKey,
    before: Mapping[Any, Part],
    after: Mapping[Any, Part],
    steps: tuple[int, int],
) -> _Row:
    absent = [Part(np.zeros(number), np.zeros(number)) for number in steps]
    first, second = before.get(key, absent[0]), after.get(key, absent[1])
    number = (float(np.median(first.number)), float(np.median(second.number)))
    return _Row(area, str(key), compared(first.time, second.time), steps, number=number)


def _table(rows: list[_Row]) -> Table:
    names = list(dict.fromkeys(row.name for row in rows))
    code = {name: number for number, name in enumerate(names)}
    changes = np.array([row.change.change for row in rows], np.float64)
    before = np.array([row.change.before for row in rows], np.float64)
    share = np.full(len(rows), np.nan)
    np.divide(100 * changes, before, out=share, where=before > 0)
    columns: dict[str, Any] = {
        "area": [row.area for row in rows],
        "name": [code[row.name] for row in rows],
        "bytes": [row.num_bytes for row in rows],
        "rank": [row.rank for row in rows],
        "before_ns": before,
        "after_ns": [row.change.after for row in rows],
        "change_ns": changes,
        "change_pct": share,
        "noise_ns": [row.change.noise for row in rows],
        "judgement": [row.change.judgement for row in rows],
        "before_count": [row.number[0] for row in rows],
        "after_count": [row.number[1] for row in rows],
        "before_overlap_pct": [row.overlap_pct[0] for row in rows],
        "after_overlap_pct": [row.overlap_pct[1] for row in rows],
        "before_steps": [row.steps[0] for row in rows],
        "after_steps": [row.steps[1] for row in rows],
    }
    typed = {c.name: np.array(columns[c.name], c.dtype) for c in COMPARISON.columns}
    return Table(COMPARISON, typed, Strings(names))


ANALYZERS = (Analyzer("compare", Detail.LAUNCHES, COMPARISON, compare),)
