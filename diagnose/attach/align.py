"""Which step a window starts at, so that every rank records the same ones.

Each rank reports its last step boundaries (``Mark``). Three clocks can name one that is
still to come, in this order of preference:

``seq``
    The sequence number of the default process group: how many collectives it has begun.
    All ranks begin the same ones, so at the same boundary it is the same everywhere, and
    nothing has to have been counted together before. It only has to move, and to agree
    where the marks of the ranks overlap.
``step``
    Boundaries counted by the agents. Comparable only if all have counted from the start
    of the job (cooperative agents), or if there is one rank.
``unix``
    The wall clock: the first boundary after a moment. Ranks may be a step apart, and
    clocks of hosts differ; say so, and match the steps afterwards.

How far ahead: a rank prepares one boundary before the start, so at the moment it hears
of the window it must be at least two before it. While the request travels for T, a rank
whose steps take s passes at most floor(T / s) + 1 boundaries; hence the margin from the
last mark is floor(T / s) + 3 steps, and no rank that hears in time can miss it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from diagnose.errors import NoStepsError, UsageError

TRAVEL_S = 0.3
"""How long a request may take to reach the last rank, on a busy host."""
_MOST_STEPS = 10**6


class Mark(NamedTuple):
    """A step boundary: its number as the agent counts, the group's number, the wall clock."""

    step: int
    seq: int | None
    unix_ns: int


@dataclass(frozen=True)
class Plan:
    """A window that all ranks are asked for in the same words."""

    start: dict[str, int]
    """``{"seq": n}``, ``{"step": n}`` or ``{"unix_ns": t}``.

    A rank prepares at its first boundary that is no further than ``stride`` (by the
    wall clock, a step) before this, and starts at the next.
    """
    stride: int
    """How much the clock moves in a step, at most; 1 for a clock that is not ``seq``."""
    steps: int
    clock: str
    margin: int
    """Steps from the last boundary known to the start."""
    step_ns: float
    """Median host interval between boundaries, over all ranks."""
    reason: str = ""
    """Why the clock is not ``seq``, as a clause; empty if it is."""


@dataclass(frozen=True)
class Alignment:
    """Whether the windows that were recorded cover the same steps."""

    aligned: bool | None
    """None: nothing that the ranks have in common says so."""
    start_skew_ns: int | None
    """First boundary of the last rank minus that of the first, by the clocks of the hosts."""
    sentence: str


def plan(
    marks: Sequence[Sequence[Mark]],
    *,
    steps: int | None = None,
    seconds: float | None = None,
    counted_together: bool = False,
    ages_s: Sequence[float] = (),
    factor: int = 1,
) -> Plan:
    """Choose the start for a window of so many steps, or of the steps that fill so many seconds.

    ``marks``: of each rank, its last boundaries, oldest first, two at least.
    ``counted_together``: all agents count from the start of the job. ``ages_s``: of each
    rank, how long ago, on the controller's own clock, it answered with these marks.
    ``factor`` multiplies the margin: 1, then 2, 4, ... after a rank has missed the start.
    Before that, cancel the window of the ranks that have not missed it, and ask all for
    new marks.

    Raises UsageError for a window that cannot be, NoStepsError if a rank takes no steps:
    those are recorded by the wall clock alone.
    """
    _check_length(steps, seconds)
    series = [tuple(Mark(*mark) for mark in rank) for rank in marks]
    paces = [_step_ns(rank) for rank in series]
    if not paces or None in paces:
        raise NoStepsError(
            f"{paces.count(None) or 'all'} of {len(paces)} ranks take no optimizer steps",
            hint="record by the clock with --seconds",
        )
    known = [pace for pace in paces if pace is not None]
    pace = statistics.median(known)
    ages = [*ages_s, *[0.0] * (len(series) - len(ages_s))]
    ahead = [_boundaries_ahead(age, min(known), factor) for age in ages]
    last = [rank[-1] for rank in series]
    moves, reason = _common_moves(series)
    stride, clock = 1, "step"
    if moves:
        clock, stride = "seq", max(moves)
        # A step may hold more collectives than most (logging, a checkpoint): prepare in time.
        usual = int(statistics.median_low(moves))
        seqs = [mark.seq or 0 for mark in last]
        at = max(s + (n - 1) * usual + stride for s, n in zip(seqs, ahead, strict=True))
        start = {"seq": at}
    elif counted_together or len(series) == 1:
        start = {"step": max(mark.step + n for mark, n in zip(last, ahead, strict=True))}
    else:
        # Half a step before a boundary of the rank that is furthest: ranks that are less
        # than half a step apart agree on the boundary.
        clock = "unix"
        latest = max(mark.unix_ns for mark in last)
        start = {"unix_ns": latest + round((max(ahead) - 0.5) * pace)}
    count = steps if steps is not None else _as_steps(seconds or 0.0, pace)
    return Plan(start, stride, count, clock, max(ahead), pace, reason)


