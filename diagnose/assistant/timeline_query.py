"""Operations of a recording that fit a question: a bounded list beside exact totals.

An operation belongs to a range of time if it runs in it at all; it then counts whole. Times are
those of the clock of its file: between files they can be compared only as far as clocks agree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.assistant._text import without_nulls
from diagnose.assistant.arguments import TimelineAsked
from diagnose.errors import UnavailableError, UsageError
from diagnose.grouped_intervals import union_length_by
from diagnose.reporters._records import Record, microseconds_raw
from diagnose.schema import NULL, Activity, Call, Detail
from diagnose.trace import Table, Trace
from diagnose.wording.plain import plain

_LONGEST_NAME = 200
_LOAD_MORE = "load the path again without `only`"

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class _Chosen(NamedTuple):
    """A table and the rows of it that fit."""

    trace: Trace
    table: Table
    rows: Rows
    what: str

    @property
    def duration(self) -> Rows:
        result: Rows = self.table["end_ns"][self.rows] - self.table["start_ns"][self.rows]
        return result


def timeline_answer(trace: Trace, asked: TimelineAsked) -> Record:
    """What fits, at most ``limit`` rows of it, and totals over all of it.

    ``sum_us`` adds durations; ``covered_us`` counts what runs at the same time on one GPU (one
    host thread) once, and adds GPUs (threads). Both are exact. UsageError for a rank, source, step
    or combination that does not exist, UnavailableError for a table that was not loaded.
    """
    chosen = _choose(trace, asked)
    duration = chosen.duration
    rows, shown = (_by_name if asked.by == "name" else _one_by_one)(chosen, asked)
    answer: Record = {
        "total": {
            "num_operations": len(chosen.rows),
            "sum_us": microseconds_raw(int(duration.sum())),
            "covered_us": microseconds_raw(_covered(chosen)),
        },
        "rows": rows,
        "left_out": {
            "num_operations": len(chosen.rows) - len(shown),
            "sum_us": microseconds_raw(int(duration.sum() - duration[shown].sum())),
        },
    }
    if len(trace.sources) > 1:
        answer["clocks"] = "times are on the clock of each file; compare files by steps, not times"
    return answer


def _choose(trace: Trace, asked: TimelineAsked) -> _Chosen:
    table = _table(trace, asked)
    keep = np.ones(len(table), bool)
    if asked.rank is not None or asked.source is not None:
        keep &= np.isin(table["source"], _sources(trace, asked))
    if asked.device is not None:
        keep &= table["device"] == asked.device
    if asked.stream is not None:
        keep &= table["stream"] == asked.stream
    if asked.activity is not None:
        keep &= table["activity"] == Activity[asked.activity.upper()]
    if asked.name is not None:
        part = asked.name.casefold()
        fits = np.append(table.strings.where(lambda word: part in word.casefold()), False)
        keep &= fits[table["name"]]
    if asked.step is not None:
        keep &= _in_step(trace, table, asked)
    start, end = table["start_ns"], table["end_ns"]
    if asked.from_us is not None:
        begin = _nanoseconds(asked.from_us)
        keep &= (end > begin) | (start >= begin)
    if asked.to_us is not None:
        keep &= start < _nanoseconds(asked.to_us)
    return _Chosen(trace, table, np.flatnonzero(keep).astype(np.int64), asked.what)


def _table(trace: Trace, asked: TimelineAsked) -> Table:
    if asked.what == "gpu":
        return trace.gpu_ops
    for name in ("device", "stream", "activity"):
        if getattr(asked, name) is not None:
            raise UsageError(
                f"timeline: what happens on the host has no {name}",
                hint=f"leave out {name}, or ask for what='gpu'",
            )
    least = Detail.ALL if asked.what == "host" else Detail.LAUNCHES
    if trace.detail < least:
        raise UnavailableError(
            f"this recording was loaded with only={trace.detail.name.lower()!r}, without "
            + ("operators" if asked.what == "host" else "calls into the runtime"),
            hint=_LOAD_MORE,
        )
    return trace.host_ops if asked.what == "host" else trace.launches


def _sources(trace: Trace, asked: TimelineAsked) -> list[int]:
    found = [
        index
        for index, source in enumerate(trace.sources)
        if asked.rank in (None, source.rank) and asked.source in (None, index)
    ]
    if found:
        return found
    ranks = ", ".join(str(s.rank) for s in trace.sources if s.rank is not None) or "unknown"
    raise UsageError(
        "the recording has no such rank or source",
        hint=f"its ranks: {ranks}; its sources: 0 to {len(trace.sources) - 1}",
    )


def _in_step(trace: Trace, table: Table, asked: TimelineAsked) -> Mask:
    names = trace.steps.texts("name")
    numbers = trace.steps["number"].tolist()
    step = str(asked.step)
    wanted = [
        row
        for row, (name, number) in enumerate(zip(names, numbers, strict=True))
        if step == name or (number != NULL and step == str(number))
    ]
    if not wanted:
        known = list(dict.fromkeys(plain(name, 60) for name in names if name is not None))
        listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise UsageError(
            f"the recording has no step {step!r}", hint=f"its steps: {listed or 'none'}"
        )
    if asked.what == "gpu":
        return np.isin(table["step_row"], wanted)
    keep = np.zeros(len(table), bool)
    for row in wanted:
        begin, end = trace.steps["start_ns"][row], trace.steps["end_ns"][row]
        here = table["source"] == trace.steps["source"][row]
        keep |= here & (table["start_ns"] >= begin) & (table["start_ns"] < end)
    return keep


def _nanoseconds(microseconds: float) -> int:
    if not abs(microseconds) < 2**53:
        raise UsageError(
            "timeline: from_us and to_us are microseconds on the clock of the trace",
            hint="take them from start_us of a row, or from from_us and to_us of load",
        )
    return round(microseconds * 1000)


def _covered(chosen: _Chosen) -> int:
    table, rows = chosen.table, chosen.rows
    lane = "device" if chosen.what == "gpu" else "thread"
    if not len(rows):
        return 0
    pairs = np.stack([table["source"][rows], table[lane][rows]], axis=1)
    _, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1).astype(np.int64)
    start, end = table["start_ns"][rows], table["end_ns"][rows]
    return int(union_length_by(group, start, end, int(group.max()) + 1).sum())


def _one_by_one(chosen: _Chosen, asked: TimelineAsked) -> tuple[list[Record], Rows]:
    table, rows = chosen.table, chosen.rows
    source, start, op_id = (table[name][rows] for name in ("source", "start_ns", "op_id"))
    keys = [op_id, start, source]
    if asked.sort == "duration":
        keys.append(-chosen.duration)
    shown = np.lexsort(keys)[: asked.limit].astype(np.int64)
    return [_row(chosen, row) for row in rows[shown].tolist()], shown


def _row(chosen: _Chosen, row: int) -> Record:
    trace, table = chosen.trace, chosen.table
    source = int(table["source"][row])
    start, end = int(table["start_ns"][row]), int(table["end_ns"][row])
    result: Record = {
        "rank": trace.sources[source].rank,
        "source": source if trace.sources[source].rank is None else None,
        "start_us": microseconds_raw(start),
        "duration_us": microseconds_raw(end - start),
        "name": plain(table.strings[int(table["name"][row])], _LONGEST_NAME),
    }
    if chosen.what == "gpu":
        result |= _of_gpu(trace, table, row)
    elif chosen.what == "calls":
        result |= {"call": Call(int(table["call"][row])).name.lower(), **_thread(table, row)}
    else:
        result |= {"category": _text(table, "category", row), **_thread(table, row)}
    return without_nulls(result)


def _of_gpu(trace: Trace, table: Table, row: int) -> Record:
    step = int(table["step_row"][row])
    place = int(np.searchsorted(trace.collectives["gpu_op_row"], row))
    found = place < len(trace.collectives) and trace.collectives["gpu_op_row"][place] == row
    collectives = trace.collectives
    return {
        "device": int(table["device"][row]),
        "stream": _number(table, "stream", row),
        "activity": Activity(int(table["activity"][row])).name.lower(),
        "step": trace.steps.texts("name")[step] if step >= 0 else None,
        "bytes": _number(collectives, "bytes", place) if found else _number(table, "bytes", row),
        "collective": _text(collectives, "collective", place) if found else None,
        "group_size": _number(collectives, "group_size", place) if found else None,
    }


def _thread(table: Table, row: int) -> Record:
    return {"thread": _text(table, "thread", row)}


def _number(table: Table, column: str, row: int) -> int | None:
    value = int(table[column][row])
    return None if value == NULL else value


def _text(table: Table, column: str, row: int) -> str | None:
    code = int(table[column][row])
    return None if code < 0 else plain(table.strings[code], _LONGEST_NAME)


def _by_name(chosen: _Chosen, asked: TimelineAsked) -> tuple[list[Record], Rows]:
    table, duration = chosen.table, chosen.duration
    codes, first, group = np.unique(
        table["name"][chosen.rows], return_index=True, return_inverse=True
    )
    count = np.bincount(group, minlength=len(codes))
    total, longest = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
    np.add.at(total, group, duration)
    np.maximum.at(longest, group, duration)
    order = np.lexsort([codes, first if asked.sort == "time" else -total])[: asked.limit]
    rows = [
        {
            "name": plain(table.strings[int(codes[one])], _LONGEST_NAME),
            "num_operations": int(count[one]),
            "sum_us": microseconds_raw(int(total[one])),
            "longest_us": microseconds_raw(int(longest[one])),
        }
        for one in order.tolist()
    ]
    return rows, np.flatnonzero(np.isin(group, order)).astype(np.int64)
