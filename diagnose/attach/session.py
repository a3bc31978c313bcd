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
from diagnose.attach._members import Member, let_go, reopened
from diagnose.attach._replies import START_MISSED, error_of
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
class Start:
    """What all agents are told."""

    start: Mapping[str, int]
    stride: int = 1
    steps: int | None = None
    seconds: float | None = None
    expected_s: float = 0.0
    """From now to the end of the window, as far as can be foreseen."""
    step_ns: float = 0.0
    """Of the slowest rank before the window; 0 if none was seen."""

    @property
    def clock(self) -> str:
        return {"unix_ns": "unix"}.get(key := next(iter(self.start)), key)


@dataclass(frozen=True)
class Taken:
    """A window that at least one rank has recorded."""

    start: Start
    replies: Mapping[Member, Mapping[str, Any]]


class Session:
    """Many agents asked together. A context manager: at its end all are let go."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        timeout_s: float = 30.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.members = list(members)
        self.timeout_s = timeout_s
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
            if isinstance(rank := reply.get("rank"), int):
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
    ) -> Taken:
        """Record one window on all active members.

        ``trace_of`` names the file that a member's agent writes, as its process sees
        it. Raises the first member's RecordingError if no member recorded anything.
        """
        for attempt in range(RETRIES + 1):
            start = self._start(wanted, attempt)
            last = attempt == RETRIES or wanted.at_step is not None

            def call(entry: _Asked, start: Start = start) -> dict[str, Any]:
                return self._go(entry, start, trace_of(entry[0]), options, metadata)

            replies, missed = self._gather(call, wait_for_others=last)
            if not missed or last:
                for member, reply in missed.items():
                    member.failure = error_of(reply, member.channel.who)
                self._refuse_if_none(replies)
                return Taken(start, replies)
            self._say(f"rank {_ranks(list(missed))} was past the start already: once more")
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
        if not marks:
            return self._wall_clock(wanted)
        if wanted.at_step is not None:
            return self._at_step(wanted, wanted.at_step, marks)
        step_s = _step_s(marks.values())
        if attempt == 0 and step_s * _MARKS_BEFORE <= _BEFORE_LIMIT_S:
            self._say("watching the steps before the window")
            marks = self._arm(_MARKS_BEFORE)
        answered = time.monotonic()
        plan = align.plan(
            list(marks.values()),
            steps=wanted.steps,
            seconds=wanted.seconds,
            counted_together=not any(m.status.get("injected") for m in marks),
            ages_s=[max(answered - m.answered_s, 0.0) for m in marks],
            factor=2**attempt,
        )
        self._say(f"recording {plan.steps} steps of about {plan.step_ns / 1e6:.1f} ms")
        expected_s = (plan.margin + plan.steps + 1) * plan.step_ns / 1e9
        return Start(plan.start, plan.stride, plan.steps, wanted.seconds, expected_s, plan.step_ns)

    def _at_step(self, wanted: Wanted, step: int, marks: Mapping[Member, Marks]) -> Start:
        step_s, last = _step_s(marks.values()), max(rank[-1].step for rank in marks.values())
        steps = wanted.steps or max(1, math.ceil((wanted.seconds or 0.0) / max(step_s, 1e-6)))
        self._say(f"waiting for step {step}, now at {last}")
        ahead = max(step - last, 0) + steps + 1
        return Start({"step": step}, 1, steps, wanted.seconds, ahead * step_s, step_s * 1e9)

    def _arm(self, marks: int) -> dict[Member, Marks]:
        """The latest boundaries of each member; empty if not one of them steps an optimizer."""
        before = self.active

        def arm(member: Member) -> dict[str, Any]:
            reply = member.ask("arm", self.timeout_s, marks=marks)
            member.answered_s = time.monotonic()
            return reply

        replies = self._each(arm)
        if not replies and all(isinstance(m.failure, NoStepsError) for m in before):
            for member in before:
                member.failure = None
            return {}
        self._refuse_if_none(replies)
        told: dict[Member, Marks] = {}
        for member, reply in replies.items():
            if seen := marks_of(reply):
                told[member] = seen
            else:
                member.failure = AttachError(
                    f"{member.channel.who}: its agent told no steps", hint="try again"
                )
        self._refuse_if_none(told)
        return told

    def _wall_clock(self, wanted: Wanted) -> Start:
        seconds = wanted.seconds or _WALL_CLOCK_S
        self._say(f"no optimizer step is seen: recording {seconds:g} s by the clock")
        begin = time.time_ns() + math.ceil(_WALL_CLOCK_LEAD_S * 1e9)
        return Start({"unix_ns": begin}, seconds=seconds, expected_s=_WALL_CLOCK_LEAD_S + seconds)

    def _go(
        self,
        asked: _Asked,
        start: Start,
        trace: str | Path,
        options: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        length = {"seconds": start.seconds} if start.steps is None else {"steps": start.steps}
        timeout_s = self.timeout_s + 3 * start.expected_s  # recorded steps are slower
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


def _step_s(marks: Iterable[Marks]) -> float:
    """The longest mean interval of a rank, in seconds."""
    return max((rank[-1].unix_ns - rank[0].unix_ns) / 1e9 / max(len(rank) - 1, 1) for rank in marks)


def marks_of(reply: Mapping[str, Any]) -> Marks:
    """The boundaries in an answer, as far as they are any."""
    marks = reply.get("marks")
    return [
        align.Mark(*mark)
        for mark in (marks if isinstance(marks, list) else [])
        if isinstance(mark, list) and len(mark) == 3
        if isinstance(mark[0], int) and isinstance(mark[2], int)
        if mark[1] is None or isinstance(mark[1], int)
    ]
