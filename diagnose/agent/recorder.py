"""The operations that record: arm, go, after, and the execution trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from . import main_thread
from .conversation import Conversation
from .execution_trace import ExecutionTrace
from .hooks import OptimizerHook
from .profiler import Output, Profile, read_options, require_torch
from .protocol import (
    ABORTED,
    BAD_REQUEST,
    BUSY,
    INTERNAL,
    MAIN_THREAD_STUCK,
    NO_STEPS,
    RefusalError,
    number_of,
)
from .start import UNIX, Start, read_start
from .steps import Mark, StepClock
from .sync_check import SyncCheck
from .window import ARMED, OVER, PREPARED, RECORDING, Window

MAX_STEPS = 100_000
MAX_SECONDS = 86_400.0
_MARKS_SHOWN = 8
_ANSWER_S = 2.0
_MOST_AFTER = 1024
_EXIT_S = 5.0


class Recorder:
    """At most one window or execution trace at a time, on the clock of the process."""

    def __init__(self, clock: StepClock, hook: OptimizerHook, wake: Callable[[], None]) -> None:
        self.window: Window | None = None
        self._clock = clock
        self._hook = hook
        self._wake = wake
        self._last_step = 0
        self._execution_trace: ExecutionTrace | None = None
        self._ending: Window | None = None
        self._output: Output | None = None
        self._check: SyncCheck | None = None

    @property
    def state(self) -> str:
        """``idle``, ``armed`` or ``recording``."""
        if self.window is None or self.window.state == OVER:
            return "idle"
        return "recording" if self.window.state in (PREPARED, RECORDING) else "armed"

    def disarm(self, sentence: str = "the recording was cancelled") -> None:
        """End what is going on; marks are counted on."""
        window, self.window = self.window, None
        if window is not None:
            window.abort(ABORTED, sentence)
            if window.state == OVER:
                window.release()
            else:
                self._ending = window
        trace, self._execution_trace = self._execution_trace, None
        if trace is not None:
            trace.close()

    def at_exit(self) -> None:
        """End what is going on because the interpreter ends, and leave no unfinished file.

        What is over already may be written to its end for 5 s. The agent's thread would clean
        up as well, but the interpreter stops it wherever it stands.
        """
        window, trace, output = self.window, self._execution_trace, self._output
        check = self._check
        if window is not None:
            window.abort(ABORTED, "the job has ended")
        if trace is not None:
            trace.close()
        if output is None:
            return
        end = time.monotonic() + (_EXIT_S if window is None or window.state == OVER else 0.0)
        while (output.open or (check is not None and check.open)) and time.monotonic() < end:
            time.sleep(0.002)
        if check is not None:
            check.close()
        output.discard()

    @property
    def ended(self) -> bool:
        """Whether nothing records any more: a profile of one thread ends at its next step."""
        if self._ending is not None and self._ending.state == OVER:
            self._ending.release()
            self._ending = None
        return self._ending is None

    def arm(self, request: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
        """Count steps, keep other profilers out, and answer with the last boundaries."""
        need = int(number_of(request, "marks", 2, 1, 64))
        timeout_s = number_of(request, "timeout_s", 10.0, 0.0, MAX_SECONDS)
        require_torch()
        self.disarm()
        if not self.ended:
            raise RefusalError(BUSY, "the last window ends at the next step")
        began = time.monotonic()
        window = self.window = Window(self._clock, self._wake)
        try:
            window.arm()
            reached = self._hook.install(timeout_s)
            left_s = max(0.0, timeout_s - (time.monotonic() - began))
            seen = conversation.wait(
                lambda: window.num_seen >= need or window.state == OVER or self._fresh(need), left_s
            )
            if window.error is not None:
                raise window.error
            if not seen:
                self._raise_no_steps(reached, timeout_s)
        except BaseException:
            self.disarm()
            raise
        # After a change of the group only what was seen since then has its numbers.
        most = _MARKS_SHOWN if self._clock.sequence.group is None else window.num_seen
        marks = self._clock.marks(most=max(need, most))
        return {"marks": lists(marks), "group": self._clock.sequence.group}

    def _fresh(self, need: int) -> bool:
        """Whether the ring holds enough marks already, and the job is still stepping."""
        marks = self._clock.marks(most=need)
        interval = self._clock.interval_ns()
        if len(marks) < need or interval is None:
            return False
        moves = all(
            a.seq is not None and b.seq is not None and b.seq > a.seq
            for a, b in zip(marks, marks[1:])
        )
        return moves and time.time_ns() - marks[-1].unix_ns < 3 * interval

    def _raise_no_steps(self, reached: bool, timeout_s: float) -> None:
        if not reached or not main_thread.answers(_ANSWER_S):
            raise RefusalError(
                MAIN_THREAD_STUCK,
                f"the main thread of pid {os.getpid()} does not come back to Python: it is "
                "blocked in native code, perhaps in a collective that another rank never joined",
            )
        raise RefusalError(NO_STEPS, f"no optimizer step was seen in {timeout_s:g} s")

    def go(self, request: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
        """Record one window and write its trace; answers when the file is whole."""
        require_torch()
        start = read_start(request.get("start"), request.get("stride"), self._clock.interval_ns())
        options = read_options(request.get("options"))
        metadata = request.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise RefusalError(BAD_REQUEST, "metadata must be an object")
        by_time = "seconds" in request
        if by_time == ("steps" in request) or (by_time and start.clock != UNIX):
            raise RefusalError(BAD_REQUEST, "give steps, or seconds with a start in unix_ns")
        num_steps = int(number_of(request, "steps", 1, 1, MAX_STEPS))
        seconds = number_of(request, "seconds", 1.0, 0.001, MAX_SECONDS)
        timeout_s = number_of(request, "timeout_s", 600.0, 0.0, MAX_SECONDS)
        window = self.window
        if by_time and window is None:
            window = self.window = Window(self._clock, self._wake)
            try:
                window.arm()
            except RefusalError:
                self.disarm()
                raise
        if window is None or window.state != ARMED:
            error = None if window is None else window.error
            self.disarm()
            raise error or RefusalError(BAD_REQUEST, "arm before go")
        output = self._output = Output(request.get("trace"))
        check = None
        try:
            check = self._check = _check_beside(output, request.get("check_sync"))
            profile = _made(options, metadata)
            if by_time:
                end = time.monotonic() + timeout_s
                sleep = self._sleeper(window, conversation, end)
                window.record_for(profile, start.value, seconds, sleep, check)
            else:
                # Raises start-missed and stays armed: the controller tries a later start.
                window.go(start, num_steps, lambda: profile, check)
                self._wait_until_over(window, conversation, timeout_s)
            reply = self._publish(window, output, profile, start, seconds if by_time else None)
            return reply if check is None else {**reply, "check_sync": check.finish()}
        finally:
            output.discard()
            if by_time or window.state != ARMED:
                self.disarm()
            if check is not None:
                check.close()  # last: nothing starts it any more

    def _sleeper(
        self, window: Window, conversation: Conversation, end: float
    ) -> Callable[[float], bool]:
        def sleep(seconds: float) -> bool:
            left_s = min(seconds, end - time.monotonic())
            conversation.wait(lambda: self._ended(window, conversation), left_s)
            if window.state != OVER and time.monotonic() >= end:
                window.abort(ABORTED, "the window was not over in the time allowed")
            return window.state != OVER

        return sleep

    def _wait_until_over(
        self, window: Window, conversation: Conversation, timeout_s: float
    ) -> None:
        if conversation.wait(lambda: self._ended(window, conversation), timeout_s):
            return
        if window.state in (PREPARED, RECORDING):
            window.abort(ABORTED, f"the window was not over in {timeout_s:g} s: steps stopped")
        else:
            window.abort(NO_STEPS, f"its start was not reached in {timeout_s:g} s")

    @staticmethod
    def _ended(window: Window, conversation: Conversation) -> bool:
        if window.state != OVER and conversation.interrupted_by("cancel"):
            window.abort(ABORTED, "the recording was cancelled")
        return window.state == OVER

    def _publish(
        self,
        window: Window,
        output: Output,
        profile: Profile,
        start: Start,
        seconds: float | None,
    ) -> dict[str, Any]:
        size = window.export(output)
        marks = window.marks
        if seconds is not None:
            marks = [
                mark
                for mark in self._clock.marks()
                if window.started_unix_ns <= mark.unix_ns <= window.ended_unix_ns
            ]
        self._last_step = marks[-1].step if marks else self._clock.step
        return {
            "trace": output.path,
            "bytes": size,
            "marks": lists(marks),
            "clock": start.clock,
            "started_unix_ns": window.started_unix_ns,
            "ended_unix_ns": window.ended_unix_ns,
            "ignored": profile.ignored,
            **window.durations,
        }

    def after(self, request: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
        """The boundaries after the last window: what it left behind shows there."""
        need = int(number_of(request, "marks", 5, 1, _MOST_AFTER))
        timeout_s = number_of(request, "timeout_s", 20.0, 0.0, MAX_SECONDS)
        goal = self._last_step + need
        self._clock.listener = lambda mark: self._wake() if mark.step >= goal else None
        try:
            conversation.wait(lambda: self._clock.step >= goal, timeout_s)
        finally:
            self._clock.listener = None
        return {"marks": lists(self._clock.marks(self._last_step)[:need])}

    def trace_execution(
        self, request: dict[str, Any], conversation: Conversation
    ) -> dict[str, Any]:
        """One execution trace, in a window of its own."""
        require_torch()
        num_steps = int(number_of(request, "steps", 1, 1, 100))
        timeout_s = number_of(request, "timeout_s", 120.0, 0.0, MAX_SECONDS)
        if self.window is not None:
            raise RefusalError(BUSY, "a window is armed; an execution trace needs its own")
        if not self._hook.install(timeout_s):
            self._raise_no_steps(False, timeout_s)
        output = self._output = Output(request.get("path"))
        try:
            trace = self._execution_trace = ExecutionTrace(
                self._clock, output, num_steps, self._wake
            )
            conversation.wait(lambda: trace.over, timeout_s)
            self._execution_trace = None
            trace.close()
            if trace.error is not None:
                raise trace.error
            return {"path": output.path, "bytes": output.finish(), "marks": lists(trace.marks)}
        finally:
            output.discard()
            self.disarm()


def _check_beside(output: Output, path: Any) -> SyncCheck | None:
    """What ``check_sync`` asks for: its file lies beside the trace, wherever that may lie."""
    if path is None:
        return None
    if not isinstance(path, str) or os.path.dirname(path) != os.path.dirname(output.path):
        raise RefusalError(BAD_REQUEST, "check_sync names a file in the folder of the trace")
    return SyncCheck(path)


def _made(options: dict[str, bool], metadata: dict[str, Any]) -> Profile:
    try:
        return Profile(options, metadata)
    except RefusalError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:200]
        raise RefusalError(
            INTERNAL, f"torch made no profile: {type(error).__name__}: {text}"
        ) from None


def lists(marks: list[Mark]) -> list[list[int | None]]:
    """Marks as JSON has them."""
    return [list(mark) for mark in marks]
