"""Watch the steps of a job's ranks, and record a window whenever a trigger says so.

The agents of the job are asked for their step boundaries about once a second, over a
connection that is closed again, so that ``diagnose attach`` finds them free. A trigger
sees the steps of one rank: ranks that train together step together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.attach.channel import Channel
from diagnose.attach.discovery.processes import Process
from diagnose.attach.launching.flight_recorder import StepLog, StepRow
from diagnose.attach.launching.retention import Windows
from diagnose.attach.launching.triggers import Due, Interval, Trigger
from diagnose.errors import AttachError, RecordingError

POLL_S = 1.0
_SEARCH_S = 5.0
_ASK_S = 2.0


Recorder = Callable[[Sequence[int], Path, "int | None"], None]
"""Records a window: pids, folder, the step to begin at (None: now). Raises RecordingError."""


@dataclass
class _Rank:
    process: Process
    rank: int
    step: int = 0
    unix_ns: int | None = None


@dataclass
class Seen:
    """What the watch has come across, for a summary at the end."""

    ranks: set[int] = field(default_factory=set)
    steps: int = 0
    windows: list[Path] = field(default_factory=list)
    removed: int = 0
    problems: list[str] = field(default_factory=list)


class Watch:
    """Polls in a thread of its own from ``start`` until ``stop``. Errors end up in ``seen``."""

    def __init__(
        self,
        find: Callable[[], Iterable[Process]],
        triggers: Sequence[Trigger],
        record: Recorder,
        windows: Windows,
        log: StepLog | None,
        *,
        each_poll: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
        poll_s: float = POLL_S,
    ) -> None:
        self.seen = Seen()
        self._find = find
        self._triggers = triggers
        self._record = record
        self._windows = windows
        self._log = log
        self._each_poll = each_poll
        self._say = say
        self._poll_s = poll_s
        self._ranks: dict[int, _Rank] = {}
        self._searched = self._found = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diagnose-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self, patience_s: float = 30.0) -> None:
        """End the watch; a window that is being recorded may end first."""
        self._stop.set()
        self._thread.join(patience_s)

    def _run(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self.poll()
            except Exception as error:  # noqa: BLE001 - a defect here must not end the run
                self._problem(f"watching failed ({type(error).__name__}: {error})")

    def poll(self) -> None:
        """Ask all ranks once, write down their steps, and record what is due."""
        self._each_poll()
        self._search()
        intervals = self._new_intervals()
        # Each trigger has to see all steps, also when another one has decided already.
        due = [answer for t in self._triggers if (answer := t.observe(intervals)) is not None]
        if due:
            self._take(due[0])

    def _new_intervals(self) -> list[Interval]:
        """Ask every rank, write its steps down, and return those of the lowest rank."""
        first: list[StepRow] = []
        rows: list[StepRow] = []
        for number, rank in enumerate(sorted(self._ranks.values(), key=lambda r: r.rank)):
            new = self._ask(rank)
            rows += new
            if number == 0:
                first = new
        if self._log is not None:
            self._log.write(rows)
        if first:
            self.seen.steps = first[-1].step
        return [Interval(r.step, r.interval_ns) for r in first if r.interval_ns is not None]

    def _search(self) -> None:
        now = time.monotonic()
        # Ranks come up one after another; later only restarts bring new ones.
        if now - self._found > _SEARCH_S and now - self._searched < _SEARCH_S and self._ranks:
            return
        self._searched = now
        for process in self._find():
            if process.pid in self._ranks:
                continue
            status = _asked(process, "status")
            if status is None:
                continue
            number = status.get("rank")
            rank = number if isinstance(number, int) else 0
            # Marks from before are not waited for: the ring still has them.
            self._ranks[process.pid] = _Rank(process, rank)
            self.seen.ranks.add(rank)
            self._found = now

    def _ask(self, rank: _Rank) -> list[StepRow]:
        reply = _asked(rank.process, "steps", since=rank.step)
        if reply is None:
            if not rank.process.exists:
                del self._ranks[rank.process.pid]
            return []
        rows = []
        for step, unix_ns in _boundaries(reply.get("marks")):
            if step <= rank.step:
                continue
            follows = rank.unix_ns is not None and step == rank.step + 1
            before = rank.unix_ns if follows and rank.unix_ns is not None else None
            interval = None if before is None or before > unix_ns else unix_ns - before
            rows.append(StepRow(unix_ns, rank.rank, step, interval))
            rank.step, rank.unix_ns = step, unix_ns
        return rows

    def _take(self, due: Due) -> None:
        refusal = self._windows.refusal()
        if refusal is not None:
            self._problem(f"no window at {due.reason}: {refusal}")
            return
        folder = self._windows.next(due.at_step)
        self._say(f"recording a window: {due.reason}")
        begun = self.seen.steps
        try:
            self._record(sorted(self._ranks), folder, due.at_step)
        except RecordingError as error:
            self._problem(f"the window at {due.reason} was not recorded: {error}")
            return
        finally:
            # Steps around the window, its export too, are not the job's own.
            self._new_intervals()
            for trigger in self._triggers:
                trigger.recorded(begun, self.seen.steps)
        removed = self._windows.keep(folder)
        self.seen.windows.append(folder)
        self.seen.removed += len(removed)
        self._say(f"recorded {folder}")

    def _problem(self, sentence: str) -> None:
        if sentence not in self.seen.problems and len(self.seen.problems) < 100:
            self.seen.problems.append(sentence)
            self._say(sentence)


def _asked(process: Process, op: str, **fields: Any) -> dict[str, Any] | None:
    """An agent's answer; None without an agent, or while it serves somebody else."""
    try:
        channel = Channel.find(process)
        if channel is None:
            return None
        try:
            return channel.ask(op, timeout_s=_ASK_S, **fields)
        finally:
            channel.close()
    except AttachError:
        return None


def _boundaries(marks: Any) -> list[tuple[int, int]]:
    """Step and time of each well-formed mark ``[step, seq, unix_ns]``, by step."""
    if not isinstance(marks, list):
        return []
    found = [
        (mark[0], mark[2])
        for mark in marks
        if isinstance(mark, list) and len(mark) == 3
        if isinstance(mark[0], int) and isinstance(mark[2], int)
    ]
    return sorted(found)
