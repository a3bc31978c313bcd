"""Run a text of Python in a process that knows nothing of it, in a fresh thread of its own.

One thread that rests in a futex, the main thread only if there is no other, is borrowed for
two calls, ``mmap`` and ``pthread_create``: well under a millisecond
as a rule. The new thread takes the GIL, runs the text and ends. No library is loaded, no
other thread stops, and the borrowed one neither takes nor waits for the GIL.

Why so:

- A thread that rests in a futex is in no allocator, and its wait can be made again as if
  nothing had been; most other waits would end with EINTR or with a longer time.
- A thread that waited for the GIL could be the one that its holder waits for.
- ``pthread_create``, not ``PyThread_start_new_thread``: the latter allocates through Python's
  hooks, which with tracemalloc take the GIL.
- Whatever is called returns into a signal frame that puts everything back. If this process
  is killed or interrupted at any moment, the thread finds its own way.
- The thread's signals are blocked on the way, so none is lost or handled in the wrong place;
  the new thread inherits that, and never handles a signal of the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from diagnose.attach.discovery.processes import Process
from diagnose.attach.injection import refusals
from diagnose.attach.injection._boot import FAILURE_BYTES, FAILURE_MARK
from diagnose.attach.injection._detour import Errand, MovedOn, send
from diagnose.attach.injection._x86_64 import FutexWait, futex_wait
from diagnose.attach.injection.ptrace import ThreadEndedError, TracedThread
from diagnose.attach.injection.symbols import c_library, gone, memory_of, supported_interpreter
from diagnose.errors import AttachError, AttachTimeoutError, PtraceRefusedError

PAGE = "[diagnose:page]"
"""Stands in a text for the memory it runs from: becomes ``(address, size)``."""

MOST_TEXT_BYTES = 1 << 20

# Most jobs have threads that rest for long; for those that have none, a short search is enough.
_REST_S, _PATIENT_S, _PAUSE_S = 0.03, 0.2, 0.002
# The C library, an allocator put before it and a signal frame with all vector registers.
_STACK_BYTES = 64 << 10


@dataclass(frozen=True)
class Injection:
    """What was done: the thread that was borrowed, for how long, and the memory left."""

    thread: int
    stopped_ns: int
    page: tuple[int, int]
    """Address and size in bytes. Whoever runs in the process gives it back (munmap)."""


def inject(pid: int, text: str, *, timeout_s: float = 5.0) -> Injection:
    """Start a thread in a process that runs ``text``; does not wait for it.

    The text is ASCII without NUL, at most 1 MiB (ValueError); it must catch whatever it raises
    and assign no name, since it runs in ``__main__``: see ``payload.wrapped``. Raises an
    AttachError with the process as it was: NotPythonError, ProcessGoneError, ProcessorError,
    PtraceRefusedError, OtherUserError, StuckError (stopped), AttachTimeoutError (no thread
    at rest, or what was begun took too long and goes on by itself).
    """
    if not text.isascii() or "\0" in text or len(text) > MOST_TEXT_BYTES:
        raise ValueError("the text must be ASCII without NUL, and at most 1 MiB")
    refusal = refusals.explain(pid, torch=False)
    if refusal is not None:
        raise refusal
    process = Process(pid)
    born = _born(process)
    errand = Errand(
        supported_interpreter(process), c_library(process), text.encode("ascii"), PAGE.encode()
    )
    return _on_own_thread(lambda: _inject(process, errand, born, timeout_s))


def failure(pid: int, injection: Injection) -> str:
    """What went wrong in the text, as it left word at the end of its memory; empty if nothing.

    Text from another process: not to be shown as it is.
    """
    address, size = injection.page
    try:
        with memory_of(Process(pid)) as memory:
            left = memory.read(address + size - FAILURE_BYTES, FAILURE_BYTES)
    except (AttachError, OSError):
        return ""
    if not left.startswith(FAILURE_MARK):
        return ""
    return left[len(FAILURE_MARK) :].split(b"\0")[0].decode("utf-8", "replace")


def _on_own_thread(work: Callable[[], Injection]) -> Injection:
    """Do it on a thread that ends afterwards, so that the kernel lets go of what it traced.

    Control-C reaches only the main thread of Python: the work is finished first, which
    takes milliseconds and is bounded.
    """
    results: list[Injection | BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            results.append(error)

    worker = threading.Thread(target=run, name="diagnose-inject")
    worker.start()
    interrupt: BaseException | None = None
    while not results:
        try:
            worker.join()
        except BaseException as error:  # noqa: BLE001 - raised when the other side is well
            interrupt = error
    if interrupt is not None:
        raise interrupt
    result = results[0]
    if isinstance(result, BaseException):
        raise result
    return result


def _born(process: Process) -> tuple[int, int]:
    """What tells a process from a later one of the same id, and from another program in it."""
    stacks = (region.end for region in process.maps() if region.path == "[stack]")
    return process.started_ticks, next(stacks, 0)


def _inject(process: Process, errand: Errand, born: tuple[int, int], timeout_s: float) -> Injection:
    begun = time.monotonic()
    deadline = begun + timeout_s
    while True:
        patient = time.monotonic() < begun + _PATIENT_S
        for thread, wait in _resting(process, patient=patient):
            try:
                return _borrow(process, born, thread, wait, errand, deadline)
            except MovedOn:
                pass
            except ThreadEndedError:
                if not process.exists:
                    raise gone(process) from None
            except PtraceRefusedError as error:
                raise refusals.explain(process.pid, torch=False) or error from None
        if not process.exists:
            raise gone(process)
        if time.monotonic() > deadline:
            raise AttachTimeoutError(
                f"process {process.pid}: none of its {len(process.threads)} threads was at rest"
                f" within {timeout_s:g} s, so none could be borrowed",
                hint="try again; a process whose only thread never waits can be recorded only"
                " when it was started with `diagnose run`",
            )


def _borrow(
    process: Process,
    born: tuple[int, int],
    thread: int,
    wait: FutexWait,
    errand: Errand,
    deadline: float,
) -> Injection:
    started = time.perf_counter_ns()
    traced = TracedThread.seize(process.pid, thread)
    try:
        # What is traced keeps its id: only now it is sure whose addresses those are.
        if _born(process) != born:
            raise gone(process)
        page = send(traced, errand, wait, deadline)
    finally:
        traced.release()
    return Injection(thread, time.perf_counter_ns() - started, (page, errand.size))


def _resting(process: Process, *, patient: bool) -> list[tuple[int, FutexWait]]:
    """Threads to borrow, the main thread last.

    Patient: those that have not moved for a while, which are idle in most jobs. Where all are
    busy, those that wait for a condition just now: they miss what they wait for by a moment.
    """
    before = _waits(process)
    if patient:
        time.sleep(_REST_S)
        after = _waits(process)
        fit = {thread: wait for thread, wait in before.items() if after.get(thread) == wait}
    else:
        time.sleep(_PAUSE_S)
        fit = {thread: wait for thread, wait in before.items() if wait[0].for_condition}
    stacks = [
        (region.start + _STACK_BYTES, region.end)
        for region in process.maps()
        if "w" in region.permissions
    ]
    return [
        (thread, wait)
        for thread, (wait, _) in sorted(fit.items(), key=lambda item: item[0] == process.pid)
        if any(start <= wait.stack < end for start, end in stacks)
    ]


def _waits(process: Process) -> dict[int, tuple[FutexWait, str]]:
    """Threads in a futex wait that nobody traces: the wait, and how often they have moved."""
    found = {}
    for thread in process.threads:
        folder = process.folder / "task" / str(thread)
        try:
            wait = futex_wait((folder / "syscall").read_text("ascii"))
            if wait is None:
                continue
            status = (folder / "status").read_text("utf-8", "replace")
        except OSError:
            continue  # ended meanwhile
        switches = [line for line in status.splitlines() if line.startswith("voluntary")]
        if "\nTracerPid:\t0\n" in status:
            found[thread] = (wait, "".join(switches))
    return found
