"""What the verbs that record share: telling what goes on, stopping well, the final report."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from diagnose.cli._output import deliver, page_for
from diagnose.cli._report import Reading, report_text
from diagnose.errors import InputError
from diagnose.wording.plain import plain

_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")


class Narrator:
    """Says on stderr what goes on: a spinner on a terminal, else a line each.

    A context manager; call it with a text. ``keep`` prints a line that stays.
    """

    def __init__(self) -> None:
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        self._status: Any = None
        self._last = ""

    def __enter__(self) -> Narrator:
        return self

    def __call__(self, text: str) -> None:
        text = plain(text)
        if text == self._last or sys.stderr is None:
            return
        self._last = text
        if not self._shows:
            self.keep(text)
            return
        if self._status is None:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, markup=False)
            self._status = console.status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(text))

    def keep(self, text: str) -> None:
        """A line that stays."""
        if sys.stderr is None:
            return
        self.pause()
        with contextlib.suppress(OSError):
            print(plain(text), file=sys.stderr, flush=True)  # noqa: T201

    def pause(self) -> None:
        """Take the spinner away, until there is something new to say."""
        status, self._status = self._status, None
        if status is not None:
            status.stop()

    def __exit__(self, *_: object) -> None:
        self.pause()


@contextlib.contextmanager
def stoppable(say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a lost terminal end what goes on by KeyboardInterrupt, once.

    While the job is let go, a second one only says so; a third ends that too.
    Outside of the main thread signals cannot be handled, and nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal count
        count += 1
        if count == 2:
            say("letting the job go; once more to leave at once")
            return
        raise KeyboardInterrupt

    previous: dict[signal.Signals, Any] = {}
    for name in _STOPPING:
        number = signal.Signals[name]
        # Who is ignored already is meant to be: nohup, a shell's background job.
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def default_folder() -> Path:
    """A folder of its own, named after the time."""
    return Path(f"recording-{time.strftime('%Y%m%d-%H%M%S')}")


def print_report(folder: Path, say: Narrator, *, debug: bool) -> None:
    """The report of a recording just made; it is there even if it cannot be reported on."""
    from diagnose import engine

    reporter = engine.reporters()["text"]
    try:
        text = report_text([str(folder)], reporter, page_for(None), Reading(), debug=debug)
    except InputError as error:
        say.keep(f"the recording is whole, but has nothing to report on: {error.message}")
        return
    deliver(text, None)
