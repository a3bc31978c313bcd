"""One process as ``/proc`` shows it, below any root, so that a test can lay out its own.

Nothing here stops, signals or enters a process. What may not be read raises
OtherUserError, a process that is gone ProcessGoneError, each naming the process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from diagnose.errors import AttachError, OtherUserError, ProcessGoneError

_MOST_BYTES = 16 << 20
_LINE = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) (\S{4}) ([0-9a-f]+) \S+ \d+ *(.*)", re.DOTALL
)


class Environment(dict[str, str]):
    """The environment a process was started with. Its repr shows no value: some are secrets."""

    def __repr__(self) -> str:
        return f"<environment of {len(self)} variables>"

    __str__ = __repr__


@dataclass(frozen=True)
class Region:
    """A line of ``/proc/PID/maps``: a range of addresses and the file behind it, if any."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str

    @property
    def name(self) -> str:
        """The name of the file, without its folder and without the mark of a deleted one."""
        return self.path.removesuffix(" (deleted)").rpartition("/")[2]


class Process:
    """A process by its id below a ``/proc``; every access reads anew."""

    def __init__(self, pid: int, root: str | os.PathLike[str] = "/proc") -> None:
        self.pid = pid
        self.folder = Path(root) / str(pid)

    def __repr__(self) -> str:
        return f"Process({self.pid})"

    @property
    def exists(self) -> bool:
        """Whether it is there and no zombie."""
        try:
            return self.state not in ("Z", "X", "x")
        except AttachError:
            return False

    @property
    def environ(self) -> Environment:
        """What it was started with, not what it set since; the first of repeated names counts."""
        found = Environment()
        for entry in self._bytes("environ").split(b"\0"):
            name, equals, value = entry.partition(b"=")
            if equals and name:
                found.setdefault(os.fsdecode(name), os.fsdecode(value))
        return found

    @property
    def command(self) -> tuple[str, ...]:
        """The command line; empty for a kernel thread or a zombie."""
        data = self._bytes("cmdline")
        return tuple(os.fsdecode(part) for part in data.rstrip(b"\0").split(b"\0")) if data else ()

    @property
    def name(self) -> str:
        """The name of its main thread, at most 15 characters, which it may have changed."""
        return os.fsdecode(self._bytes("comm").rstrip(b"\n"))

    @property
    def thread_names(self) -> frozenset[str]:
        """The names of its threads."""
        found = set()
        for thread in self.threads:
            try:
                found.add(os.fsdecode(self._bytes(f"task/{thread}/comm").rstrip(b"\n")))
            except ProcessGoneError:
                continue  # the thread ended meanwhile, not the process
        return frozenset(found)

    @property
    def threads(self) -> tuple[int, ...]:
        """The ids of its threads, the main thread first."""
        try:
            names = [entry.name for entry in (self.folder / "task").iterdir()]
        except OSError as error:
            self._refused("task", error)
        others = sorted(int(name) for name in names if name.isdecimal() and int(name) != self.pid)
        return (self.pid, *others)

    @property
    def state(self) -> str:
        """One letter: R running, S asleep, D in the kernel, T stopped, t traced, Z zombie."""
        return self._stat()[0]

    @property
    def ppid(self) -> int:
        """Its parent; 0 for the first process of a namespace."""
        return int(self._stat()[1])

    @property
    def session(self) -> int:
        """Its session, as one terminal or one launcher starts."""
        return int(self._stat()[3])

    @property
    def started_ticks(self) -> int:
        """When it started, in clock ticks since boot: tells it from a later one of the same id."""
        return int(self._stat()[19])

    @property
    def uid(self) -> int:
        """Its effective user, as this namespace numbers users."""
        return int(self._status("Uid").split()[1])

    @property
    def namespace_pid(self) -> int:
        """Its id as the process itself sees it; differs in containers."""
        return int((self._status("NSpid", str(self.pid)).split() or [str(self.pid)])[-1])

    @property
    def tracer_pid(self) -> int:
        """The process that traces it, or 0."""
        return int(self._status("TracerPid", "0"))

    @property
    def cgroup(self) -> str:
        """Its control group: of the unified hierarchy, else the longest of the others."""
        paths = []
        for line in os.fsdecode(self._bytes("cgroup")).splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0" and not controllers and path != "/":
                return path
            paths.append(path)
        return max(paths, key=len, default="")

    def namespace(self, kind: str) -> str:
        """A namespace as ``net:[4026531840]``; ``kind`` is net, mnt, pid, uts, ipc or user."""
        return self._link(f"ns/{kind}")

    @property
    def same_mount_namespace(self) -> bool:
        """Whether it sees the same files under the same names as this process.

        False where that cannot be told. A chroot counts as another view.
        """
        own = self.folder.parent / "self"
        try:
            if self.namespace("mnt") != str((own / "ns/mnt").readlink()):
                return False
            return (self.folder / "root").samefile(own / "root")
        except (AttachError, OSError):
            return False

    @property
    def files(self) -> Iterator[str]:
        """What its file descriptors point at."""
        try:
            entries = list((self.folder / "fd").iterdir())
        except OSError as error:
            self._refused("fd", error)
        for entry in entries:
            try:
                yield str(entry.readlink())
            except OSError:
                continue  # closed meanwhile

    def maps(self) -> Iterator[Region]:
        """Its mapped regions by address. Lines are read as they are needed: stop early."""
        try:
            with open(self.folder / "maps", "rb") as file:
                for line in file:
                    if match := _LINE.fullmatch(line.rstrip(b"\n")):
                        start, end, permissions, offset, path = match.groups()
                        yield Region(
                            int(start, 16),
                            int(end, 16),
                            permissions.decode("ascii", "replace"),
                            int(offset, 16),
                            os.fsdecode(path),
                        )
        except OSError as error:
            self._refused("maps", error)

    def _stat(self) -> list[str]:
        # The name stands in parentheses and may hold anything, parentheses too.
        fields = os.fsdecode(self._bytes("stat").rpartition(b")")[2]).split()
        if len(fields) < 20:
            raise self._gone()
        return fields

    def _status(self, key: str, missing: str | None = None) -> str:
        for line in os.fsdecode(self._bytes("status")).splitlines():
            if line.startswith(f"{key}:"):
                return line.partition(":")[2].strip()
        if missing is None:
            raise self._gone()
        return missing

    def _bytes(self, name: str) -> bytes:
        try:
            with open(self.folder / name, "rb") as file:
                return file.read(_MOST_BYTES)
        except OSError as error:
            self._refused(name, error)

    def _link(self, name: str) -> str:
        try:
            return str((self.folder / name).readlink())
        except OSError as error:
            self._refused(name, error)

    def _refused(self, name: str, error: OSError) -> NoReturn:
        if isinstance(error, PermissionError):
            raise OtherUserError(
                f"process {self.pid}: {self.folder / name} may not be read"
                f" ({error.strerror or error})",
                hint="run as the user of the job, or as root",
            ) from None
        raise self._gone() from None

    def _gone(self) -> ProcessGoneError:
        return ProcessGoneError(
            f"process {self.pid}: there is no such process, or it ended meanwhile",
            hint="list the running ranks with `diagnose attach` and no process id",
        )


def every(root: str | os.PathLike[str] = "/proc") -> list[Process]:
    """All processes below a ``/proc``, by id. Empty if it cannot be listed."""
    try:
        names = [entry.name for entry in Path(root).iterdir()]
    except OSError:
        return []
    return [Process(pid, root) for pid in sorted(int(name) for name in names if name.isdecimal())]
