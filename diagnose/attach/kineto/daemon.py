"""Record through Kineto's own daemon protocol: for jobs started with ``KINETO_USE_DAEMON``.

No Python runs in the job: libkineto asks the socket "dynolog" every 5 s (every
second where the job set ``ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1``) what to do, and
is answered with one configuration. Windows start at a wall-clock time, all ranks
within some milliseconds of each other, or at an iteration number that every rank
rounds up to by itself.

The job's own profiler wins, and libkineto then drops the request without a word:
only the missing file tells.
"""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.attach.discovery.processes import Process
from diagnose.attach.kineto import ipc as kineto_ipc
from diagnose.errors import AttachError, AttachTimeoutError, UsageError, WindowLostError

POLL_S = 5.0
"""How often libkineto asks, unless the job's KINETO_CONFIG says otherwise."""
_WARMUP_S = 1
_LEAD_S = POLL_S + 2.0 + _WARMUP_S
_EXPORT_S = 60.0
_ROUND_UP = 200
_TICK_S = 0.2
_START = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_FIRST = re.compile(rb'"name"\s*:\s*"Iteration Start[^}]*?"ts"\s*:\s*([0-9.]+)')


@dataclass(frozen=True)
class Options:
    """What libkineto is asked to add; each costs time in the window."""

    shapes: bool = True
    stacks: bool = False
    memory: bool = False


@dataclass
class Outcome:
    """Traces by pid, when each began (unix ns, None if the trace does not say), and failures."""

    traces: dict[int, Path] = field(default_factory=dict)
    started_unix_ns: dict[int, int | None] = field(default_factory=dict)
    failures: dict[int, AttachError] = field(default_factory=dict)


def listens(process: Process) -> bool:
    """Whether the process was started so that Kineto asks a daemon."""
    return "KINETO_USE_DAEMON" in process.environ


