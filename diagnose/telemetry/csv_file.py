"""``*.telemetry.csv``, written line by line, under its name only once it is whole."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from diagnose.errors import OutputError
from diagnose.telemetry.source import COLUMNS, Values

PART_SUFFIX = ".part"
FLUSH_EVERY_S = 0.5
"""A process that is killed loses at most the lines of this time."""


class TelemetryFile:
    """One file of readings, as ``readers.telemetry_csv`` reads it.

    ``NAME.part`` is created at once, so that a folder that cannot be written is noticed
    before anything is recorded. Raises OutputError then; afterwards it never raises: on a
    disk that is full the file ends early, and ``problem`` says so.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.num_rows = 0
        self.problem: str | None = None
        self._part = self.path.with_name(self.path.name + PART_SUFFIX)
        self._flush_due_s = float("-inf")
        try:
            if self.path.exists():
                raise FileExistsError(17, "it exists already")
            # Open until finish() or discard().
            self._file: TextIO = open(self._part, "x", encoding="ascii", newline="\n")  # noqa: SIM115
            self._file.write(",".join(("unix_ns", *COLUMNS)) + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot be written ({error.strerror})",
                hint="give a new folder on a disk with space, with -o",
            ) from None

    def write(self, unix_ns: int, values: Values, now_s: float) -> None:
        """Add a row. ``now_s`` is a steady clock, for flushing."""
        if self.problem is not None or self._file.closed:
            return
        cells = [_cell(values.get(column)) for column in COLUMNS]
        if not any(cells):
            return  # nothing was measured: a row of a time alone says nothing
        try:
            self._file.write(",".join((str(unix_ns), *cells)) + "\n")
            if now_s >= self._flush_due_s:
                self._flush_due_s = now_s + FLUSH_EVERY_S
                self._file.flush()
        except OSError as error:
            self.problem = f"{self.path}: ends early, it could not be written ({error.strerror})"
            return
        self.num_rows += 1

    def finish(self) -> bool:
        """Close it and give it its name. False, and no file, if no row was written."""
        try:
            self._file.close()
        except OSError as error:
            self.problem = f"{self.path}: ends early, it could not be written ({error.strerror})"
        try:
            if not self.num_rows:
                self._part.unlink()
                return False
            self._part.rename(self.path)
        except OSError as error:
            self.problem = f"{self.path}: could not be given its name ({error.strerror})"
            return False
        return True

    def discard(self) -> None:
        """Close it and leave nothing behind."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink()


def _cell(value: float | None) -> str:
    """Whole numbers as they are, others to three places, unknown as nothing."""
    if value is None:
        return ""
    if isinstance(value, int):
        return str(int(value))
    if not math.isfinite(value):
        return ""
    return str(round(value, 3))
