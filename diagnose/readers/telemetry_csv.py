"""``*.telemetry.csv``: readings of one GPU's sensors, one line each.

The first line names the columns; ``unix_ns`` (whole nanoseconds) is required, the
others are those of the table ``samples``. An empty field is a sensor that had
nothing new, or that this GPU lacks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from diagnose.readers.files import read_bounded
from diagnose.readers.raw import Columns
from diagnose.schema import SAMPLES
from diagnose.trace import Note

MAX_BYTES = 256 << 20
_TIME = "unix_ns"
_SENSORS = tuple(c.name for c in SAMPLES.columns if c.name not in ("source", _TIME))
_ABSENT = frozenset({"", "n/a", "[n/a]", "na", "nan", "none", "null", "[not supported]", "-"})


class _Counts(NamedTuple):
    lines: int
    values: int


def read(path: str) -> tuple[Columns | None, list[Note]]:
    """The table ``samples`` (without ``source``), by time; None with a note if unreadable.

    Lines that are damaged are left out, values that are no numbers are unknown;
    both are counted in a note. Never raises for bad input.
    """
    data, problem = read_bounded(path, MAX_BYTES)
    if problem is not None:
        return None, [_unreadable(path, problem)]
    lines = data.decode("utf-8-sig", "replace").splitlines()
    header = [name.strip().strip('"') for name in lines[0].split(",")] if lines else []
    if _TIME not in header:
        return None, [_unreadable(path, f"the first line names no column {_TIME}")]
    if len(set(header)) < len(header):
        return None, [_unreadable(path, "the first line names a column twice")]
    columns, counts = _columns(header, lines[1:])
    order = np.argsort(columns[_TIME], kind="stable")
    samples: Columns = {name: column[order] for name, column in columns.items()}
    return samples, _notes(path, header, counts)


def _columns(header: list[str], lines: list[str]) -> tuple[Columns, _Counts]:
    rows = [line.split(",") for line in lines if line.strip()]
    time_at = header.index(_TIME)
    times: list[int] = []
    kept: list[list[str]] = []
    for row in rows:
        time = row[time_at].strip() if len(row) == len(header) else ""
        if time.isascii() and time.isdigit() and len(time) <= 19 and int(time) < 2**63:
            times.append(int(time))
            kept.append(row)
    result: Columns = {_TIME: np.array(times, np.int64)}
    unreadable = 0
    for name in _SENSORS:
        if name not in header:
            result[name] = np.full(len(kept), np.nan)
            continue
        at = header.index(name)
        values = [_number(row[at]) for row in kept]
        unreadable += values.count(None)
        result[name] = np.array([math.nan if v is None else v for v in values], np.float64)
    return result, _Counts(len(rows) - len(kept), unreadable)


def _number(text: str) -> float | None:
    """A value; NaN for a field that says there is none; None for one that makes no sense."""
    text = text.strip()
    if text.lower() in _ABSENT:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        if text[:2].lower() != "0x":
            return None
        try:
            return float(int(text[:32], 16))  # bit masks are also written in hexadecimal
        except ValueError:
            return None
    return value if math.isfinite(value) else None


def _unreadable(path: str, problem: str) -> Note:
    sentence = f"{path}: {problem}; power, clocks and temperature of this GPU are unknown"
    return Note("telemetry-unreadable", "warning", sentence)


def _notes(path: str, header: list[str], counts: _Counts) -> list[Note]:
    notes = []
    if counts.lines:
        sentence = (
            f"{path}: damaged lines left out: {counts.lines} (wrong number of fields, or no whole "
            f"{_TIME}); sensor figures rest on the others"
        )
        notes.append(Note("telemetry-damaged", "warning", sentence, counts.lines))
    if counts.values:
        sentence = (
            f"{path}: values that are no numbers: {counts.values}; they count as unknown, sensor "
            "figures rest on the others"
        )
        notes.append(Note("telemetry-value", "warning", sentence, counts.values))
    unknown = [name for name in header if name not in _SENSORS and name != _TIME]
    if unknown:
        shown = ", ".join(name[:40] for name in unknown[:6]) + (", ..." if len(unknown) > 6 else "")
        sentence = f"{path}: columns that are not known and were ignored: {shown}"
        notes.append(Note("telemetry-column", "info", sentence, len(unknown)))
    return notes
