"""One window: armed, told where to start, prepared a step early, recorded, stopped.

::

    armed ──go──► waiting ──near──► prepared ──next boundary──► recording ──n more──► over
      └──────────────────────────── abort, at any moment ────────────────────────────► over

All but ``go`` and ``abort`` happens in ``boundary``, behind the optimizer step of the training
thread. ``abort`` may come from the agent's thread (the controller has gone) or from the thread
that starts a profiler of the job's own. Whatever goes wrong ends the window, never the job.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from .cuda_state import CaptureWatch, is_capturing, on_device
from .foreign_profiler import Guard, working
from .profiler import Output, Profile
from .protocol import (
    ABORTED,
    INTERNAL,
    JOB_PROFILER,
    NO_STEPS,
    PROFILER_BUSY,
    START_MISSED,
    RefusalError,
)
from .start import Start
from .steps import Mark, StepClock
from .sync_check import SyncCheck

ARMED, WAITING, PREPARED, RECORDING, OVER = "armed", "waiting", "prepared", "recording", "over"


_CAPTURE_POLL_S = 0.01


class Window:
    """A window of one process. ``wake`` is called, on any thread, when there is news."""

    def __init__(self, clock: StepClock, wake: Callable[[], None]) -> None:
        self.state = ARMED
        self.error: RefusalError | None = None
        self.durations: dict[str, int] = {}
        self.marks: list[Mark] = []
        self.started_unix_ns = 0
        self.ended_unix_ns = 0
        self.num_seen = 0
        self._clock = clock
        self._wake = wake
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._guard = Guard(self._is_ours, self._foreign_profiler)
        self._captures = CaptureWatch(self._lock, self._captured)
        self._profile: Profile | None = None
        self._make: Callable[[], Profile] | None = None
        self._check: SyncCheck | None = None
        self._range: Any = None
        self._start: Start | None = None
        self._num_steps = 0
        self._first_numbers: dict[str, int] = {}
        self._abort_wanted: RefusalError | None = None

    # ---- on the thread of the controller ----

    def arm(self) -> None:
        """Watch the steps, and out for other profilers.

        Raises RefusalError with ``profiler-busy`` if the job's own profiler is at work.
        """
        self._clock.sequence.reset()
        self._guard.install()  # before looking: a profiler that starts in between is noticed
        self._captures.install()
        reason = working()
        if reason is not None:
            self._detach()
            self.state = OVER
            raise RefusalError(PROFILER_BUSY, f"{reason}; it goes first, try again later")
        with self._lock:
            if self.state == ARMED:  # a profiler may have started meanwhile
                self._clock.listener = self.boundary

    def go(
        self,
        start: Start,
        num_steps: int,
        make: Callable[[], Profile],
        check: SyncCheck | None = None,
    ) -> None:
        """Record ``num_steps`` steps from ``start`` on, with a profile made when it is near.

        ``check`` is started and stopped with the profile, and closed by the caller.
        Raises RefusalError with ``start-missed`` if that is past already (the window stays
        armed), or with the reason why it is over.
        """
        with self._lock:
            if self.error is not None:
                raise self.error
            if self.state != ARMED:
                raise RefusalError(INTERNAL, f"the window is {self.state}, not armed")
            last = self._clock.marks(most=1)
            reason = start.missed(last[0] if last else None)
            if reason is not None:
                raise RefusalError(START_MISSED, reason)
            self._start, self._num_steps, self._make = start, num_steps, make
            self._check = check
            self.state = WAITING

    def record_for(
        self,
        profile: Profile,
        start_unix_ns: int,
        seconds: float,
        sleep: Callable[[float], bool],
        check: SyncCheck | None = None,
    ) -> None:
        """Record a span of time from the caller's thread, for a process that never steps.

        ``sleep(seconds)`` answers False when the window was ended meanwhile.
        """
        if not profile.all_threads:
            raise RefusalError(
                NO_STEPS,
                "no optimizer step was seen, and this torch cannot record other threads than "
                "its own (profile_all_threads is missing)",
            )
        with self._lock:
            if self.error is not None:
                raise self.error
            self._profile, self._check = profile, check
            self.state = WAITING
        lead_s = 0.5  # preparing takes up to some hundred milliseconds the first time
        if not sleep((start_unix_ns - time.time_ns()) / 1e9 - lead_s):
            return
        if not self._step_alone(WAITING, self._prepare, sleep):
            return
        if not sleep((start_unix_ns - time.time_ns()) / 1e9):
            return
        if self._step_alone(PREPARED, self._begin, sleep) and sleep(seconds):
            self._step_alone(RECORDING, self._finish, sleep)

    def _step_alone(
        self, state: str, action: Callable[[], None], sleep: Callable[[float], bool]
    ) -> bool:
        while True:
            with self._lock:
                if self.state != state:
                    return False
                if not self._captures.underway:
                    with self._device():
                        self._protected(action)
                    return self.state != OVER
            if not sleep(_CAPTURE_POLL_S):
                return False

    def export(self, output: Output) -> int:
        """Write the trace of a window that is over; its size. Raises RefusalError."""
        if self.error is not None:
            raise self.error
        if self._profile is None or self.state != OVER:
            raise RefusalError(INTERNAL, "there is no recorded window")
        began = time.perf_counter_ns()
        size = self._profile.export(output)
        self.durations["export_ns"] = time.perf_counter_ns() - began
        return size

    def release(self) -> None:
        """Free what the profile holds; only once the window is over."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.release()

    # ---- on any thread ----

    def abort(self, code: str, sentence: str) -> None:
        """End the window now; harmless if it is over.

        A profile of one thread only can be stopped by no other thread, and none while a CUDA
        graph is captured: it then ends at the next boundary, and ``state`` says so.
        """
        if os.getpid() != self._pid:
            return  # a fork of the process, in which a thread that is not there may hold the lock
        with self._lock:
            if self.state == OVER:
                return
            reason = RefusalError(code, sentence)
            profile = self._profile
            recording = self.state in (PREPARED, RECORDING)
            elsewhere = threading.get_ident() != self._clock.training_thread
            only_there = self._captures.underway or (profile and not profile.all_threads)
            if recording and elsewhere and only_there:
                self._abort_wanted = reason
                return
            self._end(reason)

    def _end(self, reason: RefusalError) -> None:
        state, self.state = self.state, OVER
        self.error = reason
        self._detach()
        # Nested, because an interrupt of the job may come in any of them: all must happen.
        try:
            if self._profile is not None:
                with self._device():
                    _stop(self._profile, self._check, state)
        finally:
            try:
                self._close_range()
            finally:
                self._wake()

    def _detach(self) -> None:
        # == and not `is`: a bound method is a new object each time.
        if self._clock.listener == self.boundary:
            self._clock.listener = None
        self._guard.remove()
        self._captures.remove()

    def _device(self) -> AbstractContextManager[None]:
        """The job's GPU, on a thread that CUDA would give another."""
        if threading.get_ident() == self._clock.training_thread:
            return nullcontext()
        return on_device(self._clock.cuda_device)

    def _captured(self) -> None:
        """No graph is captured any more: what had to wait for that happens now."""
        with self._lock:
            profile, reason = self._profile, self._abort_wanted
            if self.state == OVER or reason is None or profile is None:
                return
            if profile.all_threads:
                self._end(reason)

    def _is_ours(self, session: Any) -> bool:
        profile = self._profile
        return profile is not None and profile.is_session(session)

    def _foreign_profiler(self) -> None:
        self.abort(JOB_PROFILER, "the job started its own profiler, which goes first")

    # ---- on the training thread ----

    def boundary(self, mark: Mark) -> None:
        """A step has ended."""
        if os.getpid() != self._pid:
            return  # a fork of the process: neither the window nor the profile is its own
        try:
            with self._lock:
                self._protected(lambda: self._advance(mark))
        except BaseException:
            # Not ours: Control-C, or what a signal handler of the job raises. It goes on its way.
            self.abort(ABORTED, "the job was interrupted")
            raise

    def _protected(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            text = (str(error).splitlines() or [""])[0][:200]
            self._end(RefusalError(INTERNAL, f"{type(error).__name__}: {text}"))

    def _advance(self, mark: Mark) -> None:
        if self.state != ARMED and is_capturing():
            self._put_off(mark)
            return
        if self._abort_wanted is not None:
            self._end(self._abort_wanted)
            return
        if self.state == ARMED and self.num_seen < 2:
            self._watch_sequence()
        elif self.state == WAITING and self._start is not None:
            if self._start.near(mark):
                self._prepare()
        elif self.state in (PREPARED, RECORDING) and self._num_steps:
            self._record(mark)
        self.num_seen += 1
        if self.state == ARMED:
            self._wake()

    def _put_off(self, mark: Mark) -> None:
        """This step is being captured into a CUDA graph, which to start or stop would break."""
        sentence = "the job captures a CUDA graph around an optimizer step; try again later"
        reason = RefusalError(ABORTED, sentence)
        if self.state != WAITING:
            self._abort_wanted = self._abort_wanted or reason
        elif self._start is not None and self._start.near(mark):
            self._end(reason)

    def _record(self, mark: Mark) -> None:
        self._close_range()
        if self.state == PREPARED:
            self._begin()
        self.marks.append(mark)
        if len(self.marks) > self._num_steps:
            self._finish()
            return
        # Numbered within the window: the same on every rank, whenever its agent came in.
        name = f"ProfilerStep#{len(self.marks) - 1}"
        self._range = sys.modules["torch.autograd.profiler"].record_function(name)
        self._range.__enter__()

    def _prepare(self) -> None:
        began = time.perf_counter_ns()
        if self._profile is None and self._make is not None:
            self._profile = self._make()
        profile = self._required()
        self.state = PREPARED
        profile.prepare()
        self.durations["prepare_ns"] = time.perf_counter_ns() - began

    def _begin(self) -> None:
        profile = self._required()
        began = time.perf_counter_ns()
        profile.start()
        self.state = RECORDING
        if self._check is not None:
            self._check.start()
        self.durations["start_ns"] = time.perf_counter_ns() - began
        self.started_unix_ns = time.time_ns()

    def _finish(self) -> None:
        profile = self._required()
        self.ended_unix_ns = time.time_ns()
        with suppress(Exception):
            profile.add_metadata("diagnose_marks", [list(mark) for mark in self.marks])
        began = time.perf_counter_ns()
        if self._check is not None:
            self._check.stop(tell_apart=not self._captures.underway)
        profile.stop()
        self.durations["stop_ns"] = time.perf_counter_ns() - began
        self.state = OVER
        self._detach()
        self._wake()

    def _required(self) -> Profile:
        if self._profile is None:
            raise RuntimeError("no profile")
        return self._profile

    def _close_range(self) -> None:
        span, self._range = self._range, None
        if span is not None:
            with suppress(Exception):
                span.__exit__(None, None, None)

    def _watch_sequence(self) -> None:
        """At the first two boundaries find the process group that moves, if not the default."""
        sequence = self._clock.sequence
        numbers = sequence.read_all()
        if self.num_seen == 0:
            self._first_numbers = numbers
        elif sequence.choose(self._first_numbers, numbers):
            ring = self._clock.ring
            for place, values in ((-2, self._first_numbers), (-1, numbers)):
                step, _, unix_ns = ring[place]
                ring[place] = (step, values.get(sequence.group or ""), unix_ns)


def _stop(profile: Profile, check: SyncCheck | None, state: str) -> None:
    try:
        if check is not None:
            check.stop(tell_apart=False)
        if state == PREPARED:
            with suppress(Exception):
                profile.start()  # what was prepared ends only this way
    finally:
        if state in (PREPARED, RECORDING):
            with suppress(Exception):
                profile.stop()
