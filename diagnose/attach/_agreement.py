"""What one controller knows of its ranks, and how several of them agree on one start.

Each controller attends to the ranks of its own host. They speak over a ``Meeting``, in
rounds that all take part in: armed, what was seen since, the start, whether it was missed.
The first host plans for all: a start worked out twice could differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from diagnose.attach._replies import boundaries
from diagnose.attach.align import Mark
from diagnose.errors import AttachError, NoStepsError, RecordingError

_BARRIER_S = 0.1
"""Hosts look for each other this often, at least: so much earlier one may have gone on."""
_MOST = 1 << 63


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
class Seen:
    """The last boundaries of ranks, of one host or of all."""

    marks: Sequence[Sequence[Mark]] = ()
    """None at all: no rank takes steps."""
    ages_s: Sequence[float] = ()
    """How long ago each was told, by the clock of who plans."""
    injected: bool = False
    """Some agent counts from when it came in."""


class Hosts(Protocol):
    """What a session needs of a meeting of hosts."""

    num_hosts: int
    seat: int
    reasons: dict[int, str]

    def exchange(self, message: Any, timeout_s: float = 60.0) -> list[Any]:
        """What all hosts said; None for those that have left."""


@dataclass
class Agreement:
    """A controller's part in the meeting. ``say`` is told what other hosts do."""

    hosts: Hosts
    timeout_s: float
    """How long another host may take to arm its ranks."""
    say: Callable[[str], None]
    _told: set[int] = field(default_factory=set)

    def start(
        self, steps_seen: bool, fresh: Callable[[], Seen], plan: Callable[[Seen], Start]
    ) -> Start:
        """The start for all hosts, once the ranks of all are armed.

        ``fresh`` asks this host's ranks anew: what was told before others were armed is
        old. Raises NoStepsError if ranks of other hosts take steps and none here does.
        """
        self.say("waiting for the ranks of the other hosts")
        armed = self._exchange(steps_seen, self.timeout_s)
        all_armed_s = time.monotonic()
        if not steps_seen and any(one is True for one in armed):
            raise NoStepsError(
                "no rank here takes optimizer steps, and those of other hosts do",
                hint="record this host by itself, with --seconds",
            )
        own = fresh() if steps_seen else Seen()
        heard = self._exchange({"marks": own.marks, "injected": own.injected}, self.timeout_s)
        leader = next(n for n, said in enumerate(heard) if said is not None)
        decided = None
        if leader == self.hosts.seat:
            seen = [_seen(said, f"host {n + 1}") for n, said in enumerate(heard) if said]
            age_s = time.monotonic() - all_armed_s + _BARRIER_S
            marks = [rank for one in seen for rank in one.marks]
            injected = any(one.injected for one in seen)
            decided = plan(Seen(marks, [age_s] * len(marks), injected))
        told = self._exchange(None if decided is None else asdict(decided), self.timeout_s)
        return decided or _start(told[leader])

    def again(self, missed: bool, start: Start, timeout_s: float) -> bool:
        """Whether a rank of any host was past the start."""
        said = self._exchange(missed, timeout_s + 3 * start.expected_s)
        return any(one is True for one in said)

    def _exchange(self, message: Any, timeout_s: float) -> list[Any]:
        heard = self.hosts.exchange(message, timeout_s)
        for seat, reason in self.hosts.reasons.items():
            if seat not in self._told:
                self._told.add(seat)
                why = f": {reason}" if reason else ""
                self.say(f"host {seat + 1} of {self.hosts.num_hosts} has left{why}")
        return heard


def _seen(said: Any, who: str) -> Seen:
    """What another host has seen. Raises AttachError for anything else."""
    marks = said.get("marks") if isinstance(said, dict) else None
    if not isinstance(marks, list):
        raise _unclear(who)
    return Seen([boundaries({"marks": rank}, who) for rank in marks], (), bool(said["injected"]))


def _start(said: Any) -> Start:
    """The start that another host has planned. Raises AttachError for anything else."""
    try:
        [(clock, value)] = said["start"].items()
        numbers = value, said["stride"], said["steps"] or 0
        times = said["seconds"] or 0.0, said["expected_s"], said["step_ns"]
        if clock not in ("seq", "step", "unix_ns") or not (said["steps"] or said["seconds"]):
            raise ValueError
        if any(type(number) is not int or not 0 <= number < _MOST for number in numbers):
            raise ValueError
        if any(type(one) not in (int, float) or not 0 <= one < 1e18 for one in times):
            raise ValueError
        return Start(
            {clock: value}, said["stride"], said["steps"], said["seconds"], times[1], times[2]
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise _unclear("the host that plans") from None


def _unclear(who: str) -> RecordingError:
    return AttachError(
        f"{who}: what it said cannot be understood, or it has left",
        hint="use the same torch-diagnose on every host, and look at what it says there",
    )
