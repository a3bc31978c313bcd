"""What shows missing synchronisation, recorded beside a profile of the same steps.

An execution trace, which says what memory each operator reads and writes, and annotations in
the profile, which say what event each stream waits for. Both are companions of the window:
whatever goes wrong with them is said in its reply and costs nothing else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from .event_annotations import EventAnnotations
from .execution_trace import Observer
from .profiler import Output
from .protocol import RefusalError


class SyncCheck:
    """Started right behind a profile, stopped right before it. Its methods never raise.

    ``path``: file of the execution trace; where there is no place for it, events alone are kept.
    """

    def __init__(self, path: str) -> None:
        self._output: Output | None = None
        self._observer: Observer | None = None
        self._events = EventAnnotations()
        self._error = "the window did not begin"
        self._running = False
        self._closed = False
        self._pid = os.getpid()
        try:
            self._output = Output(path)
        except Exception as error:
            self._error = _sentence(error)

    def start(self) -> None:
        """From now on; the profile records already."""
        if self._closed:
            return
        self._running = True
        if self._output is not None:
            self._error = ""
            try:
                self._observer = Observer(self._output.unfinished)
                self._observer.register()
                self._observer.start()
            except Exception as error:
                self._error = _sentence(error)
        self._events.start()

    def stop(self, *, tell_apart: bool = True) -> None:
        """Until now; the profile records still. On any thread.

        ``tell_apart``: whether the GPU may be asked to tell which stream has which handle.
        """
        if not self._running:
            return
        try:
            with suppress(Exception):
                self._events.stop(tell_apart=tell_apart)
        finally:
            if self._observer is not None:
                self._observer.stop()
        self._running = False  # not where an interrupt came in between: once more then

    def finish(self) -> dict[str, Any]:
        """Write the end of the execution trace; what the reply says of it. After ``stop``.

        ``path`` and ``bytes``, or ``error``; ``events_annotated`` and, if not, the ``reason``.
        """
        said: dict[str, Any] = {
            "events_annotated": self._events.available,
            "reason": self._events.reason,
        }
        observer = self._observer
        self._leave()
        if observer is not None and observer.taken:
            self._error = "the job made an execution trace observer itself, which goes first"
        try:
            if self._output is not None and not self._error:
                return {"path": self._output.path, "bytes": self._output.finish(), **said}
        except Exception as error:
            self._error = _sentence(error)
        self._discard()
        return {"error": self._error, **said}

    @property
    def open(self) -> bool:
        """Whether the file is not whole yet, and not given up either."""
        return self._output is not None and self._output.open

    def close(self) -> None:
        """Leave nothing behind in the process, and no file unless it was finished."""
        self._closed = True
        self.stop(tell_apart=False)
        self._leave()
        self._discard()

    def _discard(self) -> None:
        if self._output is not None and os.getpid() == self._pid:  # else the file is the parent's
            self._output.discard()

    def _leave(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()


def _sentence(error: Exception) -> str:
    if isinstance(error, RefusalError):
        return error.sentence
    text = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {text}"
