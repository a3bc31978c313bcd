"""A window recorded by the job's own code, for ``diagnose.record``: no thread, no socket.

::

    window = LocalWindow("/data/rank0.json", steps=3, warmup=5)
    window.start()
    for batch in loader:
        train(batch)
        window.step()          # only where no torch optimizer steps
    reply = window.finish()    # as of the protocol's go

Nothing but wrong arguments raises; what went wrong stands in the reply.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from . import environment
from .hooks import OptimizerHook
from .profiler import Output, Profile, read_options, require_torch
from .protocol import ABORTED, INTERNAL, NO_STEPS, RefusalError
from .start import STEP, Start
from .steps import Mark, StepClock
from .sync_check import SyncCheck
from .window import OVER, PREPARED, RECORDING, Window


class LocalWindow:
    """Records ``steps`` steps, after ``warmup`` and one to get ready, into the file ``trace``.

    So ``warmup + 1 + steps`` steps are needed. ``explicit``: only ``step`` ends a step; without
    it so does an optimizer, until the first ``step`` (with ``warmup`` 0 that is too late).
    ``check_sync``: file of an execution trace of the same steps; events are annotated as well.
    Raises ValueError for wrong arguments.
    """

    def __init__(
        self,
        trace: str,
        *,
        steps: int = 3,
        warmup: int = 1,
        options: dict[str, bool] | None = None,
        metadata: dict[str, Any] | None = None,
        explicit: bool = False,
        check_sync: str | None = None,
    ) -> None:
        if steps < 1 or warmup < 0:
            raise ValueError("steps must be 1 or more, warmup 0 or more")
        try:
            self._options = read_options(options)
        except RefusalError as refusal:
            raise ValueError(refusal.sentence) from None
        self._trace = trace
        self._num_steps = steps
        self._warmup = warmup
        self._metadata = metadata or {}
        self._clock = StepClock()
        self._hook = OptimizerHook(self._clock)
        self._window = Window(self._clock, lambda: None)
        self._output: Output | None = None
        self._profile: Profile | None = None
        self._refusal: RefusalError | None = None
        self._explicit = explicit
        self._check_path = check_sync
        self._check: SyncCheck | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will be recorded."""
        return self._refusal is not None or self._window.state == OVER

    @property
    def recording(self) -> bool:
        """Whether the profile is prepared or running now."""
        return self._window.state in (PREPARED, RECORDING)

    def start(self) -> None:
        """Count steps and record when it is time."""
        try:
            require_torch()
            self._output = Output(self._trace)
            if self._check_path is not None:
                self._check = SyncCheck(self._check_path)
            self._window.arm()
            if not self._explicit:
                self._hook.install(5.0)
            start = Start(STEP, self._warmup + 2, 1)
            self._window.go(start, self._num_steps, self._make_profile, self._check)
            self._clock.mark()  # the first step begins here
        except RefusalError as refusal:
            self._refuse(refusal)
        except Exception as error:
            self._refuse(RefusalError(INTERNAL, f"{type(error).__name__}: {error}"))

    def _make_profile(self) -> Profile:
        self._profile = Profile(self._options, self._metadata)
        return self._profile

    def step(self) -> None:
        """A step ends here. From the first call on, optimizer steps are not counted."""
        with suppress(Exception):
            if not self._explicit:
                self._explicit = True
                self._hook.remove(5.0)
                if self._clock.step > 1 and self._window.state != RECORDING:
                    # The optimizer has ended this step already: here is its real end.
                    self._clock.step -= 1
                    self._clock.ring.pop()
            self._clock.mark()

    def marks(self) -> list[Mark]:
        """The start and all boundaries seen, before, in and after the window."""
        return self._clock.marks()

    def finish(self) -> dict[str, Any]:
        """End the window, write the trace; the reply, like that of ``go``. Only once."""
        try:
            if self._refusal is None:
                return self._publish()
            return self._refusal.reply()
        except RefusalError as refusal:
            return refusal.reply()
        except Exception as error:
            return RefusalError(INTERNAL, f"{type(error).__name__}: {error}").reply()
        finally:
            self._close()

    def _publish(self) -> dict[str, Any]:
        window, output = self._window, self._output
        if output is None:
            raise RefusalError(INTERNAL, "the window was not started")
        if window.state in (PREPARED, RECORDING):
            window.abort(ABORTED, "the code ended before the window did")
        elif window.state != OVER:
            wanted = f"{self._num_steps} behind the first {self._warmup + 1} were wanted"
            window.abort(NO_STEPS, f"only {self._clock.step - 1} steps were seen; {wanted}")
        size = window.export(output)
        return {
            "ok": True,
            "trace": output.path,
            "bytes": size,
            "marks": [list(mark) for mark in window.marks],
            "clock": STEP,
            "started_unix_ns": window.started_unix_ns,
            "ended_unix_ns": window.ended_unix_ns,
            "ignored": [] if self._profile is None else self._profile.ignored,
            **window.durations,
            **({} if self._check is None else {"check_sync": self._check.finish()}),
        }

    def _refuse(self, refusal: RefusalError) -> None:
        self._refusal = refusal
        self._close()

    def _close(self) -> None:
        with suppress(Exception):
            self._window.abort(ABORTED, "the recording has ended")
            self._window.release()
        with suppress(Exception):
            self._hook.remove(5.0)
        if self._check is not None:
            self._check.close()
        if self._output is not None:
            self._output.discard()

    def environment(self) -> dict[str, Any]:
        """The content of ``rankNNNNN.env.json`` of this process."""
        with suppress(Exception):
            if "torch" in sys.modules:
                self._clock.observe_thread()
            return environment.collect(self._clock.cuda_device)
        return {}
