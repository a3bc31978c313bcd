"""An execution trace (Chakra) of a few steps: on request only, it slows a step several times.

PyTorch has one observer per process, and the job's own goes first: where it has one in use the
request is refused, and where it makes one meanwhile ours leaves.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .profiler import Output
from .protocol import ABORTED, BUSY, INTERNAL, TORCH_MISSING, RefusalError
from .steps import Mark, StepClock

_LAST_CALLS_S = 0.05
"""For so long other threads may still be writing down operators that began before ``stop``."""


class Observer:
    """PyTorch's observer, writing into a file from ``start`` to ``stop``; ``close`` ends it."""

    def __init__(self, path: str) -> None:
        self.taken = False
        """The job has made one of its own meanwhile; what was recorded until then is cut off."""
        self._observer: Any = None
        self._kind: Any = None
        self._running = False
        self._stopped_s = 0.0
        self._pid = os.getpid()
        self._path = path
        self._original: Any = None
        self._guarded: Any = None

    def register(self) -> None:
        """Open the file. To be closed whatever comes of it, an interrupt included.

        Raises RefusalError if this torch has no observer, or the job has its own in use.
        """
        kind = getattr(sys.modules.get("torch.profiler"), "ExecutionTraceObserver", None)
        if kind is None:
            raise RefusalError(TORCH_MISSING, "this torch has no ExecutionTraceObserver")
        self._observer = kind()
        self._kind = kind
        self._observer.register_callback(self._path)
        if not getattr(self._observer, "_registered", True) or not _holds_open(self._path):
            # Registered or not, torch believes it is ours: going away it would end the job's.
            self._observer._registered = False
            self._observer = None
            raise RefusalError(BUSY, "the job has an execution trace observer of its own")
        _watch_forks(self)
        self._give_way()

    def _give_way(self) -> None:
        """From now on one that the job makes ends ours first; else it would record nothing."""
        original = vars(self._kind).get("register_callback")
        if original is None:
            return

        @functools.wraps(original)
        def register_callback(observer: Any, *args: Any, **kwargs: Any) -> Any:
            ours = self._observer
            if ours is not None and ours is not observer and os.getpid() == self._pid:
                with suppress(Exception):
                    self.taken = self._running
                    self.close()
            return original(observer, *args, **kwargs)

        self._original, self._guarded = original, register_callback
        self._kind.register_callback = register_callback

    def start(self) -> None:
        """Write operators down from now on."""
        self._running = True
        self._observer.start()

    def stop(self) -> None:
        """Write no more; on any thread. Never raises."""
        if self._running and os.getpid() == self._pid:
            self._running = False
            self._stopped_s = time.monotonic()
            with suppress(Exception):
                self._observer.stop()

    def close(self) -> None:
        """Take the observer out and write the end of the file. Never raises."""
        if os.getpid() != self._pid:
            return
        self.stop()
        observer, self._observer = self._observer, None
        if observer is None:
            return
        if self._guarded is not None and vars(self._kind).get("register_callback") is self._guarded:
            self._kind.register_callback = self._original
        # To free it while a thread of autograd is inside of it would crash the process.
        time.sleep(min(_LAST_CALLS_S, max(0.0, self._stopped_s + _LAST_CALLS_S - time.monotonic())))
        with suppress(Exception):
            observer.unregister_callback()

    def leave_in_child(self) -> None:
        """After a fork: the child writes nothing into the file, of which it has a copy, open."""
        observer, self._observer = self._observer, None
        if observer is None:
            return
        with suppress(Exception):
            observer.stop()
        observer._registered = False  # to take it out would wait for a thread that is not there
        with suppress(Exception), open(os.devnull, "wb") as nowhere:
            for number in _descriptors(self._path):
                os.dup2(nowhere.fileno(), number, inheritable=False)


_living: weakref.WeakSet[Observer] = weakref.WeakSet()
_forks_watched = False


def _watch_forks(observer: Observer) -> None:
    # Python cannot take such a function out again: it stays, one for all windows.
    global _forks_watched
    _living.add(observer)
    if not _forks_watched:
        _forks_watched = True
        os.register_at_fork(after_in_child=_leave_in_child)


def _leave_in_child() -> None:
    for observer in list(_living):
        with suppress(Exception):
            observer.leave_in_child()


def _holds_open(path: str) -> bool:
    """Whether this process has the file open: torch does not say that another is registered."""
    with suppress(OSError):
        return bool(_descriptors(path))
    return False


def _descriptors(path: str) -> list[int]:
    about = os.stat(path)
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.path.samestat(os.fstat(int(name)), about):
                found.append(int(name))
    return found


class ExecutionTrace:
    """A window of its own: starts at the next step boundary, covers ``num_steps`` steps."""

    def __init__(
        self, clock: StepClock, output: Output, num_steps: int, wake: Callable[[], None]
    ) -> None:
        self.marks: list[Mark] = []
        self.over = False
        self.error: RefusalError | None = None
        self._clock = clock
        self._num_steps = num_steps
        self._wake = wake
        self._observer = Observer(output.unfinished)
        try:
            self._observer.register()
        except BaseException:
            self._observer.close()
            raise
        clock.listener = self._boundary

    def _boundary(self, mark: Mark) -> None:
        if self.over:
            return
        try:
            if not self.marks:
                self._observer.start()
            self.marks.append(mark)
            if len(self.marks) > self._num_steps:
                self._end()
        except Exception as error:
            self.error = RefusalError(INTERNAL, f"{type(error).__name__}: {error}")
            self._end()

    def _end(self) -> None:
        self.over = True
        if self._clock.listener == self._boundary:
            self._clock.listener = None
        self._observer.stop()
        self._wake()

    def close(self) -> None:
        """Stop if it still runs, and write the end of the file."""
        if not self.over:
            self.error = RefusalError(ABORTED, "the execution trace was ended early")
            self._end()
        if self._observer.taken:
            self.error = RefusalError(ABORTED, "the job made an execution trace observer itself")
        self._observer.close()
