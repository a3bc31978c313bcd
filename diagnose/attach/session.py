"""One window over many agents: arm all, agree on a start, record, let go.

A rank that refuses or falls silent is left out and named in ``failures``; the
others go on. Leaving the session, however it ends, ends every window and lets
injected agents leave the job.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.agent.protocol import PROTOCOL
from diagnose.attach import align
from diagnose.attach._agreement import Agreement, Hosts, Seen, Start
from diagnose.attach._members import Member, let_go, reopened
from diagnose.attach._replies import START_MISSED, boundaries, error_of, marks_of
from diagnose.attach._together import together
from diagnose.attach.channel import GRACE_S, AgentChannel
from diagnose.errors import (
    AttachError,
    AttachTimeoutError,
    NoStepsError,
    ProcessGoneError,
    RecordingError,
    StuckError,
)

__all__ = ["Marks", "Member", "Session", "Start", "Taken", "Wanted", "marks_of"]

Marks = list[align.Mark]
_Asked = tuple[Member, AgentChannel]

RETRIES = 3
"""After a start that came too late for some rank, each with twice the margin."""

_FIRST_MARKS = 2
_MARKS_BEFORE = 7
"""Six intervals, the last of which may hold the preparation."""
_BEFORE_LIMIT_S = 10.0
_LEAVE_S = 10.0
_EXPORT_S = 60.0
_OTHERS_S = 60.0
_WALL_CLOCK_LEAD_S = 1.0
_WALL_CLOCK_S = 2.0
"""How long a window of "steps" is where no step is ever seen."""


@dataclass(frozen=True)
class Wanted:
    """The window asked for: steps, or seconds, or steps from a step number on."""

    steps: int | None = 3
    seconds: float | None = None
    at_step: int | None = None


@dataclass(frozen=True)
class Taken:
    """A window that at least one rank has recorded."""

    start: Start
    replies: Mapping[Member, Mapping[str, Any]]


_MAX_RANKS = 1 << 20


class Session:
    """Many agents asked together. A context manager: at its end all are let go."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        timeout_s: float = 30.0,
        say: Callable[[str], None] = lambda _: None,
        hosts: Hosts | None = None,
    ) -> None:
        self.members = list(members)
        self.timeout_s = timeout_s
        self._agreement: Agreement | None = None
        if hosts is not None:
            # Others may have to find out first that a rank of theirs does not answer: twice.
            self._agreement = Agreement(hosts, 2 * (timeout_s + GRACE_S) + _OTHERS_S, say)
        self._say = say
        self._left = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def active(self) -> list[Member]:
        """The members that have not failed."""
        return [member for member in self.members if member.failure is None]

    @property
    def failures(self) -> dict[Member, RecordingError]:
        """Why the others have."""
        return {m: m.failure for m in self.members if m.failure is not None}

    def ask(self, op: str, timeout_s: float = 10.0, **fields: Any) -> dict[Member, dict[str, Any]]:
        """Ask all active members at once. Who refuses has failed."""
        return self._each(lambda member: member.ask(op, timeout_s, **fields))

    def status(self) -> None:
        """Fill in ``status``, and the rank that the process itself knows."""
        for member, reply in self.ask("status").items():
            member.status = reply
            if reply.get("protocol") != PROTOCOL:
                member.failure = AttachError(
                    f"{member.channel.who}: its agent speaks protocol {reply.get('protocol')}, "
                    f"this version speaks {PROTOCOL}",
                    hint="use the torch-diagnose that started the job",
                )
            rank = reply.get("rank")
            # From another process: it becomes part of file names.
            if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MAX_RANKS:
                member.rank = rank
            if reply.get("injected") is True and member.route == "cooperative":
                member.route = "injected"  # an earlier one that has not left yet

    def record(
        self,
        wanted: Wanted,
        trace_of: Callable[[Member], str | Path],
        *,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        check_of: Callable[[Member], str | None] = lambda _: None,
    ) -> Taken:
        """Record one window on all active members.

        ``trace_of`` names the file that a member's agent writes, as its process sees
        it; ``check_of`` the execution trace of the same steps, None for none. Raises the
        first member's RecordingError if no member recorded anything.
        """
        for attempt in range(RETRIES + 1):
            start = self._start(wanted, attempt)
            last = attempt == RETRIES or wanted.at_step is not None

            def call(entry: _Asked, start: Start = start) -> dict[str, Any]:
                member = entry[0]
                return self._go(entry, start, trace_of(member), options, metadata, check_of(member))

            replies, missed = self._gather(call, wait_for_others=last)
            again = bool(missed)
            if self._agreement is not None and not last:
                if not missed:
                    self._refuse_if_none(replies)
                again = self._agreement.again(again, start, self.timeout_s + _EXPORT_S)
            if not again or last:
                for member, reply in missed.items():
                    member.failure = error_of(reply, member.channel.who)
                self._refuse_if_none(replies)
                return Taken(start, replies)
            who = f"rank {_ranks(list(missed))}" if missed else "a rank of another host"
            self._say(f"{who} was past the start already: once more")
            if missed:
                self._start_over(missed)
        raise AssertionError("unreachable")

    def after(self, marks: int, timeout_s: float) -> None:
        """Wait until the active members have seen this many boundaries after the window."""
        # Only figures depend on it: who does not answer has still recorded the window.
        self._each_quietly(lambda member: member.ask("after", timeout_s, marks=marks))

    def marks(self, members: Sequence[Member]) -> dict[Member, Marks]:
        """The boundaries that each member has seen lately."""
        replies = self._each_quietly(lambda member: member.ask("steps", 10.0, since=0), members)
        return {member: marks_of(reply) for member, reply in replies.items()}

    def environments(self, members: Sequence[Member]) -> dict[Member, dict[str, Any]]:
        """What each member's process runs on."""
        replies = self._each_quietly(lambda member: member.ask("environment", 10.0), members)
        found = {member: reply.get("environment") for member, reply in replies.items()}
        return {member: value for member, value in found.items() if isinstance(value, dict)}

    def leave(self) -> None:
        """End what goes on and let injected agents leave. Never raises, takes 10 s at most."""
        if self._left:
            return
        self._left = True
        for member in self.members:
            if member.asking:
                member.close()
        deadline = time.monotonic() + _LEAVE_S
        threads = [
            threading.Thread(target=let_go, args=(member, deadline), daemon=True)
            for member in self.members
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    # The parts of `record`.

    def _start(self, wanted: Wanted, attempt: int) -> Start:
        self._say("waiting for a step on every rank")
        marks = self._arm(_FIRST_MARKS)
        watch = bool(marks) and wanted.at_step is None and attempt == 0
        if watch and _step_s(marks.values()) * _MARKS_BEFORE <= _BEFORE_LIMIT_S:
            self._say("watching the steps before the window")
            marks = self._arm(_MARKS_BEFORE)

        def planned(seen: Seen) -> Start:
            if not seen.marks:
                return self._wall_clock(wanted)
            if wanted.at_step is not None:
                return self._at_step(wanted, wanted.at_step, seen.marks)
            return _planned(wanted, seen, 2**attempt)

        if self._agreement is not None:
            start = self._agreement.start(bool(marks), lambda: self._seen(marks), planned)
        else:
            start = planned(self._seen(marks) if marks else Seen())
        if start.steps is None:
            self._say(f"no optimizer step is seen: recording {start.seconds:g} s by the clock")
        elif wanted.at_step is None:
            self._say(
                f"recording {start.steps} step{'s' * (start.steps != 1)} of about "
                f"{start.step_ns / 1e6:.1f} ms"
            )
        return start

    def _seen(self, armed: Mapping[Member, Marks]) -> Seen:
        """The boundaries since those that each member told when it was armed, and these.

        Members were armed one earlier, one later; asked once more, what they saw overlaps.
        """

        def steps(member: Member) -> dict[str, Any]:
            since = max(armed[member][0].step - 1, 0)
            reply = member.ask("steps", self.timeout_s, since=since)
            member.answered_s = time.monotonic()
            return reply

        told = self._boundaries(self._each(steps))
        now = time.monotonic()
        return Seen(
            list(told.values()),
            [max(now - member.answered_s, 0.0) for member in told],
            any(member.status.get("injected") for member in told),
        )

    def _at_step(self, wanted: Wanted, step: int, marks: Iterable[Sequence[align.Mark]]) -> Start:
        marks = list(marks)
        step_s, last = _step_s(marks), max(rank[-1].step for rank in marks)
        steps = wanted.steps or max(1, math.ceil((wanted.seconds or 0.0) / max(step_s, 1e-6)))
        self._say(f"waiting for step {step}, now at {last}")
        ahead = max(step - last, 0) + steps + 1
        return Start({"step": step}, 1, steps, wanted.seconds, ahead * step_s, step_s * 1e9)

    def _arm(self, marks: int) -> dict[Member, Marks]:
        """The latest boundaries of each member; empty if not one of them steps an optimizer."""
        before = self.active
        replies = self._each(lambda member: member.ask("arm", self.timeout_s, marks=marks))
        if not replies and all(isinstance(m.failure, NoStepsError) for m in before):
            for member in before:
                member.failure = None
            return {}
        return self._boundaries(replies)

    def _boundaries(self, replies: Mapping[Member, Mapping[str, Any]]) -> dict[Member, Marks]:
        """What each member told; who told nothing of use has failed. Raises if none is left."""
        told: dict[Member, Marks] = {}
        for member, reply in replies.items():
            try:
                told[member] = boundaries(reply, member.channel.who)
            except AttachError as error:
                member.failure = error
        self._refuse_if_none(told)
        return told

    def _wall_clock(self, wanted: Wanted) -> Start:
        seconds = wanted.seconds or _WALL_CLOCK_S
        begin = time.time_ns() + math.ceil(_WALL_CLOCK_LEAD_S * 1e9)
        return Start({"unix_ns": begin}, seconds=seconds, expected_s=_WALL_CLOCK_LEAD_S + seconds)

    def _go(
        self,
        asked: _Asked,
        start: Start,
        trace: str | Path,
        options: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None,
        check: str | None,
    ) -> dict[str, Any]:
        length = {"seconds": start.seconds} if start.steps is None else {"steps": start.steps}
        beside = {} if check is None else {"check_sync": check}
        # Recorded steps are slower, with an execution trace several times.
        timeout_s = self.timeout_s + (3 if check is None else 10) * start.expected_s
        member, channel = asked
        with member.awaited():
            channel.send(
                "go",
                start=dict(start.start),
                stride=start.stride,
                trace=str(trace),
                options=dict(options or {}),
                metadata=dict(metadata or {}),
                timeout_s=timeout_s,
                **length,
                **beside,
            )
            try:
                reply = channel.receive(timeout_s + GRACE_S)
            except AttachTimeoutError:
                if member.stopped:
                    raise
                reply = channel.receive(_EXPORT_S)  # it may be writing its trace
        if reply.get("ok") is not True and reply.get("code") != START_MISSED:
            raise error_of(reply, channel.who)
        return reply

    def _gather(
        self, call: Callable[[_Asked], dict[str, Any]], *, wait_for_others: bool
    ) -> tuple[dict[Member, dict[str, Any]], dict[Member, dict[str, Any]]]:
        """The replies of those that recorded, and of those that were past the start."""
        replies: dict[Member, dict[str, Any]] = {}
        missed: dict[Member, dict[str, Any]] = {}
        # A thread that is no longer listened to must not use a connection made after it.
        asked = [(member, member.channel) for member in self.active]
        for (member, _), reply in together(asked, call):
            if isinstance(reply, RecordingError):
                member.failure = reply
            elif reply.get("ok") is True:
                replies[member] = reply
            else:
                missed[member] = reply
                if not wait_for_others:
                    break
        return replies, missed

    def _start_over(self, missed: Mapping[Member, Any]) -> None:
        """Cancel the window of those that would record it without the others."""
        others = [member for member in self.active if member not in missed]
        for member in others:
            member.close()
        deadline = time.monotonic() + self.timeout_s
        for member, answer in together(others, lambda member: reopened(member, deadline)):
            if isinstance(answer, RecordingError):
                member.failure = answer
            else:
                member.channel, member.closed, member.asking = answer, False, False

    def _refuse_if_none(self, replies: Mapping[Member, Any]) -> None:
        if replies:
            return
        failures = list(self.failures.values())
        if not failures:
            raise AttachError("no rank is left to record", hint="is the job still running?")
        # The rarest cause tells most: where one rank is stopped, all others wait for it.
        kinds = [type(failure) for failure in failures]
        raise min(
            failures,
            key=lambda f: (kinds.count(type(f)), not isinstance(f, (StuckError, ProcessGoneError))),
        )

    def _each(self, call: Callable[[Member], dict[str, Any]]) -> dict[Member, dict[str, Any]]:
        replies = {}
        for member, reply in together(self.active, call):
            if isinstance(reply, RecordingError):
                member.failure = reply
            else:
                replies[member] = reply
        return replies

    def _each_quietly(
        self,
        call: Callable[[Member], dict[str, Any]],
        members: Sequence[Member] | None = None,
    ) -> dict[Member, dict[str, Any]]:
        asked = [m for m in (self.active if members is None else members) if not m.closed]
        answers = together(asked, call)
        return {m: reply for m, reply in answers if not isinstance(reply, RecordingError)}


def _ranks(members: Sequence[Member]) -> str:
    return ", ".join("?" if member.rank is None else str(member.rank) for member in members[:8])


def _planned(wanted: Wanted, seen: Seen, factor: int) -> Start:
    plan = align.plan(
        seen.marks,
        steps=wanted.steps,
        seconds=wanted.seconds,
        counted_together=not seen.injected,
        ages_s=seen.ages_s,
        factor=factor,
    )
    expected_s = (plan.margin + plan.steps + 1) * plan.step_ns / 1e9
    return Start(plan.start, plan.stride, plan.steps, wanted.seconds, expected_s, plan.step_ns)


def _step_s(marks: Iterable[Sequence[align.Mark]]) -> float:
    """The longest mean interval of a rank, in seconds."""
    return max((rank[-1].unix_ns - rank[0].unix_ns) / 1e9 / max(len(rank) - 1, 1) for rank in marks)
