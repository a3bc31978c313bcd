"""An execution trace (Chakra) of a few steps: on request only, it slows a step several times.

It needs a window of its own. PyTorch has one observer per process; where the job has it in
use, the request is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .profiler import Output
from .protocol import ABORTED, BUSY, INTERNAL, TORCH_MISSING, RefusalError
from .steps import Mark, StepClock


class ExecutionTrace:
    """Starts at the next step boundary, covers ``num_steps`` steps."""

    def __init__(
        self, clock: StepClock, output: Output, num_steps: int, wake: Callable[[], None]
    ) -> None:
        self.marks: list[Mark] = []
        self.over = False
        self.error: RefusalError | None = None
        self._clock = clock
        self._num_steps = num_steps
        self._wake = wake
        kind = getattr(sys.modules.get("torch.profiler"), "ExecutionTraceObserver", None)
        if kind is None:
            raise RefusalError(TORCH_MISSING, "this torch has no ExecutionTraceObserver")
        self._observer: Any = kind()
        self._observer.register_callback(output.unfinished)
        if not getattr(self._observer, "_registered", True):
            raise RefusalError(BUSY, "the job has an execution trace observer of its own")
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
        with suppress(Exception):
            self._observer.stop()
        self._wake()

    def close(self) -> None:
        """Stop if it still runs, and write the end of the file."""
        if not self.over:
            self.error = RefusalError(ABORTED, "the execution trace was ended early")
            self._end()
        with suppress(Exception):
            self._observer.unregister_callback()
        self._observer = None
