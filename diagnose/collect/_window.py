"""One window of one job, from its agents to the files of the recording's folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose import __version__
from diagnose.attach import observer
from diagnose.attach.session import Member, Session, Taken, Wanted
from diagnose.collect._checks import Checks
from diagnose.collect._compress import compress_all
from diagnose.collect._delivery import Delivery, Sent, delivery
from diagnose.collect._folder import RecordingFolder
from diagnose.collect._sensors import Sensors
from diagnose.errors import RecordingError, WindowLostError
from diagnose.manifest import LEAST_INTERVALS, RankFiles, RecordingNote, StepTimes

AFTER_INTERVALS = 20
"""In the first of them a host that runs ahead catches up; the later half is taken."""
AFTER_LIMIT_S = 20.0


@dataclass(frozen=True)
class Options:
    """What is recorded beside kernels, launches and ops; each costs time in the window."""

    shapes: bool = True
    stacks: bool = False
    memory: bool = False
    execution_trace: bool = False
    telemetry: bool = True
    check_sync: bool = False
    """An execution trace and events of the same steps, and Python stacks whatever ``stacks`` is."""

    def for_agent(self) -> dict[str, bool]:
        """As the agents' protocol names them."""
        return {
            "shapes": self.shapes,
            "stacks": self.stacks or self.check_sync,
            "memory": self.memory,
            "sync_events": True,
            "all_threads": True,
            "modules": False,
        }


@dataclass
class Files:
    """What came of a window: the ranks that have files, and what is to be said."""

    ranks: list[RankFiles] = field(default_factory=list)
    taken: Taken | None = None
    started_unix_ns: int | None = None
    notes: list[RecordingNote] = field(default_factory=list)
    failures: dict[str, RecordingError] = field(default_factory=dict)
    """By whom each is about."""
    world_size: int | None = None
    rescue: Callable[[], None] | None = None
    """Enters the ranks whose traces are whole, after the recording was stopped late."""


