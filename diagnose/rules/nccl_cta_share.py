"""Communication occupies many multiprocessors, or too few.

## Looks for
Collectives whose blocks can occupy a large part of the multiprocessors while the compute beside
them is slowed; and large collectives in so few blocks that they cannot fill the links.

## Why it costs time
Each block of a communication kernel holds a multiprocessor for as long as the collective runs, its
waiting included; the compute beside it has to do with the rest. Each block also moves only so many
bytes in a second: a few of them are slower than the links.

## How it decides
Many, by the analysis `contention_causes`, for each kind of collective and number of blocks: more
than `min_share_pct` of the multiprocessors, with compute beside it taking `min_slowdown_ratio`
times as long as alone or more, its 95 % interval above 1, measured on `min_coverage_pct` of it or
more.

Few, for each kind of collective and group: messages of `min_message_mib` or more run with at most
`max_num_few_blocks` blocks, expose `min_exposed_pct` of the step or more, and `min_num_collectives`
of them with neither compute nor other communication beside them reach, in the median, less than
`max_of_measured_pct` of what nccl-tests measured for it (`--nccl-tests FILE`, as in slow-network;
without it of `measured_gb_per_s`, to be set), or without either less than `max_of_link_pct` of the
nominal `link_gb_per_s` that an environment file of the recording names.

## Stays silent when
Nothing is slowed, or too little of the overlapped compute also ran alone; and where few blocks are
hidden or as fast as the links. Where they are exposed and nothing says what the links can do, it is
listed as not checked.

## What to do
Let NCCL use fewer (or more) blocks, measure, and keep the value only if the step gets shorter.

## Example
Reduce-scatters of 63 blocks on 66 multiprocessors, beside which compute takes 5.4 times as long.
All-reduces of one block, because of a forgotten `NCCL_MAX_CTAS=1`, at a tenth of the bandwidth.

## References
- NCCL user guide, environment variables: NCCL_MAX_CTAS, NCCL_MIN_CTAS, NCCL_CTA_POLICY
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
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Where,
    limit,
    percent,
)
from diagnose.rules._few_blocks import FewLimits, few_blocks
from diagnose.rules._network import UNKNOWN_SPEED
from diagnose.trace import Table


@dataclass(frozen=True, kw_only=True)
class Limits(FewLimits):
    """When the multiprocessors of communication are worth naming."""

    min_share_pct: float = limit(15.0, "of the multiprocessors (judgement)")
    min_slowdown_ratio: float = limit(1.10, "of compute beside it (judgement)")
    min_coverage_pct: float = limit(30.0, "of that compute that was measured (judgement)")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each kind of collective with many blocks, and for each with few."""
    causes = facts.find("contention_causes")
    many = () if causes is None else tuple(_many(causes, limits))
    few = few_blocks(facts, limits)
    if many or few:
        return (*many, *(few or ()))
    if few is None:
        because = f"large collectives run in few blocks, and {UNKNOWN_SPEED.because}"
        return NotJudged(because, UNKNOWN_SPEED.remedy)
    # Without that table this ends the rule as not judged, with its reason.
    facts.table("contention_causes")
    return ()


def _many(causes: Table, limits: Limits) -> Iterator[Symptom]:
    """For each kind of collective its costliest number of blocks."""
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
            f"{percent(float(share))}), and compute beside it takes "
            f"{slowdown:.2f} times as long."
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