def record(
    targets: Mapping[Process, Path],
    *,
    steps: int | None = None,
    seconds: float | None = None,
    step_ns: int | None = None,
    options: Options | None = None,
    timeout_s: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Record one window of all these processes; each trace is moved to its path.

    Give ``steps`` (optimizer steps, as torch counts them) or ``seconds`` of wall
    clock. ``step_ns``, the length of a step if it is known, chooses an iteration
    that no rank has passed when the last one hears of it. A process that fails
    does not stop the others. Raises UsageError for wrong arguments and AttachError
    if the name "dynolog" cannot be had.
    """
    if (steps is None) == (seconds is None):
        raise UsageError("give either steps or seconds", hint="for example steps=3")
    if not targets:
        raise UsageError("no process was given", hint="see `diagnose attach --help`")
    directory, root = _meeting_place(targets)
    uids = {process.uid for process in targets}
    owner = uids.pop() if len(uids) == 1 else -1
    window = _Window(targets, steps, seconds, step_ns, options or Options(), timeout_s)
    with kineto_ipc.Endpoint(directory, root=root, owner=owner) as endpoint:
        try:
            window.run(endpoint, progress)
        finally:
            window.clean()
    return window.outcome


def _meeting_place(targets: Mapping[Process, Path]) -> tuple[str | None, str]:
    """The folder of the sockets (None: the abstract name), and the prefix it has from here."""
    directories = {p.environ.get(kineto_ipc.SOCKET_DIRECTORY) or None for p in targets}
    if len(directories) > 1:
        raise AttachError(
            f"the processes have different values of {kineto_ipc.SOCKET_DIRECTORY}",
            hint="attach to them one at a time",
        )
    directory = directories.pop()
    first = next(iter(targets))
    apart = directory is not None and not first.same_mount_namespace
    return directory, f"/proc/{first.pid}/root" if apart else ""


@dataclass
class _Order:
    """What one process is to do, and how far it is."""

    process: Process
    destination: Path
    stem: str
    folder: str
    delivered_s: float | None = None
    size: int = -1

    @property
    def configured(self) -> str:
        return f"{self.folder}/{self.stem}.json"

    @property
    def _prefix(self) -> str:
        return "" if self.process.same_mount_namespace else f"/proc/{self.process.pid}/root"

    @property
    def written(self) -> Path:
        """Where libkineto writes: it adds the pid that the process itself sees."""
        return Path(f"{self._prefix}{self.folder}/{self.stem}_{self.process.namespace_pid}.json")

    def leftovers(self) -> list[Path]:
        with suppress(OSError):
            return sorted(Path(f"{self._prefix}{self.folder}").glob(f"{self.stem}*"))
        return []


class _Window:
    def __init__(
        self,
        targets: Mapping[Process, Path],
        steps: int | None,
        seconds: float | None,
        step_ns: int | None,
        options: Options,
        timeout_s: float,
    ) -> None:
        self.outcome = Outcome()
        self._steps, self._seconds, self._options = steps, seconds, options
        self._timeout_s = timeout_s
        self._round_up = _round_up(step_ns)
        # Some versions of Kineto write nowhere but to this folder.
        self._open = {
            process.pid: _Order(
                process,
                destination,
                stem=f"diagnose-{secrets.token_hex(8)}",
                folder=process.environ.get("KINETO_ONDEMAND_TRACE_DIR") or "/tmp",
            )
            for process, destination in targets.items()
        }
        self._all = list(self._open.values())
        self._start_s = 0.0

    def run(self, endpoint: kineto_ipc.Endpoint, progress: Callable[[str], None]) -> None:
        begun = time.monotonic()
        self._start_s = time.time() + _LEAD_S
        progress(f"waiting until Kineto asks in {len(self._open)} processes, up to some seconds")
        while self._open:
            self._serve(endpoint, begun)
            for order in list(self._open.values()):
                self._look(order, time.monotonic() - begun)

    def _serve(self, endpoint: kineto_ipc.Endpoint, begun: float) -> None:
        # libkineto gives up on an answer after about 90 ms, so requests come first.
        datagram = endpoint.receive(_TICK_S)
        while datagram is not None:
            if datagram.kind == kineto_ipc.ANNOUNCEMENT:
                endpoint.answer(datagram, kineto_ipc.announcement_reply(1))
            elif datagram.kind == kineto_ipc.REQUEST:
                self._answer(endpoint, datagram, begun)
            datagram = endpoint.receive(0.001)

    def _answer(
        self, endpoint: kineto_ipc.Endpoint, datagram: kineto_ipc.Datagram, begun: float
    ) -> None:
        request = kineto_ipc.parse_request(datagram.payload)
        if request is None:
            return
        order = self._open.get(datagram.pid)
        if order is None and not datagram.pid:  # a process of a pid namespace we cannot see
            order = next(
                (o for o in self._open.values() if o.process.namespace_pid == request.pids[0]), None
            )
        text = ""
        if (
            order is not None
            and order.delivered_s is None
            and datagram.uid in (order.process.uid, -1)
            and request.kinds & kineto_ipc.WANTS_ACTIVITIES
            and (self._seconds is None or time.time() < self._start_s - _WARMUP_S)
        ):
            text = self._configuration(order)
        if endpoint.answer(datagram, kineto_ipc.request_reply(text)) and text and order is not None:
            order.delivered_s = time.monotonic() - begun

    def _configuration(self, order: _Order) -> str:
        settings: list[tuple[str, object]] = [("ACTIVITIES_LOG_FILE", order.configured)]
        if self._seconds is not None:
            settings += [
                ("PROFILE_START_TIME", round(self._start_s * 1000)),
                ("ACTIVITIES_WARMUP_PERIOD_SECS", _WARMUP_S),
                ("ACTIVITIES_DURATION_MSECS", max(1, round(self._seconds * 1000))),
            ]
        else:
            settings += [
                ("PROFILE_START_ITERATION", 0),
                ("PROFILE_START_ITERATION_ROUNDUP", self._round_up),
                ("ACTIVITIES_WARMUP_ITERATIONS", 1),
                ("ACTIVITIES_ITERATIONS", self._steps),
                ("ACTIVITIES_DURATION_MSECS", 0),
            ]
        settings += [
            ("PROFILE_REPORT_INPUT_SHAPES", self._options.shapes),
            ("PROFILE_WITH_STACK", self._options.stacks),
            ("PROFILE_PROFILE_MEMORY", self._options.memory),
        ]
        return kineto_ipc.configuration(settings)

    def _look(self, order: _Order, now_s: float) -> None:
        process = order.process
        if order.delivered_s is None:
            patience_s = _LEAD_S if self._seconds is not None else 3 * POLL_S
            if now_s > patience_s:
                self._fail(order, _never_asked(process, patience_s))
            return
        if self._whole(order):
            try:
                _copy(order.written, order.destination, process.uid)
            except OSError as problem:
                self._fail(order, _unreadable(process, order, problem))
                return
            self.outcome.traces[process.pid] = order.destination
            self.outcome.started_unix_ns[process.pid] = started_unix_ns(order.destination)
            del self._open[process.pid]
            return
        if not os.path.exists(f"/proc/{process.pid}"):  # noqa: PTH110
            self._fail(order, _lost(process, "it ended before the trace was written"))
        limit = self._timeout_s
        if self._seconds is not None:
            limit = self._start_s - time.time() + now_s + self._seconds + _EXPORT_S
        if now_s > limit:
            self._fail(order, _lost(process, self._silence()))

    def _silence(self) -> str:
        if self._seconds is None:
            return (
                "no trace appeared: its own profiler may be at work, which wins, "
                "or no optimizer step was counted"
            )
        return "no trace appeared: its own profiler may be at work, which wins"

    @staticmethod
    def _whole(order: _Order) -> bool:
        """Written to its end: older versions write in place, so the size has to stand still."""
        try:
            with open(order.written, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 64))
                ended = file.read().rstrip().endswith(b"}")
        except OSError:
            return False
        still, order.size = size == order.size, size
        return bool(size) and ended and still

    def _fail(self, order: _Order, error: AttachError) -> None:
        self._open.pop(order.process.pid, None)
        self.outcome.failures[order.process.pid] = error

    def clean(self) -> None:
        """Remove what libkineto left in its folder: traces that were copied, empty files."""
        for order in self._all:
            for path in order.leftovers():
                with suppress(OSError):
                    path.unlink()


def _copy(written: Path, destination: Path, owner: int) -> None:
    """Copy what that process wrote. Raises OSError, also if it is a link to something else."""
    handle = os.open(written, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    part = destination.with_name(destination.name + ".part")
    try:
        with open(handle, "rb") as source, open(part, "xb") as copy:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_uid not in (owner, 0):
                raise OSError(errno.EPERM, "not a file of that process")
            shutil.copyfileobj(source, copy, 1 << 20)
        part.replace(destination)
    finally:
        part.unlink(missing_ok=True)


def _round_up(step_ns: int | None) -> int:
    """Iterations between possible starts: more than pass while the ranks ask one after another."""
    if not step_ns:
        return _ROUND_UP
    return max(2, math.ceil(2 * POLL_S * 1e9 / step_ns))


def started_unix_ns(trace: Path) -> int | None:
    """When the window of a Kineto trace began, or None if the file does not say."""
    try:
        data = trace.read_bytes()
    except OSError:
        return None
    base, first = _START.search(data), _FIRST.search(data)
    if first is None:
        return None
    return (int(base[1]) if base else 0) + round(float(first[1]) * 1000)


def _never_asked(process: Process, waited_s: float) -> AttachTimeoutError:
    return AttachTimeoutError(
        f"process {process.pid} did not ask its Kineto daemon for work within {waited_s:.0f} s",
        hint="it may be stopped, in another network namespace (then start the job with "
        f"{kineto_ipc.SOCKET_DIRECTORY} set to a folder both sides see), or its PyTorch is built "
        "without the daemon's client",
    )


def _lost(process: Process, reason: str) -> WindowLostError:
    return WindowLostError(
        f"process {process.pid} was asked through Kineto's daemon, but {reason}",
        hint="try again when the job's own profiler is not running, or without that route",
    )


def _unreadable(process: Process, order: _Order, problem: OSError) -> WindowLostError:
    return WindowLostError(
        f"the trace of process {process.pid} at {order.written} cannot be fetched: "
        f"{problem.strerror}",
        hint="check the free space and the rights of both folders",
    )