class WindowRecorder:
    """Records one window with the agents of a session."""

    def __init__(
        self,
        session: Session,
        folder: RecordingFolder,
        options: Options,
        say: Callable[[str], None],
    ) -> None:
        self._session = session
        self._folder = folder
        self._options = options
        self._say = say
        self._deliveries: dict[Member, Delivery] = {}
        self._traces: dict[Member, Path] = {}
        self._environments: dict[Member, dict[str, Any]] = {}
        self._step_times: dict[Member, StepTimes] = {}
        self._execution_trace: tuple[Member, Path] | None = None
        self._checks = Checks(folder, wanted=options.check_sync)
        self._sensors = Sensors(wanted=options.telemetry)

    def record(self, wanted: Wanted, files: Files) -> None:
        """Record, and write everything but the manifest. Raises RecordingError if nothing came.

        What came is entered in ``files``, also when it raises.
        """
        files.rescue = lambda: self._rescue(files)
        try:
            self._session.status()
            number_ranks(self._session.active, files.notes)
            self._sensors.start(
                {m: self._folder.file(_rank(m), "telemetry.csv") for m in self._session.active},
                files.notes,
            )
            files.taken = self._session.record(
                wanted,
                self._trace_of,
                options=self._options.for_agent(),
                metadata={"tool": f"torch-diagnose {__version__}"},
                check_of=self._checks.asked,
            )
            ended_s = time.monotonic()  # a profiler stops once the GPU has done its work
            self._look_around(files.taken)
            self._fetch(files.taken)
            self._checks.fetch(self._traces, files.taken.replies)
            if self._options.execution_trace and not self._options.check_sync:
                self._record_execution_trace(files)
            self._session.leave()
            self._sensors.stop_after_refresh(files.notes, ended_s)
            self._write(files)
        finally:
            self._session.leave()
            self._sensors.stop(files.notes)
            self._sensors.close()
            for way in self._deliveries.values():
                way.discard()
            self._checks.discard()

    def _trace_of(self, member: Member) -> str:
        target = self._folder.file(_rank(member), "trace.json")
        if member in self._deliveries:  # a second try: of the first one nothing may lie there
            self._deliveries[member].discard()
            target.unlink(missing_ok=True)
            return self._deliveries[member].asked
        fetch = getattr(member.channel, "fetch", None)
        if fetch is not None:
            self._deliveries[member] = Sent(fetch, target)
        elif member.process is not None:
            folder = getattr(member.channel, "folder", "")
            self._deliveries[member] = delivery(member.process, folder, target)
        return self._deliveries[member].asked

    def _look_around(self, taken: Taken) -> None:
        """Boundaries after the window, and what the processes run on."""
        members = list(taken.replies)
        if taken.start.steps is not None:
            step_s = max(taken.start.step_ns / 1e9, 0.001)
            # Of fewer than twice the least number, half would say nothing: no need to wait.
            if step_s * 2 * LEAST_INTERVALS < AFTER_LIMIT_S:
                self._say(
                    f"watching the steps after the window, {AFTER_INTERVALS} or those of "
                    f"{AFTER_LIMIT_S:g} s: at first the job catches up"
                )
                self._session.after(AFTER_INTERVALS + 1, AFTER_LIMIT_S)
            seen = self._session.marks(members)
            known = {
                member: marks
                for member, reply in taken.replies.items()
                if (marks := observer.rank_marks(seen.get(member, ()), reply)) is not None
            }
            times = observer.step_times(list(known.values()))
            self._step_times = dict(zip(known, times, strict=True))
        self._environments = self._session.environments(members)

    def _fetch(self, taken: Taken) -> None:
        for member in taken.replies:
            try:
                self._traces[member] = self._deliveries[member].arrive()
            except RecordingError as error:
                member.failure = error
        for member in set(self._deliveries) - set(self._traces):
            # Of a window that was recorded in vain, because a rank had missed its start.
            self._folder.file(_rank(member), "trace.json").unlink(missing_ok=True)
        if not self._traces:
            raise next(iter(self._session.failures.values()))

    def _record_execution_trace(self, files: Files) -> None:
        """A window of its own on the first rank: it makes steps several times slower."""
        member = min(self._traces, key=_rank)
        if member.process is None:
            files.notes.append(_note("execution-trace-missing", "not recorded over a store"))
            return
        target = self._folder.file(_rank(member), "execution_trace.json")
        way = delivery(member.process, getattr(member.channel, "folder", ""), target)
        self._say(f"recording the execution trace of one step of rank {_rank(member)}")
        try:
            member.ask("execution_trace", self._session.timeout_s, path=way.asked, steps=1)
            self._execution_trace = member, way.arrive()
        except RecordingError as error:
            files.notes.append(_note("execution-trace-missing", error.message))
        finally:
            way.discard()

    def _write(self, files: Files) -> None:
        # In the order of ranks, not in that of arrival: what an interrupt leaves is then the same.
        found = sorted(self._traces.items(), key=lambda item: item[1].name)
        plain = {m: path for m, path in found if path.suffix == ".json"}
        beside = self._checks.paths
        paths = [*plain.values(), *beside.values()]
        if paths:
            packed = compress_all(
                paths, lambda done: self._say(f"compressing traces: {done} of {len(paths)}")
            )
            self._traces |= dict(zip(plain, packed, strict=False))
            beside |= dict(zip(list(beside), packed[len(plain) :], strict=True))
        self._enter(files)

    def _rescue(self, files: Files) -> None:
        """Only what takes no time: traces stay as they are, nobody is asked anything."""
        if files.taken is None:
            raise WindowLostError("not all ranks had ended their window")
        whole = {path.name.partition(".")[0]: path for path in self._folder.whole_traces()}
        self._traces = {
            member: path
            for member in files.taken.replies
            if (path := whole.get(f"rank{_rank(member):05d}")) is not None
        }
        self._checks.find(self._traces)
        files.ranks.clear()
        self._enter(files)
        files.notes.append(
            RecordingNote(
                "recording-stopped",
                "warning",
                "the recording was stopped before it was finished: it holds what was whole by then",
            )
        )

    def _enter(self, files: Files) -> None:
        """The files of each rank that has a trace, and what goes for all."""
        for member in sorted(self._traces, key=_rank):
            files.ranks.append(self._rank_files(member))
        sizes = [s for m in self._traces if isinstance(s := m.status.get("world_size"), int)]
        files.world_size = max(sizes, default=None)
        replies = {} if files.taken is None else files.taken.replies
        began = [r.get("started_unix_ns") for r in replies.values()]
        files.started_unix_ns = min((ns for ns in began if isinstance(ns, int)), default=None)
        files.failures = {m.channel.who: e for m, e in self._session.failures.items()}
        files.notes += _ignored(replies)
        files.notes += self._checks.notes(self._traces, replies)

    def _rank_files(self, member: Member) -> RankFiles:
        rank = _rank(member)
        environment = dict(self._environments.get(member, {}))
        if described := self._sensors.describe(member):
            said = environment.get("gpu")
            environment["gpu"] = {**described, **(said if isinstance(said, dict) else {})}
        env = None
        if environment:
            env = self._folder.file(rank, "env.json")
            with open(env, "x", encoding="utf-8") as file:  # follows no link
                file.write(json.dumps(environment, indent=1) + "\n")
        telemetry = self._folder.file(rank, "telemetry.csv")
        own = self._checks.paths.get(member)
        if self._execution_trace is not None and self._execution_trace[0] is member:
            own = self._execution_trace[1]
        status = member.status
        return RankFiles(
            rank,
            self._traces[member].name,
            telemetry=telemetry.name if telemetry.is_file() else None,
            env=None if env is None else env.name,
            execution_trace=None if own is None else own.name,
            host=_text(status.get("host")),
            pid=member.pid,
            local_rank=_whole(status.get("local_rank")),
            gpu_uuid=_text(status.get("gpu_uuid")) or self._sensors.uuid(member),
            route=member.route,
            step_times=self._step_times.get(member),
        )


