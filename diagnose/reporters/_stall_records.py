"""The stalls as machines read them: by GPU, by cause, by step, by interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.findings import Diagnosis
from diagnose.reporters._records import (
    Record,
    microseconds_raw,
    places,
    records,
    step_names,
)
from diagnose.schema import NO_ROW
from diagnose.trace import Table

_SUMMED_KEYS = {
    "num_intervals": "num_intervals",
    "length_ns": "length_us",
    "longest_ns": "longest_us",
    "notable_ns": "notable_us",
}
_INTERVAL_KEYS = {
    "start_ns": "start_us",
    "end_ns": "end_us",
    "length_ns": "length_us",
    "cause_ns": "cause_us",
    "launch_delay_ns": "launch_delay_us",
    "thread": "thread",
}


def _labels(table: Table, column: str, choices: Any) -> list[str]:
    return [choices(code).name.lower() for code in table[column].tolist()]


def gpu_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record a GPU: its window and what it stood still in it."""
    table, trace = diagnosis.tables["stalls"], diagnosis.trace
    found = []
    for gpu in trace.gpus:
        own = (table["source"] == gpu.source) & (table["device"] == gpu.device)
        copies = own & (table["memory_row"] >= 0)
        on = trace.on(gpu)
        window = int(trace.gpu_ops["end_ns"][on].max() - trace.gpu_ops["start_ns"][on].min())
        alone = int(table["length_ns"][copies].sum())
        idle = int(table["length_ns"][own].sum()) - alone
        found.append(
            {
                "rank": gpu.rank,
                "device": gpu.device,
                "source": trace.sources[gpu.source].path,
                "window_us": microseconds_raw(window),
                "idle_us": microseconds_raw(idle),
                "memory_only_us": microseconds_raw(alone),
            }
        )
    return found


def cause_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record for each GPU, cause and what the host did; per GPU they sum to its stalls."""
    table = diagnosis.tables["sites"]
    rows = zip(
        places(diagnosis.trace, table),
        _labels(table, "cause", Cause),
        _labels(table, "confidence", Confidence),
        records(table, {"host_op": "host_op", "call": "call", "operation": "operation"}),
        records(table, _SUMMED_KEYS),
        strict=True,
    )
    return [
        {**place, "cause": cause, **evidence, **summed, "confidence": confidence}
        for place, cause, confidence, evidence, summed in rows
    ]


def step_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record for each GPU, step and cause; the step is null outside of all step times."""
    table = diagnosis.tables["causes"]
    rows = zip(
        places(diagnosis.trace, table),
        step_names(diagnosis.trace, table),
        _labels(table, "cause", Cause),
        records(table, _SUMMED_KEYS),
        strict=True,
    )
    return [{**place, "step": step, "cause": cause, **row} for place, step, cause, row in rows]


def interval_rows(diagnosis: Diagnosis) -> list[Record]:
    """A record an interval, with the evidence for its cause."""
    table, trace = diagnosis.tables["stalls"], diagnosis.trace
    names = {
        "host_op": (trace.host_ops, "host_op_row"),
        "call": (trace.launches, "call_row"),
        "operation": (trace.gpu_ops, "memory_row"),
        "next_operation": (trace.gpu_ops, "next_row"),
    }
    evidence = {key: named(rows, table[column]) for key, (rows, column) in names.items()}
    rows = zip(
        places(diagnosis.trace, table),
        step_names(trace, table),
        _labels(table, "cause", Cause),
        _labels(table, "confidence", Confidence),
        records(table, _INTERVAL_KEYS),
        *evidence.values(),
        strict=True,
    )
    return [
        {
            **place,
            "step": step,
            "cause": cause,
            "confidence": sure,
            **row,
            **dict(zip(names, found, strict=True)),
        }
        for place, step, cause, sure, row, *found in rows
    ]


def named(table: Table, rows: Any) -> list[str | None]:
    """The name in each row of a table; None where there is no row."""
    codes = np.append(table["name"], np.int32(NO_ROW))[rows]
    return table.strings.decode(codes)
