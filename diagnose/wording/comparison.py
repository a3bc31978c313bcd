"""A comparison put into sentences: how the step time changed, and what changed with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.analyzers._gate import step_time_row
from diagnose.analyzers._noise import Judgement
from diagnose.analyzers._step_figures import (
    COMMUNICATION,
    EXPOSED_TRANSFER,
    HIDDEN,
    LATENESS_COST,
    STEP_TIME,
    WAITING,
)
from diagnose.analyzers.comparison import Area
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.labels import CAUSE_LABELS, FIRST_COPY, cause_label
from diagnose.wording.numbers import ABSENT, scale_for

MEASURE_LABELS = {
    STEP_TIME: "step time",
    "compute": "compute",
    COMMUNICATION: "communication",
    HIDDEN: "hidden communication",
    "exposed_communication": "exposed communication",
    WAITING: "waiting for late ranks",
    EXPOSED_TRANSFER: "exposed transfer",
    LATENESS_COST: "cost of its lateness to others",
    "memory_only": "copies alone",
    "idle": "idle",
}
PARTS = ("compute", "exposed_communication", "memory_only", "idle")
"""Measures that fill the step time without overlap."""
LEAST_SHARE = 0.005
"""Of the step time: smaller changes of a part are left to the tables."""
DERIVED = (STEP_TIME, COMMUNICATION, HIDDEN)
"""Measures that say nothing of one rank that the others do not."""
_COPIES = frozenset(cause.name.lower() for cause in CAUSE_LABELS if cause >= FIRST_COPY)


class Changes:
    """A ``comparison`` table, by row."""

    def __init__(self, table: Table) -> None:
        self.table = table
        values = np.concatenate([table["before_ns"], table["after_ns"], np.zeros(1)])
        self.scale = scale_for(int(np.nanmax(values)))

    def time(self, nanoseconds: float, *, signed: bool = False) -> str:
        """A time in the unit of the whole comparison, without it; ``-`` if unknown."""
        if np.isnan(nanoseconds):
            return ABSENT
        shown = self.scale.show(round(nanoseconds))
        return f"+{shown}" if signed and not shown.startswith("-") else shown

    def said(self, nanoseconds: float, *, signed: bool = True) -> str:
        """The same with its unit, for a sentence."""
        return f"{self.time(nanoseconds, signed=signed)} {self.scale.unit}"

    def of(self, area: Area) -> list[int]:
        """The rows of an area that are about all GPUs, by falling change."""
        chosen = (self.table["area"] == area) & (self.table["rank"] == NULL)
        found: list[int] = np.flatnonzero(chosen).tolist()
        return found

    def of_ranks(self) -> list[int]:
        """The rows about one rank."""
        found: list[int] = np.flatnonzero(self.table["rank"] != NULL).tolist()
        return found

    def name(self, row: int) -> str:
        return self.table.strings[int(self.table["name"][row])]

    def label(self, row: int) -> str:
        return MEASURE_LABELS[self.name(row)]

    def rank(self, row: int) -> int:
        return int(self.table["rank"][row])

    def change(self, row: int) -> float:
        return float(self.table["change_ns"][row])

    def judgement(self, row: int) -> Judgement:
        return Judgement(int(self.table["judgement"][row]))

    def beyond(self, row: int) -> bool:
        return self.judgement(row) is Judgement.BEYOND

    def measure(self, name: str, rank: int = NULL) -> int | None:
        code = self.table.strings.code(name)
        rows = np.flatnonzero(
            (self.table["area"] == Area.MEASURE)
            & (self.table["rank"] == rank)
            & (self.table["name"] == code)
        )
        return int(rows[0]) if rows.size else None


def verdict_sentences(changes: Changes) -> list[str]:
    """How the step time changed against the noise, and the largest changes beyond it."""
    row = step_time_row(changes.table)
    if row is None or np.isnan(changes.change(row)):
        return ["The step time cannot be compared: no step of one recording has a time."]
    return [_step_sentence(changes, row), _reason(changes, changes.change(row))]


def _step_sentence(changes: Changes, row: int) -> str:
    table = changes.table
    noise = changes.said(float(table["noise_ns"][row]), signed=False)
    before = changes.said(float(table["before_ns"][row]), signed=False)
    after = changes.said(float(table["after_ns"][row]), signed=False)
    judged = {
        Judgement.BEYOND: f"more than the noise of the steps ({noise})",
        Judgement.WITHIN: f"within the noise of the steps ({noise})",
        Judgement.UNKNOWN: "whether by chance is unknown: too few steps have a time",
    }
    return (
        f"A step takes {after} instead of {before}: {changes.said(changes.change(row))} "
        f"({table['change_pct'][row]:+.1f} %), {judged[changes.judgement(row)]}."
    )


def _reason(changes: Changes, total: float) -> str:
    """The parts of the step that changed beyond the noise, largest first, each with its reason."""
    parts = [row for name in PARTS if (row := changes.measure(name)) is not None]
    step = changes.measure(STEP_TIME)
    least = LEAST_SHARE * float(changes.table["before_ns"][step]) if step is not None else 0.0
    changed = [row for row in parts if changes.beyond(row) and abs(changes.change(row)) >= least]
    changed.sort(key=lambda row: -abs(changes.change(row)))
    # What went the step's way comes first; the rest of a near-zero sum is told too.
    changed.sort(key=lambda row: changes.change(row) * total < 0)
    if not changed:
        return (
            f"No part of the step changed by more than the noise and {100 * LEAST_SHARE:g} % "
            "of the step time."
        )
    said = [
        f"{changes.label(row)} {changes.said(changes.change(row))}{_within(changes, row)}"
        for row in changed[:3]
    ]
    return f"Changed by more than the noise: {'; '.join(said)}."


def _within(changes: Changes, row: int) -> str:
    details = list(_details(changes, row))
    return f" ({', '.join(details)})" if details else ""


def _details(changes: Changes, row: int) -> Iterator[str]:
    name, change = changes.name(row), changes.change(row)
    if name == "exposed_communication":
        for part in (WAITING, EXPOSED_TRANSFER):
            at = changes.measure(part)
            if at is not None and changes.beyond(at):
                yield f"{changes.label(at)} {changes.said(changes.change(at))}"
        late = [
            at
            for at in changes.of_ranks()
            if changes.name(at) == LATENESS_COST
            and changes.beyond(at)
            and changes.change(at) * change > 0
        ]
        if late:
            most = max(late, key=lambda at: abs(changes.change(at)))
            rank, cost = changes.rank(most), changes.said(changes.change(most))
            yield f"the lateness of rank {rank} costs {cost}"
        return
    if name in ("idle", "memory_only"):
        causes = [
            at
            for at in changes.of(Area.STALL)
            if (changes.name(at) in _COPIES) == (name == "memory_only")
            and changes.change(at) * change > 0
        ]
        if causes:
            best = max(causes, key=lambda at: abs(changes.change(at)))
            yield f"most: {cause_label(changes.name(best))} {changes.said(changes.change(best))}"
        return
    yield from _uneven(changes, name, change)


def _uneven(changes: Changes, name: str, mean: float) -> Iterator[str]:
    """The rank that a change is mostly about, if one differs from the mean beyond its noise."""
    found = [
        (abs(changes.change(row) - mean), row)
        for row in changes.of_ranks()
        if changes.name(row) == name
        and abs(changes.change(row)) > abs(mean)
        and changes.beyond(row)
        and abs(changes.change(row) - mean) > float(changes.table["noise_ns"][row])
    ]
    if found:
        row = max(found)[1]
        yield f"rank {changes.rank(row)}: {changes.said(changes.change(row))}"
