"""Telemetry beside the recordings: sampled for a group, then cut to each recording's time.

The sampler is a process of its own, begun when the first recording of a group is, so that
nothing of it is in the measured times.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.jobs.pairs.catalogue import BY_NAME, SIDES
from diagnose import manifest
from diagnose.errors import DiagnoseError

_MARGIN_NS = 500_000_000
"""Before the first and after the last step that the recording knows of."""
_LONG_MARGIN_NS = 15_000_000_000
"""Where the recording is there for its telemetry."""


class Telemetry:
    """The sampler of a group. Where it does not work, recordings stay without."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def of(cls, parent: Path, group: str) -> Iterator[Telemetry]:
        """Not begun yet; at the end it is stopped and its file cut up."""
        number = sum(1 for _ in parent.glob(f"{group}.*"))
        sampled = cls(parent / f"{group}.{number}")
        try:
            yield sampled
        finally:
            sampled._stop()

    def start(self) -> None:
        """Begin to sample, once."""
        if self._process is not None:
            return
        self._folder.mkdir(parents=True)
        line = [sys.executable, "-m", "diagnose.telemetry", "--output", str(self._folder)]
        line += ["--gpu", "0", "--name", "rank00000"]
        with open(self._folder / "telemetry.log", "wb") as log:
            self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
        for path in self._folder.glob("rank00000.telemetry.csv*"):
            rows = path.read_text().splitlines()
            for recording in (self._folder.parents[1] / "pairs").glob("*/*/recording.json"):
                with suppress(DiagnoseError, OSError):
                    _cut(rows, recording)


def _cut(rows: list[str], recording: Path) -> None:
    """Write the rows of a recording's time beside it, and enter the file in its manifest.

    Ranks that share a GPU share its telemetry, which is rank 0's.
    """
    said = manifest.read(recording)
    times = [rank.step_times for rank in said.ranks if rank.step_times is not None]
    if said.started_unix_ns is None or said.ranks[0].telemetry is not None or not times:
        return
    before = max(sum(one.before) for one in times)
    later = max(sum(one.within) + sum(one.after) for one in times)
    is_pair = BY_NAME[recording.parents[1].name].sides == SIDES
    begin = said.started_unix_ns - before - (_MARGIN_NS if is_pair else _LONG_MARGIN_NS)
    end = said.started_unix_ns + later + _MARGIN_NS
    # A sampler that was killed may have left half a row.
    whole = [row for row in rows[1:] if row.count(",") == rows[0].count(",")]
    kept = [row for row in whole if _within(row, begin, end)]
    if not kept:
        return
    name = "rank00000.telemetry.csv"
    (recording.parent / name).write_text("\n".join([rows[0], *kept]) + "\n")
    first, *others = said.ranks
    manifest.write(replace(said, ranks=(replace(first, telemetry=name), *others)), recording.parent)


def _within(row: str, begin: int, end: int) -> bool:
    stamp = row.partition(",")[0]
    return stamp.isdigit() and begin <= int(stamp) <= end
