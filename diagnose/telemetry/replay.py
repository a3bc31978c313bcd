"""A source that plays recorded ``*.telemetry.csv`` again: telemetry without a GPU."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diagnose.telemetry.source import (
    COLUMNS,
    GpuIdentity,
    MigIdentity,
    TelemetryUnavailableError,
    TimedValues,
)

_SUFFIX = ".telemetry.csv"


class ReplaySource:
    """Each file is a GPU, numbered as given; its UUID is ``GPU-`` and the name of the file.

    With ``speed`` 1 a reading is the row that was current as long after the file's first
    row as it is now after the first reading; 10 plays ten times as fast; None gives the
    next row at each call. Past the last row there is nothing: no reading, not the last one.
    Raises TelemetryUnavailableError for a file without a readable row.
    """

    kind = "replay"

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        speed: float | None = 1.0,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if speed is not None and not speed > 0:
            raise ValueError("speed must be over 0, or None")
        self._speed, self._steady_s = speed, steady_s
        self._names = [Path(path).name.removesuffix(_SUFFIX) for path in paths]
        self._rows = [_rows(Path(path)) for path in paths]
        self._next = [0] * len(self._rows)
        self._begin_s: float | None = None

    @property
    def notes(self) -> list[str]:
        """That these are no readings of now."""
        return ["sensor readings are played from an older recording"]

    def gpus(self) -> list[GpuIdentity]:
        return [
            GpuIdentity(index, f"GPU-{name}", f"00000000:{index + 1:02X}:00.0", "replayed GPU")
            for index, name in enumerate(self._names)
        ]

    def mig_devices(self) -> list[MigIdentity]:
        return []

    def prepare(self, index: int) -> None:
        """Nothing to find out."""

    def sample(  # every row of the file has all it ever had
        self,
        index: int,
        *,
        everything: bool = False,  # noqa: ARG002
    ) -> dict[str, float | None]:
        if not 0 <= index < len(self._rows):
            return {}
        rows = self._rows[index]
        if self._speed is None:
            place = self._next[index]
            self._next[index] = place + 1
            return dict(rows[place].values) if place < len(rows) else {}
        now_s = self._steady_s()
        if self._begin_s is None:
            self._begin_s = now_s
        played_ns = rows[0].unix_ns + (now_s - self._begin_s) * self._speed * 1e9
        if played_ns > rows[-1].unix_ns:
            return {}
        while self._next[index] + 1 < len(rows) and (
            rows[self._next[index] + 1].unix_ns <= played_ns
        ):
            self._next[index] += 1
        return dict(rows[self._next[index]].values)

    def pending(self, index: int, *, everything: bool = False) -> list[TimedValues]:  # noqa: ARG002
        return []

    def describe(self, index: int) -> dict[str, Any]:
        return {"name": "replayed GPU"} if 0 <= index < len(self._rows) else {}

    def processes(self, index: int) -> list[int]:  # noqa: ARG002
        return []

    def close(self) -> None:
        """Nothing is open."""


def _rows(path: Path) -> list[TimedValues]:
    """The readings of a file by time; rows that the driver timed itself play like any other."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = [row for row in map(_row, csv.DictReader(file)) if row is not None]
    except OSError as error:
        raise TelemetryUnavailableError(f"{path}: cannot be read ({error.strerror})") from None
    if not rows:
        raise TelemetryUnavailableError(f"{path}: holds no reading to play")
    return sorted(rows, key=lambda row: row.unix_ns)


def _row(fields: dict[str | Any, str | Any]) -> TimedValues | None:
    """A line as readings; None if it is cut off, as the last one of a recording that was killed."""
    try:
        unix_ns = int(fields["unix_ns"])
    except (KeyError, TypeError, ValueError):
        return None
    cells = {column: _number(fields.get(column)) for column in COLUMNS}
    values = {column: value for column, value in cells.items() if value is not None}
    return TimedValues(unix_ns, values) if values else None


def _number(text: str | None) -> float | None:
    text = (text or "").strip()
    try:
        if text[:2].lower() == "0x":
            return int(text, 16)
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return None
