"""Record now: ``diagnose attach`` on this machine's job, into the first folder given."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import UsageError

_MOST_LINES = 200
MOST_STEPS = 50
_LET_GO_S = 20.0
"""The command lets the job go before it ends."""


@dataclass
class Attempt:
    """One recording on its way: what the command said, and how it ended."""

    folder: Path
    process: subprocess.Popen[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))
    heard: threading.Event = field(default_factory=threading.Event)
    """Set once all that it said is in ``lines``."""

    @property
    def status(self) -> int | None:
        """The exit status; None while it records."""
        return self.process.poll()

    @property
    def recorded(self) -> bool:
        return self.status == 0 and (self.folder / "recording.json").exists()


class Recorder:
    """Starts ``diagnose attach`` for the dashboard, one at a time.

    ``folder`` gets the recordings. ``command`` is what is run, without
    options; a test gives another.
    """

    def __init__(self, folder: Path, command: Sequence[str] | None = None) -> None:
        self.folder = folder
        self._command = tuple(command or (sys.executable, "-m", "diagnose", "attach"))
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None

    @property
    def attempt(self) -> Attempt | None:
        """The last one, if there was any."""
        return self._attempt

    def start(self, steps: int) -> Attempt:
        """Begin to record so many steps. UsageError for a bad number or while one records."""
        if not 1 <= steps <= MOST_STEPS:
            raise UsageError(
                f"{steps} steps cannot be recorded from here.", hint=f"1 to {MOST_STEPS} can."
            )
        with self._lock:
            if self._attempt is not None and self._attempt.status is None:
                raise UsageError("A recording is on its way.", hint="Wait until it has ended.")
            folder = self._free()
            process = subprocess.Popen(
                [*self._command, "--steps", str(steps), "--no-report", "-o", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C in the server's terminal ends the recording as well, as it does by hand.
            )
            self._attempt = Attempt(folder, process)
        threading.Thread(target=_listen, args=(self._attempt,), daemon=True).start()
        return self._attempt

    def close(self) -> None:
        """End what still records, and let the job go: the server ends."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.status is None:
            attempt.process.terminate()
            try:
                attempt.process.wait(timeout=_LET_GO_S)
            except subprocess.TimeoutExpired:
                attempt.process.kill()
                attempt.process.wait()
        # Something that it started may hold the pipe open: it is not waited for.
        attempt.heard.wait(timeout=1.0)

    def _free(self) -> Path:
        name = time.strftime("recording-%Y%m%d-%H%M%S")
        candidate, number = self.folder / name, 1
        while candidate.exists():
            number += 1
            candidate = self.folder / f"{name}-{number}"
        return candidate


def _listen(attempt: Attempt) -> None:
    assert attempt.process.stdout is not None
    with attempt.process.stdout as said:
        for line in said:
            attempt.lines.append(line.rstrip("\n"))
    attempt.process.wait()
    attempt.heard.set()
