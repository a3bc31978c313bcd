"""Reads what a verb was given; a load that takes over a second shows a bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from diagnose.trace import Trace

_PATIENCE_S = 1.0
_REDRAW_S = 0.1
_STORED = (".json", ".gz", ".zip")


def read(
    paths: Sequence[str],
    only: Literal["gpu", "launches", "shapes"] | None,
    classify: Path | None = None,
    rank: int | None = None,
) -> Trace:
    """The trace of the files that a command line names."""
    from diagnose.recording import load

    with Progress(paths) as progress:
        given = list(paths)
        recording = load(given, only=only, classify=classify, rank=rank, progress=progress)
    return recording.trace


class Progress:
    """A progress bar on stderr, if that is a terminal. Call it with bytes read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __call__(self, num_bytes: int) -> None:
        self._done += num_bytes
        now = time.monotonic()
        if not self._shows or now - self._started < _PATIENCE_S or now - self._drawn < _REDRAW_S:
            return
        if self._bar is None:
            self._begin()
        self._drawn = now
        self._bar.update(self._task, completed=self._done)

    def _begin(self) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("reading", total=stored_bytes(self._paths))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def stored_bytes(paths: Sequence[str]) -> int | None:
    """Bytes on disk of the files and folders, or None where that cannot be told (URL, glob)."""
    total = 0
    for given in paths:
        path = Path(given)
        if path.is_file():
            total += path.stat().st_size
        elif path.is_dir():
            files = (f for f in path.rglob("*") if f.is_file() and f.name.endswith(_STORED))
            total += sum(file.stat().st_size for file in files)
        else:
            return None
    return total
