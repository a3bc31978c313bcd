"""What recording cost the job, from the step boundaries that its agents saw.

A host interval is the time between two optimizer steps on the host's clock. The
boundary before the window prepares the profiler, the window's last one stops it,
and writing the trace holds Python's lock: intervals in which any rank did one of
these belong neither to "before" nor to "within" nor to "after". Stopping waits for the
GPU, so the first intervals after it may be those of a host that catches up: all are kept
here, and ``manifest.observer_of`` takes the median of their later half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from diagnose.manifest import StepTimes

_MOST_BEFORE = 50
"""Older boundaries may belong to another phase of the job."""


class RankMarks(NamedTuple):
    """All boundaries of a rank, and those of its window, as ``(step, unix_ns)``."""

    seen: Sequence[tuple[int, int]]
    window: Sequence[tuple[int, int]]
    busy_ns: int = 0
    """What stopping and writing took after the window's last boundary."""


def rank_marks(seen: Iterable[Sequence[Any]], reply: Mapping[str, Any]) -> RankMarks | None:
    """From the agent's own words; None if they hold no window of steps.

    ``seen`` are marks ``[step, seq, unix_ns]``, ``reply`` the answer to "go".
    """
    window = _pairs(reply.get("marks"))
    if len(window) < 2:
        return None
    busy = sum(v for key in ("stop_ns", "export_ns") if isinstance(v := reply.get(key), int))
    return RankMarks(_pairs(seen), window, max(busy, 0))


def _pairs(marks: Any) -> list[tuple[int, int]]:
    if not isinstance(marks, (list, tuple)):
        return []
    found = {
        mark[0]: mark[2]
        for mark in marks
        if isinstance(mark, (list, tuple)) and len(mark) == 3
        if isinstance(mark[0], int) and isinstance(mark[2], int)
    }
    return sorted(found.items())


def step_times(ranks: Sequence[RankMarks]) -> list[StepTimes]:
    """The step times of each rank, in the order given."""
    # What one rank does holds the others up in the same step: all wait for the last.
    quiet_from = max((rank.window[-1][1] + rank.busy_ns for rank in ranks), default=0)
    return [_of_rank(rank, quiet_from) for rank in ranks]


def _of_rank(rank: RankMarks, quiet_from: int) -> StepTimes:
    first, last = rank.window[0][0], rank.window[-1][0]
    before, after = [], []
    for (step, start), (next_step, end) in pairwise(rank.seen):
        if next_step != step + 1:
            continue
        if next_step < first:
            before.append(end - start)
        elif step > last and start >= quiet_from:
            after.append(end - start)
    within = [end - start for (_, start), (_, end) in pairwise(rank.window)]
    return StepTimes(
        tuple(_forward(before)[-_MOST_BEFORE:]), tuple(_forward(within)), tuple(_forward(after))
    )


def _forward(intervals: list[int]) -> list[int]:
    """Without those in which the host's clock was set back."""
    return [interval for interval in intervals if interval >= 0]
