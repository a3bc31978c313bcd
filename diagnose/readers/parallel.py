"""Files read side by side, each in a process of its own, where that pays.

Plain child processes, not ``multiprocessing``: that would import the caller's
main module again, and a script without a main guard would run twice. A child
that dies takes only its file along, and never leaves the parent waiting.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from diagnose.errors import InputTooLargeError
from diagnose.readers import files
from diagnose.readers.load import HINT_TOO_LARGE, Job, Outcome, load

Progress = Callable[[int], None]

MIN_TEXT_BYTES = 128 << 20
"""Below about this much JSON, starting processes costs more than it saves."""
PACKED_RATIO = 12
"""Compressed traces are about this much smaller: decides on processes, on nothing else."""
_PROGRESS_BYTES = 1 << 20
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from diagnose.readers import parallel; parallel.serve()"
)


def num_workers(paths: list[str]) -> int:
    """How many processes to use for these files; 1: none but this one."""
    if len(paths) < 2 or not sys.executable or any(map(files.is_special, paths)):
        return 1
    expected = 0
    for path in paths:
        packed = path.lower().endswith((".gz", ".zip"))
        expected += (files.size(path) or 0) * (PACKED_RATIO if packed else 1)
    if expected < MIN_TEXT_BYTES:
        return 1
    return max(1, min(len(paths), _num_cpus()))


def load_all(jobs: list[Job], workers: int, progress: Progress | None = None) -> list[Outcome]:
    """Outcomes in the order of the jobs. ``progress`` is called in the calling thread."""
    if workers < 2:
        return [load(job, progress) for job in jobs]
    return _Pool(jobs, workers).run(progress)


def _num_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class _Pool:
    """Threads that each drive one child; the calling thread collects."""

    def __init__(self, jobs: list[Job], workers: int) -> None:
        self.jobs = jobs
        self.todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in sorted(range(len(jobs)), key=lambda i: -(files.size(jobs[i].trace.path) or 0)):
            self.todo.put(index)
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.children = [
            subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(workers)
        ]

    def run(self, progress: Progress | None) -> list[Outcome]:
        threads = [
            threading.Thread(target=self._drive, args=(child,), daemon=True)
            for child in self.children
        ]
        outcomes: dict[int, Outcome] = {}
        try:
            for thread in threads:
                thread.start()
            running = len(threads)
            while running:
                kind, value = self.events.get()
                if kind == "progress" and progress is not None:
                    progress(value)
                elif kind == "outcome":
                    outcomes[value[0]] = value[1]
                elif kind == "gone":
                    running -= 1
        finally:
            for child in self.children:
                child.kill()
                child.wait()
            for thread in threads:
                thread.join()
            for child in self.children:
                _close(child)
        return [
            outcomes[index] if index in outcomes else load(job, progress)
            for index, job in enumerate(self.jobs)
        ]

    def _drive(self, child: subprocess.Popen[bytes]) -> None:
        index = None
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            pickle.dump(sys.path, child.stdin)
            while True:
                try:
                    index = self.todo.get_nowait()
                except queue.Empty:
                    return
                pickle.dump(self.jobs[index], child.stdin)
                child.stdin.flush()
                kind, value = pickle.load(child.stdout)
                while kind == "progress":
                    self.events.put((kind, value))
                    kind, value = pickle.load(child.stdout)
                self.events.put(("outcome", (index, value)))
                index = None
        except (OSError, EOFError, pickle.UnpicklingError):
            if index is not None and child.wait() == -signal.SIGKILL:
                self.events.put(("outcome", (index, _killed(self.jobs[index]))))
        finally:
            self.events.put(("gone", None))


def _killed(job: Job) -> Outcome:
    """Nobody but the system kills readers: not to be repeated in this process."""
    error = InputTooLargeError(
        f"{job.trace.path}: the process that read it was killed, most likely because memory ran "
        "out",
        hint=HINT_TOO_LARGE,
    )
    return Outcome(errors=[error])


def _close(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue  # a job that the child did not take any more


def serve() -> None:
    """The child: reads jobs from standard input, writes outcomes to standard output."""
    jobs: BinaryIO = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # whatever prints must not reach the answers
        while True:
            try:
                job: Job = pickle.load(jobs)
            except EOFError:
                return
            reporter = _Reporter(out)
            outcome = load(job, reporter.add)
            reporter.send()
            pickle.dump(("outcome", outcome), out, protocol=pickle.HIGHEST_PROTOCOL)
            out.flush()


class _Reporter:
    """Progress in pieces that are worth a message."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.waiting = 0

    def add(self, num_bytes: int) -> None:
        self.waiting += num_bytes
        if self.waiting >= _PROGRESS_BYTES:
            self.send()

    def send(self) -> None:
        if self.waiting:
            pickle.dump(("progress", self.waiting), self.out)
            self.out.flush()
            self.waiting = 0