def check(windows: Sequence[Sequence[Mark]], clock: str = "seq") -> Alignment:
    """Compare what the ranks recorded: the boundaries of each one's window, oldest first.

    ``clock`` as in the plan; with ``unix`` the sequence numbers decide, if there are any.
    """
    series = [tuple(Mark(*mark) for mark in rank) for rank in windows if rank]
    if len(series) < 2:
        return Alignment(True, None, "one rank was recorded")
    firsts = [rank[0].unix_ns for rank in series]
    skew = max(firsts) - min(firsts)
    numbers = [[mark.step if clock == "step" else mark.seq for mark in rank] for rank in series]
    if any(None in rank or len(set(rank)) < len(rank) for rank in numbers):
        return Alignment(None, skew, "the ranks have no step number in common")
    if all(rank == numbers[0] for rank in numbers):
        return Alignment(True, skew, f"all ranks recorded the same {len(numbers[0]) - 1} steps")
    shared = max(len(set(numbers[0]).intersection(*numbers[1:])) - 1, 0)
    return Alignment(False, skew, f"the ranks recorded different steps, {shared} in common")


def _check_length(steps: int | None, seconds: float | None) -> None:
    if (steps is None) == (seconds is None):
        raise UsageError("a window is so many steps or so many seconds", hint="give one of both")
    if steps is not None and not 1 <= steps <= _MOST_STEPS:
        raise UsageError(f"{steps} steps cannot be recorded", hint=f"give 1 to {_MOST_STEPS}")
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"{seconds} seconds cannot be recorded", hint="give more than 0")


def _as_steps(seconds: float, step_ns: float) -> int:
    return min(max(math.ceil(seconds * 1e9 / step_ns), 1), _MOST_STEPS)


def _step_ns(rank: Sequence[Mark]) -> float | None:
    """The median interval; None with fewer than two boundaries or a clock that stands still."""
    intervals = [
        (after.unix_ns - before.unix_ns) / max(after.step - before.step, 1)
        for before, after in pairwise(rank)
    ]
    positive = [interval for interval in intervals if interval > 0]
    return statistics.median(positive) if positive else None


def _boundaries_ahead(age_s: float, step_ns: float, factor: int) -> int:
    travel_ns = (TRAVEL_S + max(age_s, 0.0)) * 1e9
    return (int(travel_ns // step_ns) + 3) * max(factor, 1)


def _common_moves(series: Sequence[Sequence[Mark]]) -> tuple[list[int], str]:
    """How much the sequence number moves in each step seen; none, and why, if it is no clock."""
    numbers = [_last_numbered(rank) for rank in series]
    if any(len(rank) < 2 for rank in numbers):
        return [], "not every rank has a default process group"
    moves = [b - a for rank in numbers for a, b in pairwise(rank)]
    if min(moves) <= 0:
        return [], "the default process group is not used in every step"
    low, high = max(rank[0] for rank in numbers), min(rank[-1] for rank in numbers)
    shared = [{number for number in rank if low <= number <= high} for rank in numbers]
    regular = len(set(moves)) == 1
    in_phase = len({rank[0] % moves[0] for rank in numbers}) == 1
    if any(rank != shared[0] for rank in shared):
        return [], "the ranks count different collectives in the default process group"
    if not (shared[0] or (regular and in_phase)):
        return [], "steps differ in collectives, and the ranks were seen at different steps"
    return moves, ""


def _last_numbered(rank: Sequence[Mark]) -> list[int]:
    """The numbers since the process group exists."""
    found: list[int] = []
    for mark in reversed(rank):
        if mark.seq is None:
            break
        found.append(mark.seq)
    return found[::-1]
