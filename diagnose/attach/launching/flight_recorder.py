"""What a long run always keeps: step times and, slowly, telemetry, in files of bounded size.

``steps.csv`` has a row per rank and step: ``unix_ns,rank,step,interval_ns`` (the time of
the boundary, and since the one before; empty where that is not known). When it is full
it becomes ``steps.previous.csv`` and a new one begins, so between half of the bound and
all of it is there. Telemetry is written in segments of some minutes, the last few of
which are kept. A disk that is full ends the writing for a while, never the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from diagnose.errors import RecordingError
from diagnose.telemetry.sampler import Sampler
from diagnose.telemetry.source import Source

STEPS_NAME = "steps.csv"
_PREVIOUS_NAME = "steps.previous.csv"
_HEADER = "unix_ns,rank,step,interval_ns\n"
_RETRY_S = 60.0


class StepRow(NamedTuple):
    """One optimizer step of a rank. ``interval_ns`` None: the boundary before was not seen."""

    unix_ns: int
    rank: int
    step: int
    interval_ns: int | None


class StepLog:
    """Writes ``steps.csv``, at most ``max_bytes`` with its predecessor. Never raises OSError."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 32 << 20,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = folder / STEPS_NAME
        self._previous = folder / _PREVIOUS_NAME
        self._segment_bytes = max_bytes // 2
        self._say = say
        self._clock = clock
        self._file: TextIO | None = None
        self._size = 0
        self._retry_at = 0.0
        self._told = False

    def write(self, rows: Sequence[StepRow]) -> None:
        """Add rows, in their order."""
        if not rows or self._clock() < self._retry_at:
            return
        text = "".join(
            f"{row.unix_ns},{row.rank},{row.step},"
            f"{'' if row.interval_ns is None else row.interval_ns}\n"
            for row in rows
        )
        try:
            self._write(text)
        except OSError as problem:
            self._close()
            self._retry_at = self._clock() + _RETRY_S
            if not self._told:
                self._told = True
                self._say(f"step times cannot be written to {self._path} ({problem.strerror})")

    def _write(self, text: str) -> None:
        if self._file is not None and self._size + len(text) > self._segment_bytes:
            self._file.close()
            self._file = None
            self._path.replace(self._previous)
        if self._file is None:
            self._file = self._path.open("a", encoding="ascii", newline="\n")
            self._size = self._file.tell()
            if not self._size:
                text = _HEADER + text
        self._file.write(text)
        self._file.flush()
        self._size += len(text)

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def close(self) -> None:
        """Close the file."""
        self._close()


class TelemetryLog:
    """Samples GPUs slowly into ``telemetry/``: segments of ``segment_s``, the last ``keep``.

    Call ``turn`` now and then. The source belongs to the caller.
    """

    def __init__(
        self,
        folder: Path,
        source: Source,
        gpus: Sequence[int],
        *,
        interval_s: float = 1.0,
        segment_s: float = 600.0,
        keep: int = 6,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder / "telemetry"
        self._source = source
        self._gpus = list(gpus)
        self._interval_s = interval_s
        self._segment_s = segment_s
        self._keep = keep
        self._clock = clock
        self._sampler: Sampler | None = None
        self._begun: float | None = None
        self._number = 0
        self._segments: list[list[Path]] = []
        self.notes: list[str] = []

    def turn(self) -> None:
        """Begin a segment if it is time to. Never raises for a disk or a driver."""
        now = self._clock()
        if self._begun is not None and now - self._begun < self._segment_s:
            return
        self._end()
        self._begun = now
        self._number += 1
        paths: dict[int | str, Path] = {
            gpu: self._folder / f"gpu{gpu:02d}.{self._number:06d}.telemetry.csv"
            for gpu in self._gpus
        }
        self._forget_old()
        try:
            self._folder.mkdir(exist_ok=True)
            sampler = Sampler(self._source, paths, interval_s=self._interval_s)
            sampler.start()
        except (OSError, RecordingError) as problem:
            self._note(f"telemetry stops for {self._segment_s:g} s: {problem}")
            return
        self._sampler = sampler
        self._segments.append(list(paths.values()))

    def close(self) -> None:
        """Finish the last segment."""
        self._end()

    def _end(self) -> None:
        if self._sampler is not None:
            for note in self._sampler.stop().notes:
                self._note(note)
            self._sampler = None

    def _forget_old(self) -> None:
        while len(self._segments) >= self._keep:
            for path in self._segments.pop(0):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes and len(self.notes) < 20:
            self.notes.append(sentence)
