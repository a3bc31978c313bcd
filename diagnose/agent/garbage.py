"""Python's garbage collections as spans of the profile: no profiler shows them by itself."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import Any

NAME = "Python garbage collection"
"""How the spans are named in a trace."""
LEAST_GENERATION = 1
"""Collections of the youngest objects alone take microseconds, and come all the time."""


class Collections:
    """While watched, each collection but the smallest is recorded on the thread that makes it.

    Python runs one collection at a time, so one span is open at most.
    """

    def __init__(self) -> None:
        self._kind: Any = None
        self._span: Any = None
        self._pid = os.getpid()

    def watch(self) -> None:
        """From now on, where this torch can record a span without Python's help (2.1)."""
        with suppress(Exception):
            self._kind = getattr(sys.modules["torch"]._C._profiler, "_RecordFunctionFast", None)
            if self._kind is not None and self._noticed not in gc.callbacks:
                gc.callbacks.append(self._noticed)

    def leave(self) -> None:
        """No more."""
        with suppress(ValueError):
            gc.callbacks.remove(self._noticed)

    def _noticed(self, phase: str, info: dict[str, int]) -> None:
        # Whatever is raised here is printed into the job's log.
        with suppress(Exception):
            if phase == "stop":
                span, self._span = self._span, None
                if span is not None:
                    span.__exit__(None, None, None)
            elif info["generation"] >= LEAST_GENERATION and os.getpid() == self._pid:
                span = self._kind(NAME)
                span.__enter__()
                self._span = span
