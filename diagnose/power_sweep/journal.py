"""The old limits on disk while a sweep runs, and the lock that keeps a second one out.

In a folder that only root can write: whoever can write the journal decides on limits.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.telemetry.limits import PowerLimitError

DEFAULT = Path("/run/diagnose/power-limits.json")
_MOST_BYTES = 1 << 20


class Journal:
    """``lock`` before anything else; ``leftover`` is what a sweep that was killed left behind."""

    def __init__(self, path: Path = DEFAULT) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Be the only sweep of this machine. Raises UsageError if there is another one.

        Raises PowerLimitError where the folder cannot be made or belongs to somebody else.
        """
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            state = folder.lstat()
            if state.st_uid != os.geteuid() or state.st_mode & 0o022 or folder.is_symlink():
                raise PowerLimitError(
                    f"{folder} can be written by others, so the old limits cannot be kept there",
                    hint=f"remove it, or make it root's alone: chmod 700 {folder}",
                )
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(f"{self.path}.lock", flags, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise UsageError(
                "another power sweep is running on this machine", hint="wait until it has ended"
            ) from None
        except OSError as problem:
            self.unlock()
            raise PowerLimitError(
                f"the old limits cannot be kept in {folder} ({problem.strerror})",
                hint="the sweep needs root, and a folder /run that can be written",
            ) from None

    @property
    def held(self) -> tuple[int, ...]:
        """The lock's descriptor. A watchdog that has it too keeps the next sweep out until it
        has restored."""
        return () if self._lock is None else (self._lock,)

    def unlock(self) -> None:
        """Let the next sweep in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def leftover(self) -> dict[str, float]:
        """Limits (UUID -> watts) that an earlier sweep did not restore; empty without any."""
        try:
            with open(self.path, "rb") as file:
                content = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {
            uuid: float(watts)
            for uuid, watts in content.items()
            if isinstance(watts, (int, float)) and watts > 0
        }

    def write(self, limits_w: Mapping[str, float]) -> None:
        """Keep these limits, on disk before this returns."""
        temporary = self.path.with_suffix(".part")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(dict(limits_w), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def remove(self) -> None:
        """All is restored: nothing is left to keep."""
        with suppress(FileNotFoundError):
            self.path.unlink()
