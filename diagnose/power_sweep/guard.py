"""Limits that come back: after the block, after an exception, a signal, and a kill.

Before the first limit is set three things stand ready:

- this process, which restores when the block is left, however it is left; SIGINT,
  SIGTERM and SIGHUP end the block, and none interrupts the restoring;
- a watchdog, a process in a session of its own that reads from a pipe. When this process
  is gone the pipe ends, and the watchdog restores. Without its "ready" nothing is set;
- a journal with the old limits, for the case that both are killed at once: the next
  sweep restores from it before anything else.

A reboot resets limits by itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from diagnose.errors import RecordingError
from diagnose.power_sweep.journal import Journal
from diagnose.power_sweep.plan import Limits
from diagnose.telemetry.limits import PowerLimitError

WATCHDOG = (sys.executable, "-m", "diagnose.power_sweep.watchdog")
READY = b"ready\n"
RESTORED = "restored"
_PATIENCE_S = 30.0
_TRIES = 5
_BETWEEN_TRIES_S = 0.2
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SweepEnded(BaseException):
    """A signal asked for the end. Not an Exception: nothing may swallow it on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


class LimitGuard:
    """A block in which limits may be set; after it they are as ``old_w`` (UUID -> watts) says.

    Only on the main thread. Raises PowerLimitError on entering if the watchdog does not
    stand ready, and on leaving if a limit could not be restored: the message names the
    commands that do it by hand.
    """

    def __init__(
        self,
        limits: Limits,
        old_w: Mapping[str, float],
        journal: Journal,
        watchdog: Sequence[str] = WATCHDOG,
    ) -> None:
        self._limits, self._old_w, self._journal = limits, dict(old_w), journal
        self._command = list(watchdog)
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> LimitGuard:
        self._journal.write(self._old_w)
        try:
            self._start_watchdog()
        except BaseException:
            self._end_watchdog()
            self._journal.remove()
            raise
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            self._handlers[number] = signal.signal(number, _end)
        return self

    def set(self, watts: Mapping[str, float]) -> None:
        """Set limits, of GPUs that will be restored. Raises PowerLimitError."""
        if self._watchdog is None or self._watchdog.poll() is not None:
            raise PowerLimitError(
                "the watchdog that restores power limits is gone, so none is set",
                hint="run the sweep where its processes are left alone",
            )
        for uuid, value in watts.items():
            if uuid not in self._old_w:
                raise PowerLimitError(f"GPU {uuid} is not part of this sweep")
            self._limits.set(uuid, value)

    def restore(self) -> None:
        """Put the old limits back now. Raises PowerLimitError: how to do it by hand."""
        restore(self._limits, self._old_w)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self.restore()
            self._journal.remove()
            self._say_restored()
        finally:
            self._end_watchdog()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)

    def _start_watchdog(self) -> None:
        # A session of its own: Ctrl-C at the terminal and the end of a login do not reach it.
        self._watchdog = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._journal.held,
        )
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        order = {"limits_w": self._old_w, "journal": str(self._journal.path)}
        with suppress(BrokenPipeError):
            self._watchdog.stdin.write(json.dumps(order).encode() + b"\n")
            self._watchdog.stdin.flush()
        if _line(self._watchdog.stdout.fileno(), _PATIENCE_S) != READY:
            raise PowerLimitError(
                "the watchdog that restores power limits did not start, so none is set",
                hint=f"it is started as: {' '.join(self._command)}",
            )

    def _say_restored(self) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with suppress(OSError):
                self._watchdog.stdin.write(f"{RESTORED}\n".encode())
                self._watchdog.stdin.flush()

    def _end_watchdog(self) -> None:
        """Close the pipe: unless it was told that all is restored, it restores too."""
        if self._watchdog is None:
            return
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(_PATIENCE_S)


def restore(limits: Limits, old_w: Mapping[str, float]) -> None:
    """Set every limit to its old value, as often as it takes. Raises PowerLimitError."""
    left = dict(old_w)
    for attempt in range(_TRIES):
        for uuid, watts in list(left.items()):
            with suppress(RecordingError):
                limits.set(uuid, watts)
                del left[uuid]
        if not left:
            return
        if attempt + 1 < _TRIES:
            time.sleep(_BETWEEN_TRIES_S)
    commands = "; ".join(f"nvidia-smi -i {uuid} -pl {watts:g}" for uuid, watts in left.items())
    raise PowerLimitError(
        f"the power limits of {len(left)} GPUs could not be restored",
        hint=f"as root, do it by hand: {commands}",
    )


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SweepEnded(number)


def _line(descriptor: int, patience_s: float) -> bytes:
    """One line, or what came of it in time."""
    text, end = b"", time.monotonic() + patience_s
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(end - time.monotonic(), 0))
        more = os.read(descriptor, 1) if ready else b""
        if not more:
            break
        text += more
    return text
