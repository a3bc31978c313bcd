"""Who holds the others up: always the same rank, another one each time, or the schedule.

Four patterns, from the lateness that ``ranks`` measures:

- ``constant``: one rank, or a minority of ranks together, late in most steps;
- ``wandering``: the ranks lose much to late arrivals, but to another rank each time:
  jitter or uneven work, not a slow machine;
- ``inherent``: GPUs wait in sends and receives, or for stages of their own pipeline:
  the schedule's doing. A rank that is late only there is no straggler;
- no row: nothing notable.

What a rank lost to its own waiting elsewhere (``inherited``) is not held against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._late import Lateness, lateness
from diagnose.analyzers._waits import Analysed, Floats, analyse, compute_of
from diagnose.analyzers.clocks import Alignment
from diagnose.analyzers.ranks import nothing_matched
from diagnose.intervals import Array
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace


class Pattern(IntEnum):
    """How lateness is spread over ranks and steps."""

    CONSTANT = 0
    WANDERING = 1
    INHERENT = 2


@dataclass(frozen=True, kw_only=True)
class StragglerThresholds:
    """When lateness is worth a row. Shares are of the step time."""

    min_share: float = 0.05
    """Lost to late arrivals, per step (the alarm level of published trace tools)."""
    min_step_share: float = 0.6
    """Of the steps in which a constant straggler has to lose the others at least half of that
    (judgement: two of three)."""
    min_steps: int = 2
    """Steps below which constant and wandering cannot be told apart."""
    min_owner_share: float = 0.5
    """Of all that is lost to last arrivals, what the late ranks must hold (judgement)."""


STRAGGLERS = TableSchema(
    "stragglers",
    "one reason why ranks wait for each other, worth naming",
    (
        Column("pattern", "int8", "constant, wandering or inherent", choices=Pattern),
        Column("source", "int32", "of a constant straggler", nullable=False),
        Column("device", "int32", "device number within its process"),
        Column(
            "rank",
            "int64",
            "the late rank; for the other patterns the one that is late (or waits) most",
            nullable=True,
        ),
        Column("num_late", "int64", "ranks late together with it (1: it alone), or late in turn"),
        Column("num_steps", "int64", "steps seen"),
        Column("late_steps", "int64", "steps in which it was notably late, or waited notably"),
        Column(
            "lost_per_step_ns",
            "float64",
            "what the others lose to it alone, at most; inherent: median exposed wait of the GPUs",
            "ns",
            nullable=True,
        ),
        Column("lost_pct", "float64", "the same per step time", "%", nullable=True),
        Column(
            "behind_per_step_ns",
            "float64",
            "against the middle rank, at most: what curing all late ranks would gain",
            "ns",
            nullable=True,
        ),
        Column("last_pct", "float64", "of its groups' collectives, in which it came last", "%"),
        Column(
            "owner_pct",
            "float64",
            "of all that is lost to last arrivals, what is lost to it",
            "%",
            nullable=True,
        ),
        Column("compute_ratio", "float64", "its compute over the median rank's", nullable=True),
        Column("certain", "bool", "clocks aligned well, groups mostly complete, two steps or more"),
    ),
    order=("pattern", "rank", "source", "device"),
)


def stragglers(
    trace: Trace, *, thresholds: StragglerThresholds | None = None
) -> Table | Unavailable:
    """Who holds the others up, and whether it is always the same: a row per reason.

    No row: nothing notable. Unavailable where no collective was matched across GPUs.
    """
    analysed = analyse(trace)
    if not analysed.matches.num_matches:
        return nothing_matched(trace)
    late = lateness(trace, analysed)
    return straggler_table(trace, analysed, late, thresholds or StragglerThresholds())


def straggler_table(
    trace: Trace, analysed: Analysed, late: Lateness, thresholds: StragglerThresholds
) -> Table:
    """The table of ``stragglers``."""
    facts = _Facts(trace, analysed, late)
    constant = _constant(facts, thresholds)
    rows = [
        facts.row(Pattern.CONSTANT, gpu, len(constant), facts.late_steps(gpu, thresholds))
        for gpu in constant.tolist()
    ]
    rows += _wandering(facts, constant, thresholds)
    rows += _inherent(facts, thresholds)
    columns: dict[str, Any] = {
        column.name: np.array([row[column.name] for row in rows], column.dtype)
        for column in STRAGGLERS.columns
    }
    return Table(STRAGGLERS, columns, trace.strings)


class _Facts:
    """What verdicts are drawn from, per GPU (and step)."""

    def __init__(self, trace: Trace, analysed: Analysed, late: Lateness) -> None:
        self.trace, self.late, self.waits = trace, late, analysed.waits
        self.clocks = analysed.clocks
        num = len(trace.gpus)
        timed = late.num_steps and late.step_ns == late.step_ns
        self.chosen = slice(0, late.num_steps) if timed else slice(0, late.num_steps + 1)
        # Late together (behind) or alone (cost): the larger says how late a rank is.
        self.lateness: Array = np.maximum(late.cost, late.behind)
        self.share: Floats = self.lateness[:, self.chosen].sum(1) / late.observed_ns
        waits = analysed.waits
        counted = late.of_group & waits.comparable
        took_part = np.bincount(waits.gpu[counted[waits.match]], minlength=num)
        size = np.append(analysed.matches.lanes.group_size, NULL)
        size = size[analysed.matches.lanes.lane[waits.row]]
        missing = (size == NULL) | (waits.num_matched[waits.match] < size)
        alone = np.bincount(waits.gpu[missing & counted[waits.match]], minlength=num)
        self.mostly_complete = 2 * alone <= took_part
        told = late.of_group & waits.told_apart
        last = np.bincount(waits.gpu[waits.last[told]], minlength=num)
        self.last_share: Floats = last / np.maximum(took_part, 1)
        lengths = [compute_of(trace, n) for n in range(num)]
        compute = np.array([float((i.end - i.start).sum()) for i in lengths])
        middle = float(np.median(compute)) if num else 0.0
        self.compute_ratio = compute / middle if middle else np.full(num, np.nan)

    def step_length(self) -> float:
        return self.late.observed_ns / max(self.late.num_steps, 1)

    def late_steps(self, gpu: int, thresholds: StragglerThresholds) -> int:
        notable = 0.5 * thresholds.min_share * self.step_length()
        return int(np.count_nonzero(self.lateness[gpu, : self.late.num_steps] >= notable))

    def row(self, pattern: Pattern, gpu: int, num_late: int, late_steps: int) -> dict[str, Any]:
        one, late = self.trace.gpus[gpu], self.late
        total = float(late.lost.sum())
        source = self.clocks.alignment[one.source]
        aligned = source not in (Alignment.DOUBTFUL, Alignment.IMPOSSIBLE)
        return {
            "pattern": pattern,
            "source": one.source,
            "device": one.device,
            "rank": NULL if one.rank is None else one.rank,
            "num_late": num_late,
            "num_steps": late.num_steps,
            "late_steps": late_steps,
            "lost_per_step_ns": late.cost_per_step[gpu],
            "lost_pct": 100 * late.cost_share[gpu],
            "behind_per_step_ns": late.behind_per_step[gpu],
            "last_pct": 100 * self.last_share[gpu],
            "owner_pct": 100 * float(late.lost[gpu].sum()) / total if total else np.nan,
            "compute_ratio": self.compute_ratio[gpu],
            "certain": bool(aligned and late.num_steps >= 2 and self.mostly_complete[gpu]),
        }


def _constant(facts: _Facts, thresholds: StragglerThresholds) -> Array:
    """GPUs late by the threshold and in most steps, if they hold most of what is lost."""
    late = np.flatnonzero(facts.share >= thresholds.min_share)
    steps = facts.late.num_steps
    if steps >= thresholds.min_steps:
        needed = thresholds.min_step_share * steps
        often = [facts.late_steps(gpu, thresholds) >= needed for gpu in late.tolist()]
        late = late[np.array(often, bool)]
    lost = facts.late.lost
    if float(lost[late].sum()) < thresholds.min_owner_share * float(lost.sum()):
        return late[:0]
    order = np.argsort(-facts.lateness[late].sum(1), kind="stable")
    found: Array = late[order]
    return found


def _wandering(
    facts: _Facts, constant: Array, thresholds: StragglerThresholds
) -> list[dict[str, Any]]:
    """A row if much is lost to last arrivals and the rank that costs most changes with the step."""
    late = facts.late
    if late.num_steps < thresholds.min_steps:
        return []
    rest = late.lost.copy()
    rest[constant] = 0
    if float(rest[:, facts.chosen].sum()) < thresholds.min_share * late.observed_ns:
        return []
    by_step = rest[:, : late.num_steps]
    notable = by_step.sum(0) >= 0.5 * thresholds.min_share * facts.step_length()
    leaders = np.bincount(np.argmax(by_step[:, notable], axis=0), minlength=len(rest))
    if leaders.max() >= thresholds.min_step_share * late.num_steps:
        return []
    worst, lost = int(np.argmax(by_step.sum(1))), float(by_step.sum()) / late.num_steps
    num_late = int(np.count_nonzero(by_step.sum(1)))
    row = facts.row(Pattern.WANDERING, worst, num_late, int(notable.sum()))
    row |= {"lost_per_step_ns": lost, "lost_pct": 100 * lost / facts.step_length()}
    return [row]


def _inherent(facts: _Facts, thresholds: StragglerThresholds) -> list[dict[str, Any]]:
    """A row if GPUs wait notably in sends and receives or for stages of their pipeline."""
    late, waits = facts.late, facts.waits
    num = len(facts.trace.gpus)
    scheduled = (late.is_pair | late.of_pipeline)[waits.match]
    if not scheduled.any():
        return []
    waited = np.zeros(num, np.int64)
    np.add.at(waited, waits.gpu[scheduled], waits.exposed[scheduled])
    members = np.unique(waits.gpu[scheduled])
    usual = float(np.median(waited[members]))
    if usual < thresholds.min_share * late.observed_ns:
        return []
    worst = int(members[np.argmax(waited[members])])
    row = facts.row(Pattern.INHERENT, worst, len(members), late.num_steps)
    per_step = usual / late.num_steps if late.num_steps else np.nan
    row |= {"lost_per_step_ns": per_step, "lost_pct": 100 * usual / late.observed_ns}
    return [row]


ANALYZERS = (Analyzer("stragglers", Detail.GPU, STRAGGLERS, stragglers),)
