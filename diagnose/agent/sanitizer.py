"""PyTorch's CUDA sanitizer as an observer: races are written down, and the job goes on.

By itself the sanitizer (``TORCH_CUDA_SANITIZER``) raises at the first operator that races. With
``DIAGNOSE_CHECK_SYNC`` naming a folder each process of a job writes there what was found (see
``race_log``), and ends with status 0 after ``DIAGNOSE_CHECK_SYNC_STEPS`` optimizer steps or
``DIAGNOSE_CHECK_SYNC_SECONDS`` from the first operator on a GPU (see ``early_end``).
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from contextlib import suppress
from typing import Any

from . import early_end
from .race_log import RaceLog
from .rank import place, torch_version
from .sanitizer_repairs import of_memory, tell_of_queries, where_cuda_runs
from .steps import Mark

FOLDER = "DIAGNOSE_CHECK_SYNC"
STEPS = "DIAGNOSE_CHECK_SYNC_STEPS"
SECONDS = "DIAGNOSE_CHECK_SYNC_SECONDS"

_FLUSH_S = 1.0


def watch(sanitizer: Any) -> None:
    """Let the sanitizer's module report here, before it is switched on; else it stays off."""
    try:
        watcher = _Watcher(
            os.environ[FOLDER],
            int(os.environ.get(STEPS, "3")),
            float(os.environ.get(SECONDS, "600")),
        )
        handler, mode = sanitizer.EventHandler, sanitizer.CUDASanitizerDispatchMode
        launch, dispatch = handler._handle_kernel_launch, mode.__torch_dispatch__
        events = sanitizer.cuda_sanitizer.dispatch.event_handler
        handler._handle_kernel_launch = _going_on(launch, watcher)
        mode.__torch_dispatch__ = where_cuda_runs(dispatch)
        mode.supports_higher_order_operators = True  # else torch raises at each of them
    except Exception:
        # As it is it would end the job at the first race, and nobody would hear of that.
        sanitizer.enable_cuda_sanitizer = lambda: None
        _unusable("unknown")
        return
    with suppress(Exception):
        arguments = sanitizer.ArgumentHandler
        arguments._handle_argument = of_memory(arguments._handle_argument)
    with suppress(Exception):
        tell_of_queries(events)
    watcher.begin()
    atexit.register(watcher.at_exit)
    os.register_at_fork(after_in_child=lambda: watcher.begin(forked=True))


def note_if_missing(cuda: Any) -> None:
    """Write down that this torch is too old to have a sanitizer. ``cuda``: ``torch.cuda``."""
    if not os.path.exists(os.path.join(os.path.dirname(cuda.__file__), "_sanitizer.py")):
        _unusable("missing")


def _unusable(why: str) -> None:
    with suppress(Exception):
        log = RaceLog(os.environ[FOLDER])
        log.write(kind="unusable", why=why, torch=torch_version())


def _going_on(original: Any, watcher: _Watcher) -> Any:
    @functools.wraps(original)
    def handle(*args: Any, **kwargs: Any) -> list[Any]:
        # An operator without a tensor of a GPU comes by here too, and is nothing to check.
        if any(isinstance(one, set) and one for one in (*args[2:4], *kwargs.values())):
            try:
                errors = original(*args, **kwargs)
            except Exception:
                watcher.failures += 1
                errors = ()
            watcher.saw(errors)
        return []

    return handle


class _Watcher:
    """Counts what one process does, writes down what races, and knows when it is enough."""

    def __init__(self, folder: str, steps: int, seconds: float) -> None:
        self.failures = 0
        self._folder = folder
        self._steps = steps
        self._seconds = seconds

    def begin(self, *, forked: bool = False) -> None:
        """Start with nothing seen: at first, and in the child of a fork."""
        self._log = RaceLog(self._folder)
        self._launches = self.failures = 0
        self._due = self._deadline = 0.0
        self._ended, self._forked = False, forked
        with suppress(Exception):
            from . import server

            self._clock = server.prepare().clock
            self._clock.listener = self._boundary

    def saw(self, errors: Any) -> None:
        """An operator was launched; these races were found at it."""
        now = time.monotonic()
        if not self._launches:
            self._deadline = now + self._seconds
            with suppress(Exception):
                early_end.note(self._folder, "begin")
        self._launches += 1
        try:
            for error in errors:
                self._log.race(error, self._clock.step + 1, _device)
            if now >= self._due:
                self._due = now + _FLUSH_S
                self._flush()
        except Exception:
            self.failures += 1
        if now >= self._deadline:
            self._end_process("seconds")

    def _boundary(self, mark: Mark) -> None:
        with suppress(Exception):
            self._flush()
        if self._forked and not self._launches:
            return  # it computes on the CPU, and is no rank
        if mark.step >= self._steps or not (self._launches or _available()):
            self._end_process("steps")

    def _end_process(self, why: str) -> None:
        with suppress(Exception):
            self._write_end(why)
        early_end.leave(self._folder, finish_work=why == "steps")

    def at_exit(self) -> None:
        """The job ends before its steps are done, or takes none."""
        with suppress(Exception):
            self._write_end("exit")

    def _write_end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._flush(last=True)
        self._log.write(
            kind="end",
            why=why,
            steps=self._clock.step,
            launches=self._launches,
            failures=self.failures,
            races_left_out=self._log.left_out,
            gpu_available=_available(),
            torch=torch_version(),
            **place(),
        )

    def _flush(self, *, last: bool = False) -> None:
        self._log.counts(last=last)
        self._log.write(
            kind="step",
            step=self._clock.step,
            launches=self._launches,
            failures=self.failures,
            **place(),
        )


def _device() -> int | None:
    with suppress(Exception):
        cuda = sys.modules["torch.cuda"]
        return int(cuda.current_device()) if cuda.is_initialized() else None
    return None


def _available() -> bool:
    with suppress(Exception):
        return bool(sys.modules["torch.cuda"].is_available())
    return False
