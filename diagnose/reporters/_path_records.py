"""Critical paths as machines read them: steps, stretches, collectives, costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analyzers._idle_causes.causes import Confidence
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.findings import Diagnosis
from diagnose.reporters._records import (
    Record,
    microseconds_raw,
    places,
    records,
    step_names,
)
from diagnose.schema import NULL
from diagnose.trace import Table

_SEGMENT_KEYS = {"start_ns": "start_us", "end_ns": "end_us", "length_ns": "length_us"}
_SLACK_KEYS = {
    "slack_ns": "slack_us",
    "wait_ns": "wait_us",
    "transfer_ns": "transfer_us",
    "exposed_ns": "exposed_us",
    "exposed_transfer_ns": "exposed_transfer_us",
    "on_path_ns": "on_path_us",
    "blocking_ns": "blocking_us",
}
_COST_KEYS = {
    "step_time_ns": "step_time_us",
    "communication_ns": "comm_us",
    "exposed_ns": "exposed_comm_us",
    "blocking_ns": "blocking_us",
    "num_ops": "num_ops",
    "num_matched": "num_matched",
    "transfer_ns": "transfer_us",
    "overlapped_transfer_ns": "overlapped_transfer_us",
    "overlap_of_transfer_pct": "overlap_of_transfer_pct",
}


def paths_of(table: Table) -> list[tuple[Any, int, Any]]:
    """For each path: its first row, its length, and its lengths by class."""
    keys = np.stack([table[name].astype(np.int64) for name in ("source", "device", "step_row")])
    starts = np.flatnonzero(
        np.append(np.ones(min(len(table), 1), bool), (keys[:, 1:] != keys[:, :-1]).any(0))
    )
    found = []
    for low, high in zip(starts, np.append(starts[1:], len(table))[: len(starts)], strict=True):
        by_class = np.zeros(len(PathClass), np.int64)
        np.add.at(by_class, table["path_class"][low:high], table["length_ns"][low:high])
        found.append((low, int(by_class.sum()), by_class))
    return found


def step_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a path: its length and what it is made of; the parts sum to the length."""
    table = diagnosis.tables["path"]
    steps = paths_of(table)
    firsts = table.take(np.array([low for low, _, _ in steps], np.int64))
    rows = zip(
        places(diagnosis.trace, firsts), step_names(diagnosis.trace, firsts), steps, strict=True
    )
    return [
        {
            **place,
            "step": step,
            "length_us": microseconds_raw(total),
            **{
                f"{kind.name.lower()}_us": microseconds_raw(int(by_class[kind]))
                for kind in PathClass
            },
        }
        for place, step, (_, total, by_class) in rows
    ]


def segment_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a stretch of a path, in order of time."""
    table, trace = diagnosis.tables["path"], diagnosis.trace
    at_ranks = [trace.sources[source].rank for source in table["at_source"].tolist()]
    rows = zip(
        places(diagnosis.trace, table),
        step_names(trace, table),
        records(table, _SEGMENT_KEYS),
        table["path_class"].tolist(),
        at_ranks,
        names_of(diagnosis, table),
        table["confidence"].tolist(),
        strict=True,
    )
    return [
        {
            **place,
            "step": step,
            **row,
            "class": PathClass(kind).name.lower(),
            "at_rank": at_rank,
            "name": name,
            "confidence": Confidence(sure).name.lower(),
        }
        for place, step, row, kind, at_rank, name, sure in rows
    ]


def slack_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a communication operation."""
    table, trace = diagnosis.tables["slack"], diagnosis.trace
    rows = zip(
        places(diagnosis.trace, table),
        step_names(trace, table),
        collectives_of(diagnosis, table),
        records(table, _SLACK_KEYS),
        strict=True,
    )
    return [
        {**place, "step": step, "collective": name, "bytes": num_bytes, **row}
        for place, step, (name, num_bytes), row in rows
    ]


def cost_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a GPU."""
    table = diagnosis.tables["cost"]
    rows = zip(places(diagnosis.trace, table), records(table, _COST_KEYS), strict=True)
    return [{**place, **row} for place, row in rows]


def names_of(diagnosis: Diagnosis, table: Table) -> list[str | None]:
    """For each stretch its operation, or what the pause led to."""
    trace, found = diagnosis.trace, []
    for op, call in zip(table["gpu_op_row"].tolist(), table["call_row"].tolist(), strict=True):
        source, row = (trace.gpu_ops, op) if op >= 0 else (trace.launches, call)
        found.append(trace.strings[int(source["name"][row])] if row >= 0 else None)
    return found


def collectives_of(diagnosis: Diagnosis, table: Table) -> list[tuple[str | None, int | None]]:
    """For each row with a ``gpu_op_row`` the kind of collective and its size."""
    trace = diagnosis.trace
    known = trace.collectives
    rows = np.searchsorted(known["gpu_op_row"], table["gpu_op_row"]).tolist()
    found: list[tuple[str | None, int | None]] = []
    for row in rows:
        code, num_bytes = int(known["collective"][row]), int(known["bytes"][row])
        name = trace.strings[code] if code >= 0 else None
        found.append((name, None if num_bytes == NULL else num_bytes))
    return found
