"""One rank as a session knows it: its process, the connection to its agent, how it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from diagnose.attach.channel import GRACE_S, AgentChannel
from diagnose.attach.discovery.processes import Process
from diagnose.errors import (
    AttachError,
    AttachTimeoutError,
    RecordingError,
    StuckError,
    WindowLostError,
)

_DETACH_S = 2.0
_BUSY_POLL_S = 0.05


@dataclass(eq=False)
class Member:
    """One rank's process and the connection to the agent in it."""

    channel: AgentChannel
    pid: int
    route: str = "cooperative"
    rank: int | None = None
    process: Process | None = None
    """None: it runs on another host."""
    reopen: Callable[[], AgentChannel | None] | None = None
    """A new connection to the same agent, None while it does not listen."""
    status: dict[str, Any] = field(default_factory=dict)
    failure: RecordingError | None = None
    answered_s: float = 0.0
    """When it last told its boundaries, by ``time.monotonic``."""
    closed: bool = False
    asking: bool = False
    silent: bool = False
    """It did not answer in the time it was given."""

    def ask(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """As the channel's ``ask``; one that stays without an answer is closed."""
        with self.awaited():
            return self.channel.ask(op, timeout_s=timeout_s, **fields)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """While an answer is waited for; one that does not come ends the connection."""
        self.asking = True
        try:
            yield
        except AttachTimeoutError:
            self.silent = True
            self.close()
            if self.stopped:
                raise StuckError(
                    f"{self.channel.who}: the process is stopped",
                    hint=f"let it go on with `kill -CONT {self.pid}`",
                ) from None
            raise
        finally:
            self.asking = False

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped, by a signal or a debugger."""
        with suppress(AttachError):
            return self.process is not None and self.process.state in ("T", "t")
        return False

    def close(self) -> None:
        """Close the connection, which cancels what goes on."""
        self.closed = True
        self.channel.close()


def reopened(member: Member, deadline: float) -> AgentChannel:
    """A new connection, once the agent has ended what was cancelled. Raises AttachError."""
    while member.reopen is not None:
        channel = member.reopen()
        if channel is None:
            break  # nobody listens any more
        try:
            channel.send("status")
            if channel.receive(GRACE_S).get("ok") is True:
                return channel
        except BaseException:
            channel.close()
            raise
        channel.close()
        if time.monotonic() >= deadline:
            break
        time.sleep(_BUSY_POLL_S)
    raise WindowLostError(
        f"{member.channel.who}: its window was cancelled, and its agent does not answer any more",
        hint="try again",
    )


def let_go(member: Member, deadline: float) -> None:
    """End what goes on in it and let an injected agent leave. Never raises."""
    if not member.closed and _detached(member.channel):
        member.close()
        return
    member.close()
    if member.silent:
        return  # it was given its time; its agent will notice that nobody is there
    # A new connection also tells when the agent has ended its window and removed its file.
    with suppress(RecordingError, OSError):
        channel = reopened(member, deadline)
        _detached(channel)
        channel.close()


def _detached(channel: AgentChannel) -> bool:
    with suppress(RecordingError, OSError):
        channel.send("detach")
        return channel.receive(_DETACH_S).get("ok") is True
    return False
