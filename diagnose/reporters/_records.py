"""Rows as machines read them: keys with units, exact decimals, null for unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from diagnose.schema import NULL
from diagnose.trace import Table, Trace

# column of the timeline -> key
MEASURES: Mapping[str, str] = {
    "num_ops": "gpu_event_count",
    "step_ns": "step_us",
    "compute_ns": "compute_us",
    "communication_ns": "comm_us",
    "memory_ns": "memory_us",
    "overlapped_ns": "overlapped_us",
    "exposed_communication_ns": "exposed_comm_us",
    "overlap_pct": "overlap_pct",
    "overlap_of_compute_pct": "overlap_of_compute_pct",
    "uncertain_ns": "uncertain_us",
    "kernel_time_ns": "kernel_time_us",
    "busy_ns": "busy_us",
    "window_ns": "window_us",
    "idle_ns": "idle_us",
}
Record = dict[str, Any]


def microseconds(nanoseconds: int) -> str | None:
    """The exact decimal: 12345 -> ``12.345``, 310000 -> ``310``; None for null."""
    if nanoseconds == NULL:
        return None
    whole, rest = divmod(abs(nanoseconds), 1000)
    fraction = f".{rest:03d}".rstrip("0") if rest else ""
    return f"{'-' if nanoseconds < 0 else ''}{whole}{fraction}"


def microseconds_raw(nanoseconds: int) -> msgspec.Raw | None:
    """The same as a number for JSON and CSV."""
    decimal = microseconds(nanoseconds)
    return None if decimal is None else msgspec.Raw(decimal.encode())


def values(table: Table, column: str) -> list[Any]:
    """A column for JSON: times as decimals in microseconds, text decoded, null as None.

    Integer times are exact; means and medians are rounded to whole nanoseconds.
    """
    if column.endswith("_ns"):
        times = table[column]
        if times.dtype.kind == "f":
            times = np.where(np.isnan(times), NULL, np.rint(np.nan_to_num(times))).astype(np.int64)
        return [microseconds_raw(value) for value in times.tolist()]
    described = table.schema.column(column)
    if described.text:
        return list(table.texts(column))
    known = table.known(column).tolist()
    return [v if k else None for v, k in zip(table[column].tolist(), known, strict=True)]


def records(table: Table, keys: Mapping[str, str]) -> list[Record]:
    """The rows of a table, with the columns and under the keys of ``keys``."""
    columns = [values(table, column) for column in keys]
    return [dict(zip(keys.values(), row, strict=True)) for row in zip(*columns, strict=True)]


def step_names(trace: Trace, table: Table) -> list[str | None]:
    """For each row the name of its step, None for work of no step."""
    names = trace.steps.texts("name")
    return [names[row] if row >= 0 else None for row in table["step_row"].tolist()]


def paths(trace: Trace, table: Table) -> list[str]:
    """For each row the file that it is from."""
    return [trace.sources[source].path for source in table["source"].tolist()]


def places(trace: Trace, table: Table) -> list[Record]:
    """For each row whose GPU it is about, and the file that it is from."""
    rows = zip(table["source"].tolist(), table["device"].tolist(), strict=True)
    return [
        {
            "rank": trace.sources[source].rank,
            "device": device,
            "source": trace.sources[source].path,
        }
        for source, device in rows
    ]


def encode(document: Record) -> str:
    """JSON with an indent of two. Half a surrogate pair is written as a backslash escape."""
    try:
        data = msgspec.json.encode(document)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_encodable(document))
    return msgspec.json.format(data, indent=2).decode() + "\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    return value
