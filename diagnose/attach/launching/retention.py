"""Bounds what a long run leaves on the disk: the oldest windows go, never the newest."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}i": 1 << 10 * power for power, unit in enumerate("kmgt", 1)}
_SIZE = re.compile(r"([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?", re.IGNORECASE)
_REMOVING = ".removing-"
SPARE_BYTES = 256 << 20
"""Room on the disk that a window must leave to the job."""


def parse_size(text: str) -> int:
    """Bytes of a size as ``2GB``, ``500MiB`` or ``1000000``. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(f"{text!r} is no size", hint="give a number of bytes, or as 500MB, 2GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


@dataclass(frozen=True)
class Limits:
    """At most so many windows, and so many bytes in all (None: no bound)."""

    keep: int = 10
    max_bytes: int | None = None


class Windows:
    """The windows of one run, oldest first. Only folders that were made by it are ever removed."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._made: list[Path] = []
        self._number = 0

    def next(self, step: int | None) -> Path:
        """The folder for the next window. It does not exist yet."""
        self._number += 1
        at = "" if step is None else f"-step{step:08d}"
        return self._folder / f"window{self._number:05d}{at}"

    def keep(self, window: Path) -> list[Path]:
        """A window is whole: take it in, and remove what is too much. Returns what was removed."""
        self._made.append(window)
        removed = []
        while len(self._made) > 1 and self._too_much():
            oldest = self._made.pop(0)
            _remove(oldest)
            removed.append(oldest)
        return removed

    @property
    def kept(self) -> list[Path]:
        """The windows that are there, oldest first."""
        return list(self._made)

    def refusal(self) -> str | None:
        """Why no window should be recorded now: a sentence if the disk is too full, else None."""
        expected = 2 * max((size_of(window) for window in self._made[-3:]), default=0)
        try:
            found = os.statvfs(self._folder)
        except OSError as problem:
            return f"{self._folder} cannot be used ({problem.strerror})"
        free = found.f_bavail * found.f_frsize
        if free < SPARE_BYTES + expected:
            return f"only {free / 1e6:.0f} MB are free on the disk of {self._folder}"
        return None

    def _too_much(self) -> bool:
        if len(self._made) > self._limits.keep:
            return True
        limit = self._limits.max_bytes
        return limit is not None and size_of(self._folder) > limit


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; what vanishes meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118
    return total


def _remove(folder: Path) -> None:
    """Remove a folder so that nobody ever finds half of it under its name."""
    hidden = folder.with_name(_REMOVING + folder.name)
    with suppress(OSError):
        folder.replace(hidden)
        shutil.rmtree(hidden)
