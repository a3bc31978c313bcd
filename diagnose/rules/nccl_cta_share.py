"""Communication occupies many multiprocessors.

## Looks for
Collectives whose blocks can occupy a large part of the multiprocessors while the compute beside
them is slowed.

## Why it costs time
Each block of a communication kernel holds a multiprocessor for as long as the collective runs, its
waiting included; the compute beside it has to do with the rest.

## How it decides
By the analysis `contention_causes`, for each kind of collective and number of blocks: more than
`min_share_pct` of the multiprocessors, with compute beside it slowed `min_slowdown_ratio` times or
more, its 95 % interval above 1, measured on `min_coverage_pct` of it or more.

## Stays silent when
Nothing is slowed, or too little of the overlapped compute also ran alone.

## What to do
Let NCCL use fewer blocks, measure, and keep the value only if the step gets shorter.

## Example
Reduce-scatters of 63 blocks on 66 multiprocessors, beside which compute takes 5.4 times as long.

## References
- NCCL user guide, environment variables: NCCL_MAX_CTAS, NCCL_CTA_POLICY
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.rules import (
    Evidence,
    Facts,
    Fix,
    Need,
    Rule,
    Symptom,
    Thresholds,
    Where,
    limit,
    percent,
)
from diagnose.trace import Table


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the multiprocessors of communication are worth naming."""

    min_share_pct: float = limit(15.0, "of the multiprocessors (judgement)")
    min_slowdown_ratio: float = limit(1.10, "of compute beside it (judgement)")
    min_coverage_pct: float = limit(30.0, "of that compute that was measured (judgement)")


def check(facts: Facts, limits: Limits) -> Iterator[Symptom]:
    """One finding for each kind of collective: its costliest number of blocks."""
    causes = facts.table("contention_causes")
    told = causes["multiprocessors_pct"] > limits.min_share_pct
    told &= causes["slowdown"] >= limits.min_slowdown_ratio
    told &= causes["slowdown_low"] > 1
    told &= causes["coverage_pct"] >= limits.min_coverage_pct
    told &= causes["collective"] >= 0
    rows = np.flatnonzero(told)
    for kind in np.unique(causes["collective"][rows]).tolist():
        mine = rows[causes["collective"][rows] == kind]
        yield _symptom(causes, int(mine[causes["overlapped_ns"][mine].argmax()]))


def _symptom(causes: Table, row: int) -> Symptom:
    kind = causes.strings[int(causes["collective"][row])]
    blocks, number = int(causes["num_blocks"][row]), int(causes["num_multiprocessors"][row])
    share, slowdown = causes["multiprocessors_pct"][row], causes["slowdown"][row]
    return Symptom(
        sentence=(
            f"{kind} runs with {blocks} blocks on {number} multiprocessors (up to "
            f"{percent(float(share))}), and compute beside it is {slowdown:.2f} times slower."
        ),
        where=Where(),
        evidence=(
            Evidence("multiprocessors_pct", "most it can be on", float(share), "min_share_pct"),
            Evidence("num_blocks", "blocks of the collective", float(blocks)),
            Evidence("num_multiprocessors", "multiprocessors of the GPU", float(number)),
            Evidence("slowdown_ratio", "beside / alone", float(slowdown), "min_slowdown_ratio"),
            Evidence(
                "coverage_pct", "measured", float(causes["coverage_pct"][row]), "min_coverage_pct"
            ),
        ),
        advice=(
            Fix("Let NCCL use fewer blocks, and compare.", f"NCCL_MAX_CTAS={max(blocks // 2, 1)}"),
            Fix("NCCL 2.27 and later: let it choose few itself.", "NCCL_CTA_POLICY=EFFICIENCY"),
        ),
        caveats=(
            "With fewer blocks the communication takes longer, and more of it may be exposed.",
            "NCCL advises against fixed values in production; small messages use fewer anyway.",
            "The share is what blocks can be on, not how much of the slowdown it causes.",
        ),
        no_gain="how much of the slowdown goes with the blocks is not known until it is tried",
        subject=str(kind),
    )


RULE = Rule(
    check=check,
    area="contention",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.NVIDIA),
    thresholds=Limits(),
)