def number_ranks(members: Sequence[Member], notes: list[RecordingNote]) -> None:
    """Give processes without a rank one, and refuse two processes of one rank.

    The second of one rank fails: files are named by rank, and two jobs are not one.
    """
    taken: dict[int, Member] = {}
    for member in members:
        if member.rank is None:
            continue
        if member.rank in taken:
            member.failure = RecordingError(
                f"process {member.pid} is rank {member.rank}, and so is "
                f"process {taken[member.rank].pid}: they are not one job",
                hint="name the processes of one job, or choose it with --job",
            )
        else:
            taken[member.rank] = member
    nameless = [member for member in members if member.rank is None]
    free = (number for number in range(len(members) + len(taken)) if number not in taken)
    for member, number in zip(sorted(nameless, key=lambda m: m.pid), free, strict=False):
        member.rank = number
    if len(nameless) > 1 or (nameless and taken):
        pids = ", ".join(str(member.pid) for member in nameless)
        notes.append(
            RecordingNote(
                "rank-assumed",
                "warning",
                f"processes {pids} do not know a rank; they were numbered in the order of their "
                "ids, so figures over ranks may compare what does not belong together",
            )
        )


def _ignored(replies: Mapping[Member, Mapping[str, Any]]) -> list[RecordingNote]:
    names: set[str] = set()
    for reply in replies.values():
        with suppress(TypeError):
            names |= {str(name) for name in reply.get("ignored") or ()}
    if not names:
        return []
    sentence = f"this PyTorch does not know, so it was not recorded: {', '.join(sorted(names))}"
    return [RecordingNote("option-ignored", "info", sentence[:400])]


def _note(code: str, sentence: str) -> RecordingNote:
    return RecordingNote(code, "info", sentence)


def _rank(member: Member) -> int:
    assert member.rank is not None
    return member.rank


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
