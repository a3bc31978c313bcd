"""From a rank's process to a connection with an agent in it, by the first route that works.

In order: an agent that is there already, injection, Python's own remote execution.
Injections happen one after another in the calling thread, where a Ctrl-C can be held
back while a foreign thread is stopped; agents come up side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from diagnose.attach._together import together
from diagnose.attach.channel import Channel
from diagnose.attach.discovery.discover import RankProcess
from diagnose.attach.discovery.processes import Process
from diagnose.attach.injection import inject, payload, refusals, remote_exec
from diagnose.attach.session import Member, Session
from diagnose.errors import AttachError, AttachTimeoutError, RecordingError

_INTERRUPTED_S = 1.0


class Route(str, Enum):
    """How an agent gets into a rank's process."""

    auto = "auto"
    cooperative = "cooperative"
    inject = "inject"
    remote_exec = "remote-exec"
    kineto_daemon = "kineto-daemon"


@dataclass(frozen=True)
class Reach:
    """By which routes, and how patiently."""

    route: Route = Route.auto
    timeout_s: float = 30.0
    say: Callable[[str], None] = lambda _: None


@dataclass
class _Entered:
    """A process that an agent was brought into, and what is left to do once it answers."""

    rank: RankProcess
    process: Process
    route: str = ""
    answers: bool = False
    close: Callable[[], None] = lambda: None
    why_not: Callable[[], str] = lambda: ""
    """What kept the agent from coming up, as far as it could leave word."""


def reach(
    ranks: Sequence[RankProcess], session: Session, how: Reach
) -> dict[RankProcess, RecordingError]:
    """Add a member to the session for each rank that can be reached; say why for the others.

    Members are added as they come: whoever ends this early finds them in the session.
    """
    failures: dict[RankProcess, RecordingError] = {}
    entered: list[_Entered] = []
    try:
        for number, rank in enumerate(ranks, 1):
            process = Process(rank.pid)
            one = _Entered(rank, process)
            try:
                found = Channel.find(process, named(rank))
                if found is not None:
                    session.members.append(_member(rank, process, found, "cooperative"))
                    continue
                how.say(f"entering {named(rank)}, {number} of {len(ranks)}")
                entered.append(one)  # first: it has to be known if this is interrupted
                _enter(one, how.route)
            except RecordingError as error:
                failures[rank] = error
                entered = [other for other in entered if other is not one]

        def connect(one: _Entered) -> None:
            channel = _connected(one, how.timeout_s)
            session.members.append(_member(one.rank, one.process, channel, one.route))
            one.answers = True

        for one, answer in together(entered, connect):
            if isinstance(answer, RecordingError):
                failures[one.rank] = answer
    except BaseException:
        _join(session, [one for one in entered if one.route and not one.answers])
        raise
    finally:
        for one in entered:
            one.close()
    return failures


def _join(session: Session, entered: Sequence[_Entered]) -> None:
    """Agents that are just coming up join the session, which is about to let them go."""

    def connect(one: _Entered) -> None:
        channel = Channel.connect(one.process, _INTERRUPTED_S, named(one.rank))
        session.members.append(_member(one.rank, one.process, channel, one.route))

    for _ in together(entered, connect):
        pass


def _connected(one: _Entered, timeout_s: float) -> Channel:
    try:
        return Channel.connect(one.process, timeout_s, named(one.rank))
    except AttachTimeoutError:
        reason = one.why_not()
        if not reason:
            raise
        raise AttachError(
            f"{named(one.rank)}: its agent did not come up: {reason}",
            hint="if it stays, please report it; `diagnose run` starts a job with an agent in it",
        ) from None


def _enter(one: _Entered, route: Route) -> None:
    """Bring an agent into a process. Raises AttachError."""
    pid = one.process.pid
    if route is Route.cooperative:
        raise AttachError(
            f"{named(one.rank)}: no agent listens in it",
            hint="start the job with `diagnose run -- COMMAND`, or leave --route out",
        )
    if route is Route.remote_exec:
        _hand_over(one)
        return
    refusal = refusals.explain(pid)
    if refusal is None:
        one.route = "injected"
        injection = inject.inject(pid, payload.bootstrap())
        one.why_not = lambda: inject.failure(pid, injection)
        return
    if route is Route.auto and sys.version_info >= remote_exec.FIRST:
        with suppress(RecordingError):
            _hand_over(one)
            return
    raise refusal


def _hand_over(one: _Entered) -> None:
    one.route = "remote-exec"
    one.close = remote_exec.run(one.process.pid, payload.bootstrap(None)).close


def _member(rank: RankProcess, process: Process, channel: Channel, route: str) -> Member:
    return Member(
        channel,
        rank.pid,
        route,
        rank=rank.rank,
        process=process,
        reopen=lambda: Channel.find(process, channel.who),
    )


def named(rank: RankProcess) -> str:
    """Whom a message is about."""
    return f"process {rank.pid}" if rank.rank is None else f"rank {rank.rank} (pid {rank.pid})"
