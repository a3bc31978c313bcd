"""Traces made from plain lists, without reader or assembly; and counting each nanosecond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose import schema
from diagnose.schema import NO_ROW, NULL, Activity, Call, Detail, TableSchema
from diagnose.trace import Source, Strings, Table, Trace


@dataclass(frozen=True)
class Op:
    """One GPU operation. ``step`` is the place of the step among its source's marks."""

    start: int
    end: int
    activity: Activity = Activity.COMPUTE
    source: int = 0
    device: int = 0
    stream: int | None = 7
    step: int | None = None
    launch: int | None = None
    certain: bool = True
    group: str | None = None
    collective: str | None = None


@dataclass(frozen=True)
class Mark:
    start: int
    end: int
    source: int = 0
    number: int | None = None


@dataclass(frozen=True)
class Wait:
    """A host call that waits for the GPU. Marks and launches are on thread 0."""

    start: int
    end: int
    source: int = 0
    thread: int = 0


def make_trace(
    ops: list[Op],
    marks: list[Mark] | None = None,
    waits: list[Wait] | None = None,
    ranks: list[int | None] | None = None,
    detail: Detail = Detail.ALL,
) -> Trace:
    marks, waits = marks or [], waits or []
    sources = 1 + max([0, *(o.source for o in ops), *(m.source for m in marks)])
    ranks = list(range(sources)) if ranks is None else ranks
    words = {"name": 0, "all_reduce": 1}
    for text in [t for o in ops for t in (o.group, o.collective) if t]:
        words.setdefault(text, len(words))
    strings = Strings(words)

    marks = sorted(marks, key=lambda m: (m.source, m.start))
    first_mark = [sum(m.source < s for m in marks) for s in range(sources)]
    ordered = sorted(enumerate(ops), key=lambda p: (p[1].source, p[1].device, p[1].start, p[0]))
    calls: list[tuple[int, int, int, int, int, int]] = []
    for place, (_, op) in enumerate(ordered):
        at = op.launch
        if at is None and op.step is not None:
            at = marks[first_mark[op.source] + op.step].start
        if at is not None:
            calls.append((op.source, at, at + 1, 0, Call.LAUNCH, place))
    calls += [(w.source, w.start, w.end, w.thread, Call.SYNCHRONIZE, NO_ROW) for w in waits]
    calls.sort()
    launch_row = {place: row for row, (*_, place) in enumerate(calls) if place >= 0}

    gpu = [op for _, op in ordered]
    gpu_ops = _table(
        schema.GPU_OPS,
        strings,
        len(gpu),
        op_id=[number for number, _ in ordered],
        source=[o.source for o in gpu],
        device=[o.device for o in gpu],
        stream=[NULL if o.stream is None else o.stream for o in gpu],
        start_ns=[o.start for o in gpu],
        end_ns=[o.end for o in gpu],
        activity=[o.activity for o in gpu],
        certain=[o.certain for o in gpu],
        launch_row=[launch_row.get(row, NO_ROW) for row in range(len(gpu))],
        step_row=[NO_ROW if o.step is None else first_mark[o.source] + o.step for o in gpu],
    )
    talking = [row for row, o in enumerate(gpu) if o.activity == Activity.COMMUNICATION]
    collectives = _table(
        schema.COLLECTIVES,
        strings,
        len(talking),
        gpu_op_row=talking,
        group=[words.get(gpu[row].group or "", NO_ROW) for row in talking],
        collective=[words.get(gpu[row].collective or "", NO_ROW) for row in talking],
    )
    launches = _table(
        schema.LAUNCHES,
        strings,
        len(calls),
        source=[c[0] for c in calls],
        start_ns=[c[1] for c in calls],
        end_ns=[c[2] for c in calls],
        thread=[c[3] for c in calls],
        call=[c[4] for c in calls],
    )
    steps = _table(
        schema.STEPS,
        strings,
        len(marks),
        source=[m.source for m in marks],
        start_ns=[m.start for m in marks],
        end_ns=[m.end for m in marks],
        number=[NULL if m.number is None else m.number for m in marks],
    )
    return Trace(
        sources=tuple(Source(f"file{s}.json", rank=ranks[s]) for s in range(sources)),
        strings=strings,
        gpu_ops=gpu_ops,
        host_ops=_table(schema.HOST_OPS, strings, 0),
        launches=launches,
        syncs=_table(schema.SYNCS, strings, 0),
        collectives=collectives,
        steps=steps,
        samples=_table(schema.SAMPLES, strings, 0),
        detail=detail,
    )


def _table(table: TableSchema, strings: Strings, length: int, **given: Any) -> Table:
    """A table in which what is not given is 0 or, where it may be, unknown."""
    columns = {}
    for column in table.columns:
        blank: Any = 0
        if column.nullable:
            blank = NO_ROW if column.is_reference else NULL
            blank = np.nan if column.dtype.startswith("float") else blank
        values = given.get(column.name)
        columns[column.name] = (
            np.full(length, blank, column.dtype)
            if values is None
            else np.array(values, column.dtype)
        )
    return Table(table, columns, strings)


class Bitmap:
    """Which nanoseconds of a short stretch are covered. Counting, no interval algebra."""

    def __init__(self, length: int, ops: list[Op]) -> None:
        self.covered = np.zeros(length, bool)
        for op in ops:
            for instant in range(op.start, op.end):
                self.covered[instant] = True

    def __and__(self, other: Bitmap) -> int:
        return int((self.covered & other.covered).sum())

    def __len__(self) -> int:
        return int(self.covered.sum())


def count(own: list[Op], on_gpu: list[Op], length: int) -> dict[str, int | float | None]:
    """The measures of some ops of a GPU, by counting instants."""
    of = {a: [op for op in own if op.activity == a] for a in Activity}
    compute = Bitmap(length, of[Activity.COMPUTE])
    communication = Bitmap(length, of[Activity.COMMUNICATION])
    any_compute = Bitmap(length, [o for o in on_gpu if o.activity == Activity.COMPUTE])
    any_talk = Bitmap(length, [o for o in on_gpu if o.activity == Activity.COMMUNICATION])
    hidden = communication & any_compute
    return {
        "num_ops": len(own),
        "compute_ns": len(compute),
        "communication_ns": len(communication),
        "memory_ns": len(Bitmap(length, of[Activity.MEMORY])),
        "overlapped_ns": hidden,
        "exposed_communication_ns": len(communication) - hidden,
        "overlap_pct": 100 * hidden / len(communication) if len(communication) else None,
        "overlap_of_compute_pct": (
            100 * (compute & any_talk) / len(compute) if len(compute) else None
        ),
        "uncertain_ns": len(Bitmap(length, [op for op in own if not op.certain])),
        "kernel_time_ns": sum(op.end - op.start for op in own),
        "busy_ns": len(Bitmap(length, own)),
    }


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The rows of a table with None for unknown and text decoded."""
    shown: dict[str, list[Any]] = {}
    for column in table.schema.columns:
        values = table.texts(column.name) if column.text else table[column.name].tolist()
        known = table.known(column.name).tolist()
        shown[column.name] = [v if k else None for v, k in zip(values, known, strict=True)]
    return [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)]
