"""How a trace comes from the process that writes it into the recording's folder.

Directly where the process sees the folder and may write there. Otherwise (a
container, another user's job) into its agent's own private folder, from where it is
fetched through ``/proc/PID/root``. Over a job's store it comes in pieces.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from diagnose.attach.discovery.processes import Process
from diagnose.errors import AttachError, OutputError, WindowLostError

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Delivery(Protocol):
    """The way of one file."""

    asked: str
    """The path that the agent is told."""

    def arrive(self) -> Path:
        """The file in the recording's folder, whole. Raises RecordingError."""

    def discard(self) -> None:
        """Remove what lies outside of the recording's folder. Never raises."""


class Direct:
    """The agent writes into the recording's folder."""

    def __init__(self, target: Path) -> None:
        self.asked = str(target)
        self._target = target

    def arrive(self) -> Path:
        if not self._target.is_file():
            raise WindowLostError(
                f"{self._target}: its agent said that the trace is there, but it is not",
                hint="is the folder on a file system that only this host sees?",
            )
        return self._target

    def discard(self) -> None:
        """Nothing lies elsewhere."""


class Spooled:
    """The agent writes into its own folder; the file is copied from there, and removed."""

    def __init__(self, process: Process, folder: str, target: Path) -> None:
        suffix = target.name.partition(".")[2] or "json"
        self._name = f"{process.namespace_pid}-{secrets.token_hex(6)}.{suffix}"
        self.asked = f"{folder}/{self._name}"
        self._pid, self._uid = process.pid, process.uid
        self._from_here = f"/proc/{process.pid}/root{folder}"
        self._target = target

    def arrive(self) -> Path:
        partial = self._target.with_name(self._target.name + ".part")
        try:
            self._copy(partial)
            partial.replace(self._target)
        except OSError as error:
            raise OutputError(
                f"the trace of process {self._pid} cannot be fetched from {self.asked} "
                f"({error.strerror or error})",
                hint="it lies in the process's own view of files; check the free space here",
            ) from None
        finally:
            with suppress(OSError):
                partial.unlink()
        self.discard()
        return self._target

    def _copy(self, partial: Path) -> None:
        # The folder is another user's: a name in it may be a link to anything, and the file
        # one of somebody else, mounted or linked there for us to read it with our rights.
        folder = os.open(self._from_here, _FLAGS | os.O_DIRECTORY)
        try:
            handle = os.open(self._name, _FLAGS | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(handle, "rb") as source, open(partial, "xb") as copy:
            about = os.fstat(handle)
            own = about.st_uid == self._uid and about.st_nlink == 1
            if not stat.S_ISREG(about.st_mode) or not own:
                raise OSError("not a file of that process")
            shutil.copyfileobj(source, copy, 1 << 20)

    def discard(self) -> None:
        with suppress(OSError):
            folder = os.open(self._from_here, _FLAGS | os.O_DIRECTORY)
            try:
                for name in (self._name, self._name + ".part"):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)


class Sent:
    """The trace comes compressed over the channel itself, from another host."""

    def __init__(self, fetch: Callable[[Path], object], target: Path) -> None:
        self.asked = target.name
        self._fetch = fetch
        self._target = target.with_name(target.name + ".gz")

    def arrive(self) -> Path:
        self._fetch(self._target)
        return self._target

    def discard(self) -> None:
        """The agent removes its file when it was sent."""


def delivery(process: Process, agent_folder: str, target: Path) -> Delivery:
    """The shortest way from a process of this host."""
    with suppress(AttachError):
        if process.same_mount_namespace and process.uid == os.geteuid():
            return Direct(target)
    return Spooled(process, agent_folder, target)
