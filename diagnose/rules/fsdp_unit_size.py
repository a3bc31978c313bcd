"""Units of FSDP compute too little to hide the next unit's all-gather.

## Looks for
Units whose compute is shorter than the transfer of the next unit's parameters, in the forward pass.

## Why it costs time
While a unit is computed the next one is gathered. What the transfer takes longer, the GPU waits.

## How it decides
FSDP2 annotates the unit of each all-gather. The compute launched between the all-gathers of two
units is what the second one can hide behind. It fires where the transfer is longer for
`min_of_units_pct` of the units or more, and that leaves `min_exposed_pct` of the step exposed.

## Stays silent when
Transfers are shorter than the compute before them, even if they are exposed for another reason.
The first unit of a pass has nothing before it and does not count.

## What to do
Wrap whole blocks, merge small ones, give each rank a larger micro-batch, or shard within a machine
alone where the all-gather crosses machines.

## Example
Each linear layer is a unit of its own: 0.15 ms of compute, 0.4 ms of transfer, 96 times.

## References
- PyTorch, fully_shard: how units communicate
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from diagnose.intervals import union_length
from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    NotApplicable,
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
from diagnose.rules._fsdp import gathers_on, is_marked
from diagnose.schema import Activity
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When units are too small."""

    min_of_units_pct: float = limit(50.0, "of the units; judgement")
    min_exposed_pct: float = limit(1.0, "share of the step; the smallest effect worth naming")


class Small(NamedTuple):
    """Units of one GPU whose compute is shorter than the next transfer."""

    of_units_pct: float
    transfer_ns: float
    """Medians of these units."""
    compute_ns: float
    beyond_ns: float
    """What transfers take longer and is exposed, per step."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    if not is_marked(facts):
        return NotApplicable("no unit of FSDP2 is annotated")
    found = {gpu: small for gpu in facts.gpus if (small := _small_on(facts, gpu)) is not None}
    hit = {
        gpu: small
        for gpu, small in found.items()
        if small.of_units_pct >= limits.min_of_units_pct
        and facts.share_pct(small.beyond_ns) >= limits.min_exposed_pct
    }
    if not hit:
        return Clean("units compute long enough to hide the next all-gather")
    return (_symptom(facts, tuple(hit), max(hit.values(), key=lambda small: small.beyond_ns)),)


def _small_on(facts: Facts, gpu: Gpu) -> Small | None:
    ops = facts.operations_per_step(gpu)
    ops = ops.take((ops["activity"] == Activity.COMPUTE) & (ops["launch_row"] >= 0))
    launched = facts.trace.launches["start_ns"][ops["launch_row"]]
    transfers, computes, beyond, pairs = [], [], 0.0, 0
    for before, now in pairwise(gathers_on(facts, gpu)):
        if before.in_backward or now.in_backward or before.step_row != now.step_row:
            continue
        pairs += 1
        rows = (launched >= before.launch_ns) & (launched < now.launch_ns)
        compute = union_length(ops["start_ns"][rows], ops["end_ns"][rows])
        if now.transfer_ns > compute:
            transfers.append(now.transfer_ns)
            computes.append(compute)
            beyond += min(now.transfer_ns - compute, now.exposed_ns)
    if not transfers:
        return None
    return Small(
        100 * len(transfers) / pairs,
        float(np.median(transfers)),
        float(np.median(computes)),
        beyond / facts.steps[gpu].number,
    )


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], small: Small) -> Symptom:
    share = facts.share_pct(small.beyond_ns)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: {percent(small.of_units_pct)} of FSDP's units "
            f"compute {duration(small.compute_ns)} at the median while the next one is gathered "
            f"for {duration(small.transfer_ns)}: {duration(small.beyond_ns)} {facts.a_step} "
            f"({percent(share)}) cannot be hidden."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("of_units_pct", "of the units", small.of_units_pct, "min_of_units_pct"),
            Evidence("transfer_ns", "all-gather, median of these", small.transfer_ns),
            Evidence("compute_ns", "compute before it, median", small.compute_ns),
            Evidence("beyond_ns", f"transfer beyond compute {facts.a_step}", small.beyond_ns),
            Evidence("beyond_pct", "share of the step", share, "min_exposed_pct"),
        ),
        cost=Cost(small.beyond_ns, "all-gather longer than the compute before it"),
        advice=(
            Fix("Wrap whole blocks instead of single layers.", "fully_shard(block)"),
            Fix("Merge several small blocks into one unit.", "fully_shard([block_a, block_b])"),
            Fix("Give each rank a larger micro-batch: compute grows, the transfer does not."),
            Fix(
                "Where the group spans machines: shard within each machine, replicate across.",
                "fully_shard(module, mesh=mesh_2d)",
            ),
        ),
        caveats=(
            "Larger units need more memory at once, and one giant unit hides nothing at all.",
        ),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
