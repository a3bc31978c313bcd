"""Runs one command and measures what it cost: CPU, wall clock, peak memory."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.02
_MEMORY = re.compile(r"^Vm(RSS|HWM):\s*(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """CPU is user and system time of the process and every descendant it waited for.

    The peak is the larger of two, sampled every 20 ms: the high-water mark of the largest
    process, and the sum of resident memory over all processes alive at one time. Pages
    that forked processes share count once for each of them. (``ru_maxrss`` would not do:
    it starts with the memory of the process that forked.)
    """

    cpu_s: float
    wall_s: float
    peak_mib: float
    output: str


class CommandFailedError(Exception):
    """The command did not end with exit status 0 in time."""


def _family(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        with suppress(OSError):  # ended between the listing and the reading
            for task in Path(f"/proc/{current}/task").iterdir():
                with suppress(OSError):
                    todo += [int(child) for child in (task / "children").read_text().split()]
    return found


def _memory_kib(pid: int) -> int:
    total = highest = 0
    for member in _family(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        found = {name: int(value) for name, value in _MEMORY.findall(status)}
        total += found.get("RSS", 0)
        highest = max(highest, found.get("HWM", 0))
    return max(total, highest)


def measure(command: Sequence[str], *, timeout_s: float) -> Cost:
    """Run ``command`` to its end and return what it cost and what it printed.

    Raises CommandFailedError with the last line of its error output.
    """
    peak, done, late = 0, threading.Event(), False
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )

        def watch() -> None:
            nonlocal peak, late
            while not done.wait(SAMPLE_S):
                peak = max(peak, _memory_kib(process.pid))
                if time.perf_counter() - begin > timeout_s and not late:
                    late = True
                    os.killpg(process.pid, 9)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
        done.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if late or process.returncode != 0:
            lines = errors.read().decode(errors="replace").strip().splitlines()
            reason = (
                f"took more than {timeout_s:.0f} s"
                if late
                else (lines or [f"exit status {process.returncode} and no message"])[-1]
            )
            raise CommandFailedError(f"{' '.join(command[:4])} ...: {reason}")
        return Cost(
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_mib=peak / 1024,
            output=output.read().decode(errors="replace"),
        )
