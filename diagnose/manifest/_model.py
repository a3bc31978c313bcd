"""What a manifest holds, as frozen values."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

NoteSeverity = Literal["info", "warning", "error"]

LEAST_INTERVALS = 5
"""With fewer steps outside of the window, a median says nothing."""
_QUARTERS = 4


@dataclass(frozen=True)
class StepTimes:
    """Host intervals between optimizer steps of one rank, in nanoseconds.

    Apart from ``within`` they hold no interval in which the profiler was prepared,
    stopped or its trace written.
    """

    before: tuple[int, ...] = ()
    within: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank, relative to the folder (None: not recorded), and where it ran."""

    rank: int
    trace: str
    telemetry: str | None = None
    env: str | None = None
    execution_trace: str | None = None
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    gpu_uuid: str | None = None
    route: str | None = None
    """How it was asked: cooperative, injected, remote-exec, kineto-daemon, in-code."""
    step_times: StepTimes | None = None


@dataclass(frozen=True)
class Window:
    """What was asked for and where it began.

    ``clock`` says what ``start`` counts: the process group's collectives ("seq"),
    optimizer steps ("step") or unix nanoseconds ("unix").
    """

    steps: int | None = None
    seconds: float | None = None
    clock: str | None = None
    start: int | None = None


@dataclass(frozen=True)
class Observer:
    """What recording cost: median host interval between optimizer steps, over all ranks.

    In nanoseconds; None where a rank saw fewer than ``LEAST_INTERVALS`` steps before,
    fewer than that in the later half of those after, or none in the window.

    A host that runs ahead of its GPU steps at the GPU's rate as long as it has to wait
    for it. Stopping the profiler waits for all work, so right after the window the host
    catches up, at its own rate: ``after_ns`` is of the later half of what each rank saw.
    ``num_...`` count the intervals, of all ranks, that each median is of.
    """

    before_ns: int | None = None
    within_ns: int | None = None
    after_ns: int | None = None
    num_before: int = 0
    num_within: int = 0
    num_after: int = 0
    before_spread_ns: int | None = None
    """Distance between the quartiles of the intervals before; None as ``before_ns``."""


@dataclass(frozen=True)
class RecordingNote:
    """Something that the recorder has to say of its recording."""

    code: str
    severity: NoteSeverity
    sentence: str


@dataclass(frozen=True)
class Manifest:
    """What a recording consists of. ``started_unix_ns`` is the host's wall clock."""

    ranks: tuple[RankFiles, ...]
    world_size: int | None = None
    started_unix_ns: int | None = None
    tool_version: str | None = None
    window: Window | None = None
    observer: Observer | None = None
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the job that were not recorded, as far as the world size tells."""
    notes: tuple[RecordingNote, ...] = ()

    @property
    def num_steps(self) -> int | None:
        """The steps of the window."""
        return None if self.window is None else self.window.steps


def observer_of(step_times: Iterable[StepTimes | None]) -> Observer | None:
    """The observer effect from the step times of all ranks; None without any.

    Medians of hosts cannot be combined, so a merged recording computes it again
    from the ranks' step times.
    """
    known = [times for times in step_times if times is not None]
    before = [times.before for times in known]
    within = [times.within for times in known]
    # The earlier half may be the host catching up with the GPU.
    after = [times.after[(len(times.after) + 1) // 2 :] for times in known]
    if not any(map(any, (before, within, after))):
        return None
    return Observer(
        before_ns=_median(before, LEAST_INTERVALS),
        within_ns=_median(within, 1),
        after_ns=_median(after, LEAST_INTERVALS),
        num_before=sum(map(len, before)),
        num_within=sum(map(len, within)),
        num_after=sum(map(len, after)),
        before_spread_ns=_spread(before, LEAST_INTERVALS),
    )


def _median(of_ranks: list[tuple[int, ...]], least: int) -> int | None:
    if not _enough(of_ranks, least):
        return None
    return round(statistics.median(interval for rank in of_ranks for interval in rank))


def _spread(of_ranks: list[tuple[int, ...]], least: int) -> int | None:
    if not _enough(of_ranks, least):
        return None
    intervals = [interval for rank in of_ranks for interval in rank]
    low, _, high = statistics.quantiles(intervals, n=_QUARTERS, method="inclusive")
    return round(high - low)


def _enough(of_ranks: list[tuple[int, ...]], least: int) -> bool:
    # Ranks step together: eight ranks with one interval each have seen one step.
    return max(map(len, of_ranks), default=0) >= least


def missing(ranks: Iterable[int], world_size: int | None) -> tuple[int, ...]:
    """The ranks of a job of this size that are not among those given."""
    if world_size is None:
        return ()
    return tuple(sorted(set(range(world_size)) - set(ranks)))
