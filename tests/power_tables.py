"""Tables of telemetry and traces for tests of power, from plain lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from diagnose.schema import SAMPLES
from diagnose.trace import Strings, Table
from tests.builder import TraceBuilder

UNIX_NS = 1_796_000_000_000_000_000
"""Time 0 of telemetry and traces made here."""


def samples(**columns: Any) -> Table:
    """A table of one source; ``ms`` is the time since ``UNIX_NS``, what is not given is unknown."""
    given = {name: np.asarray(values, float) for name, values in columns.items() if name != "ms"}
    length = len(columns["ms"])
    made = {}
    for column in SAMPLES.columns:
        if column.name == "unix_ns":
            offset = np.rint(np.asarray(columns["ms"], float) * 1e6).astype(np.int64)
            made[column.name] = UNIX_NS + offset
        elif column.name == "source":
            made[column.name] = np.zeros(length, column.dtype)
        else:
            made[column.name] = given.pop(column.name, np.full(length, np.nan))
    assert not given, f"no such columns: {sorted(given)}"
    return Table(SAMPLES, made, Strings())


def sampled(columns: dict[str, Any]) -> Table:
    """The same of columns with ``unix_ns``, as the simulator gives them."""
    ms = (columns["unix_ns"] - UNIX_NS) / 1e6
    return samples(ms=ms, **{n: v for n, v in columns.items() if n != "unix_ns"})


def builder(rank: int = 0, world_size: int = 1) -> TraceBuilder:
    """A trace whose microsecond 0 is ``UNIX_NS``."""
    return TraceBuilder(rank=rank, world_size=world_size, zero_us=0, base_ns=UNIX_NS)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Telemetry as the recorder writes it; ``ms`` instead of ``unix_ns``, None is empty."""
    names = [name for name in rows[0] if name != "ms"]
    lines = [",".join(["unix_ns", *names])]
    for row in rows:
        values = ["" if row[name] is None else str(row[name]) for name in names]
        lines.append(",".join([str(UNIX_NS + round(row["ms"] * 1e6)), *values]))
    path.write_text("\n".join(lines) + "\n")
    return path
