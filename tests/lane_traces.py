"""Traces with GPU operations, host operations and calls for the tests of ``diagnose.lanes``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose import schema
from diagnose.lanes import Category, OpTable
from diagnose.schema import NO_ROW, NULL, Activity, TableSchema
from diagnose.trace import Source, Strings, Table, Trace

WORDS = ("kernel", "aten::mm", "cudaLaunchKernel", "1/1", "1/2", "other", "")


@dataclass(frozen=True)
class Thing:
    """An operation of any table. ``stream`` is of the GPU, ``thread`` (1 or 2) of the host."""

    start: int
    end: int
    table: OpTable = OpTable.GPU_OPS
    activity: Activity = Activity.COMPUTE
    source: int = 0
    device: int = 0
    stream: int | None = 7
    thread: int = 1
    name: str | None = None

    @property
    def lane(self) -> str:
        """Its lane, where every source uses all of its threads below ``thread``."""
        if self.table == OpTable.GPU_OPS:
            shown = "-" if self.stream is None else str(self.stream)
            return f"g{self.source}.{self.device}s{shown}"
        return f"h{self.source}/{self.thread}"

    @property
    def category(self) -> Category:
        if self.table == OpTable.HOST_OPS:
            return Category.HOST
        if self.table == OpTable.LAUNCHES:
            return Category.CALL
        return {
            Activity.COMPUTE: Category.COMPUTE,
            Activity.COMMUNICATION: Category.OVERLAPPED,
            Activity.MEMORY: Category.COPIES,
        }[self.activity]


def in_table(things: list[Thing], table: OpTable) -> list[Thing]:
    """The things of a table in the order of its rows."""
    found = [thing for thing in things if thing.table == table]
    keys = {
        OpTable.GPU_OPS: lambda t: (t.source, t.device, t.start),
        OpTable.HOST_OPS: lambda t: (t.source, t.thread, t.start),
        OpTable.LAUNCHES: lambda t: (t.source, t.start),
    }
    return sorted(found, key=keys[table])


def lanes_trace(things: list[Thing], bases: list[int | None] | None = None) -> Trace:
    """A trace of these things. Source s has rank s and the given base."""
    sources = 1 + max([0, *(thing.source for thing in things)])
    bases = bases or [None] * sources
    named = tuple(dict.fromkeys(t.name for t in things if t.name and t.name not in WORDS))
    strings = Strings(WORDS + named)
    tables = {}
    for kind, table_schema, plain in (
        (OpTable.GPU_OPS, schema.GPU_OPS, "kernel"),
        (OpTable.HOST_OPS, schema.HOST_OPS, "aten::mm"),
        (OpTable.LAUNCHES, schema.LAUNCHES, "cudaLaunchKernel"),
    ):
        rows = in_table(things, kind)
        tables[kind.label] = table_of(
            table_schema,
            strings,
            len(rows),
            op_id=range(len(rows)),
            source=[t.source for t in rows],
            device=[t.device for t in rows],
            stream=[NULL if t.stream is None else t.stream for t in rows],
            start_ns=[t.start for t in rows],
            end_ns=[t.end for t in rows],
            activity=[t.activity for t in rows],
            thread=[strings.code(f"1/{t.thread}") for t in rows],
            name=[strings.code(t.name or plain) for t in rows],
        )
    others = {
        name: table_of(table, strings, 0)
        for name, table in (
            ("syncs", schema.SYNCS),
            ("collectives", schema.COLLECTIVES),
            ("steps", schema.STEPS),
            ("samples", schema.SAMPLES),
        )
    }
    return Trace(
        sources=tuple(
            Source(f"file{s}.json", rank=s, base_ns=base) for s, base in enumerate(bases)
        ),
        strings=strings,
        **tables,
        **others,
    )


def with_samples(trace: Trace, **columns: Any) -> Trace:
    """The same trace with these columns of telemetry; what is not given is unknown."""
    length = len(columns["unix_ns"])
    columns.setdefault("source", [0] * length)
    samples = table_of(schema.SAMPLES, trace.strings, length, **columns)
    return dataclasses.replace(trace, samples=samples)


def with_steps(trace: Trace, **columns: Any) -> Trace:
    """The same trace with step marks on thread 1 of its sources."""
    length = len(columns["start_ns"])
    columns.setdefault("thread", [trace.strings.code("1/1")] * length)
    steps = table_of(schema.STEPS, trace.strings, length, **columns)
    return dataclasses.replace(trace, steps=steps)


def table_of(table: TableSchema, strings: Strings, length: int, **given: Any) -> Table:
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
            else np.array(list(values), column.dtype)
        )
    return Table(table, columns, strings)
