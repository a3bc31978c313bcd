"""Hiding communication costs about as much as it saves.

## Looks for
Contention that eats most of what overlap hides, or more than that.

## Why it costs time
Overlap pays only where the slowdown of the compute is smaller than the communication it hides.

## How it decides
By the analysis `overlap_balance` over the timed steps of a GPU: the extra time of compute is
`min_eaten_ratio` of the hidden communication or more, and was measured on `min_coverage_pct` of
the overlapped compute or more, where `min_hidden_pct` of the step or more is hidden at all. Above
1, overlap loses.

## Stays silent when
Little communication is hidden, contention is small, or too little of it could be measured.

## What to do
Give the collectives fewer multiprocessors first; then prefetch less or run them in sequence, and
compare a recording of each.

## Example
2.8 ms a step hidden, 2.3 ms of extra compute: 84 % of the gain is eaten.

## References
- arXiv 2507.03114, on what overlap gains and costs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    who,
)
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the balance of overlap is worth naming, and when it is known well enough."""

    min_eaten_ratio: float = limit(0.7, "extra compute time over hidden communication (judgement)")
    min_coverage_pct: float = limit(30.0, "of overlapped compute that was measured (judgement)")
    min_hidden_pct: float = limit(1.0, "share of the step; smallest effect worth naming")


class Balance(NamedTuple):
    """Means over the timed steps."""

    hidden_ns: float
    contention_ns: float
    contention_low_ns: float
    coverage_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs on which overlap does not pay."""
    found = {gpu: one for gpu in facts.gpus if (one := _balance(facts, gpu)) is not None}
    hit = {
        gpu: one
        for gpu, one in found.items()
        if one.coverage_pct >= limits.min_coverage_pct
        and facts.share_pct(one.hidden_ns) >= limits.min_hidden_pct
        and one.contention_ns >= limits.min_eaten_ratio * one.hidden_ns
        and one.contention_low_ns > 0
    }
    if not hit:
        return Clean("what overlap hides is worth what it costs, as far as measured")
    return (_symptom(facts, hit),)


def _balance(facts: Facts, gpu: Gpu) -> Balance | None:
    table, steps = facts.table("overlap_balance"), facts.steps[gpu]
    rows = facts.on(table, gpu) & table.known("contention_ns") & (table["hidden_ns"] > 0)
    rows &= np.isin(table["step_row"], steps.rows) if steps.timed else ~table.known("step_row")
    if not rows.any():
        return None
    # By the time hidden: coverage is a share of overlapped kernel time.
    weight = table["hidden_ns"][rows]
    return Balance(
        hidden_ns=float(weight.sum()) / steps.number,
        contention_ns=float(table["contention_ns"][rows].sum()) / steps.number,
        contention_low_ns=float(table["contention_low_ns"][rows].sum()) / steps.number,
        coverage_pct=float(np.average(table["coverage_pct"][rows], weights=weight)),
    )


def _symptom(facts: Facts, hit: dict[Gpu, Balance]) -> Symptom:
    worst = max(hit.values(), key=lambda one: one.contention_ns - one.hidden_ns)
    ratio = worst.contention_ns / worst.hidden_ns
    lost = worst.contention_ns - worst.hidden_ns
    return Symptom(
        sentence=(
            f"Overlap hides {duration(worst.hidden_ns)} of communication {facts.a_step} on "
            f"{who(facts.trace, tuple(hit))} and slows the compute by "
            f"{duration(worst.contention_ns)}: {percent(100 * ratio)} of the gain is eaten."
        ),
        where=Where(gpus=tuple(hit)),
        evidence=(
            Evidence("eaten_ratio", "contention / hidden", ratio, "min_eaten_ratio"),
            Evidence("hidden_ns", f"communication hidden {facts.a_step}", worst.hidden_ns),
            Evidence("contention_ns", f"extra compute time {facts.a_step}", worst.contention_ns),
            Evidence("coverage_pct", "measured", worst.coverage_pct, "min_coverage_pct"),
        ),
        cost=Cost(lost, "contention beyond what overlap hides", True) if lost > 0 else None,
        advice=(
            Fix("Let NCCL use fewer multiprocessors, and record again.", "NCCL_MAX_CTAS=16"),
            Fix("Then prefetch less, or run the collectives in sequence."),
            Fix("Compare the recordings.", "diagnose compare BEFORE AFTER"),
        ),
        caveats=(
            "Ranks that share a GPU, or own a slice of one, exaggerate contention.",
            "Both figures are of this job as it is: other sizes may tip the balance.",
        ),
        no_gain="" if lost > 0 else "overlap still saves more than it costs",
    )


RULE = Rule(
    check=check,
    area="contention",
    confidence="medium",
    needs=(Need.COMMUNICATION,),
    thresholds=Limits(),
)
