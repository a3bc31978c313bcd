"""What is seen of every process on this host that may take part in training.

Reading a process's command line, environment or maps takes a lock in it. A process
that hangs in the kernel with that lock held would hang its reader too, and a hang is
when people look: so each process is read on a thread that is left behind if it does
not come back.
"""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from diagnose.attach.discovery import _launchers, processes
from diagnose.attach.discovery._launchers import Placement
from diagnose.attach.discovery.processes import Process
from diagnose.errors import AttachError, OtherUserError

_PATIENCE_S, _LEAST_PATIENCE_S = 2.0, 0.1
_PYTHON = re.compile(r"python[0-9.]*t?d?( \(deleted\))?|pypy.*", re.IGNORECASE)
_PYTHON_NAME = re.compile(r"python|pt_|ray::", re.IGNORECASE)
# Threads that only a process which computes or communicates has; set by PyTorch and gloo.
# They are not copied by fork. `pt_tcpstore` is not among them: launchers have it.
_AT_WORK = re.compile(r"pt_(?:nccl|gloo|ucc|mpi|autograd)|gloo_")
# Mapped with a CUDA context. A forked child keeps /dev/nvidia0, and NVML maps it too, but
# not this one (seen on an H200).
_GPU_FILES = re.compile(r"/dev/(?:nvidia-uvm|kfd)(?: \(deleted\))?")


@dataclass(frozen=True)
class Observation:
    """A Python process with PyTorch in it, or that a launcher says is a rank."""

    process: Process
    ppid: int
    started_ticks: int
    uid: int
    name: str
    command: tuple[str, ...]
    placement: Placement | None
    has_torch: bool
    has_meeting_point: bool

    @property
    def pid(self) -> int:
        """The process id as this namespace numbers it."""
        return self.process.pid

    @cached_property
    def communicates(self) -> bool:
        """Whether threads of a process group or of the backward pass run in it."""
        try:
            return any(map(_AT_WORK.match, self.process.thread_names))
        except AttachError:
            return False

    @cached_property
    def maps_gpu(self) -> bool:
        """Whether it has a CUDA or ROCm context, as its mappings tell."""
        try:
            return any(_GPU_FILES.fullmatch(region.path) for region in self.process.maps())
        except AttachError:
            return False

    @cached_property
    def at_work(self) -> bool:
        """Whether anything shows that this process itself computes."""
        return self.communicates or self.maps_gpu


@dataclass(frozen=True)
class Unreadable:
    """A process that might be a rank but could not be looked at."""

    pid: int
    uid: int | None
    name: str
    reason: str


@dataclass(frozen=True)
class Scan:
    """Everything seen on a host."""

    observations: tuple[Observation, ...]
    unreadable: tuple[Unreadable, ...]
    parents: dict[int, int]
    """The parent of every process that could be read."""


def scan(root: str | os.PathLike[str] = "/proc", *, patience_s: float = _PATIENCE_S) -> Scan:
    """Look at every process; one that does not answer in ``patience_s`` seconds is passed over."""
    own = os.getpid() if os.fspath(root) == "/proc" else None
    found: list[Observation] = []
    unreadable: list[Unreadable] = []
    parents: dict[int, int] = {}
    candidates = [process for process in processes.every(root) if process.pid != own]
    for process, seen in in_time(candidates, _look, patience_s):
        if seen is None:
            reason = "it did not answer: it hangs in the kernel, or the machine is very busy"
            unreadable.append(Unreadable(process.pid, None, "", reason))
            continue
        parent, observed = seen
        if parent is not None:
            parents[process.pid] = parent
        if isinstance(observed, Observation):
            found.append(observed)
        elif observed is not None:
            unreadable.append(observed)
    return Scan(tuple(found), tuple(unreadable), parents)


def observe(process: Process) -> Observation:
    """Look at one process. Raises OtherUserError and ProcessGoneError."""
    environ = process.environ
    return Observation(
        process,
        process.ppid,
        process.started_ticks,
        process.uid,
        process.name,
        process.command,
        _launchers.placement(environ),
        has_torch(process),
        bool(environ.get("MASTER_ADDR")),
    )


def has_torch(process: Process) -> bool:
    """Whether PyTorch's binding for Python is mapped. Raises as ``observe``."""
    return any(region.name.startswith("libtorch_python") for region in process.maps())


Seen = tuple[int | None, Observation | Unreadable | None]


def _look(process: Process) -> Seen:
    """The parent of a process, and what it is if it may take part in training."""
    try:
        parent, name = process.ppid, process.name
    except AttachError:
        return None, None
    try:
        if not process.environ:  # the kernel's threads and zombies
            return parent, _renamed(process)
        if not _is_python(process) and _launchers.placement(process.environ) is None:
            return parent, None
        seen = observe(process)
        return parent, seen if seen.has_torch else None
    except OtherUserError:
        return parent, _of_another_user(process, name)
    except AttachError:
        return parent, None


def _renamed(process: Process) -> Observation | None:
    """Programs that change their title may overwrite their environment with it."""
    if not (process.command and _is_python(process)):
        return None
    seen = observe(process)
    return seen if seen.has_torch else None


def _is_python(process: Process) -> bool:
    try:
        return bool(_PYTHON.fullmatch((process.folder / "exe").readlink().name))
    except OSError:
        return bool(_PYTHON_NAME.match(process.name))


def _of_another_user(process: Process, name: str) -> Unreadable | None:
    try:
        command = process.command
        program = command[0].rpartition("/")[2] if command else ""
        if not (_PYTHON_NAME.match(name) or _PYTHON.fullmatch(program)):
            return None
        return Unreadable(process.pid, process.uid, name, "it belongs to another user")
    except AttachError:
        return None


def in_time(
    given: Iterable[Process], read: Callable[[Process], Seen], patience_s: float
) -> Iterator[tuple[Process, Seen | None]]:
    """Read processes one after another; None for one that takes longer than ``patience_s``.

    The more that do not answer, the less patience is left: a node where every rank
    hangs is still listed in seconds.
    """
    left = list(given)
    while left:
        worker = _Worker(left, read)
        try:
            for index, process in enumerate(left):
                answer = worker.next(patience_s)
                yield process, answer
                if answer is None:
                    patience_s = max(patience_s / 2, _LEAST_PATIENCE_S)
                    left = left[index + 1 :]
                    break
            else:
                return
        finally:
            worker.abandoned.set()


class _Worker:
    def __init__(self, batch: list[Process], read: Callable[[Process], Seen]) -> None:
        self.abandoned = threading.Event()
        self._answers: queue.SimpleQueue[Seen | BaseException] = queue.SimpleQueue()
        self._batch, self._read = batch, read
        threading.Thread(target=self._work, name="diagnose-discover", daemon=True).start()

    def next(self, patience_s: float) -> Seen | None:
        try:
            answer = self._answers.get(timeout=patience_s)
        except queue.Empty:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _work(self) -> None:
        for process in self._batch:
            if self.abandoned.is_set():
                return
            try:
                self._answers.put(self._read(process))
            except BaseException as error:  # noqa: BLE001 - raised by the one who waits
                self._answers.put(error)
