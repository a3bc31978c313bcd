"""RCCL's kernels share hardware queues with compute on an AMD GPU.

## Looks for
Collectives on streams of their own that nevertheless hardly overlap with compute, on ROCm, with
neither high-priority streams for RCCL nor another number of hardware queues.

## Why it costs time
A process has four hardware queues for each GPU, and streams are dealt out to them in turn. A
collective that shares a queue with compute waits until that is done.

## How it decides
Exposed communication is `min_exposed_pct` of the step or more, less than `max_hidden_pct` of all
communication is hidden, no collective runs on a stream that computes, and neither
`TORCH_NCCL_HIGH_PRIORITY` nor `GPU_MAX_HW_QUEUES` is noted as set.

## Stays silent when
Communication overlaps, collectives share the stream of compute (collective-on-compute-stream), or
one of the variables is set.

## What to do
Let RCCL use high-priority streams, which get queues of their own, and two queues for the rest.

## Example
FSDP on eight MI300X: 5 % of the communication is hidden, though it has a stream of its own.

## References
- ROCm, workload optimization: FSDP and hardware queues
- HIP documentation, GPU_MAX_HW_QUEUES
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
from diagnose.schema import Activity
from diagnose.trace import Gpu

_OFF = ("", "0", "false", "no", "off", "n", "f")


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When missing overlap is worth naming."""

    min_exposed_pct: float = limit(5.0, "of the step; the alarm level of published trace tools")
    max_hidden_pct: float = limit(20.0, "of communication; little enough to suspect a queue")


class Shares(NamedTuple):
    """Communication of one GPU, per step."""

    exposed_ns: float
    hidden_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs whose collectives hardly overlap."""
    first = facts.variables("TORCH_NCCL_HIGH_PRIORITY")
    tuned = {source for source, text in first.items() if text.strip().lower() not in _OFF}
    tuned |= facts.variables("GPU_MAX_HW_QUEUES").keys()
    steps = facts.table("breakdown")
    hit = {}
    for gpu in facts.gpus:
        exposed = facts.per_step(steps, "exposed_communication_ns", gpu)
        hidden = facts.per_step(steps, "overlapped_ns", gpu)
        total = exposed + hidden
        shares = Shares(exposed, 100 * hidden / total if total else 100.0)
        if (
            gpu.source not in tuned
            and facts.share_pct(exposed) >= limits.min_exposed_pct
            and shares.hidden_pct < limits.max_hidden_pct
            and _on_own_streams(facts, gpu)
        ):
            hit[gpu] = shares
    if not hit:
        return Clean("communication overlaps, or shares the stream of compute, or queues were set")
    return (_symptom(facts, hit),)


def _on_own_streams(facts: Facts, gpu: Gpu) -> bool:
    ops = facts.operations_per_step(gpu)
    compute = np.unique(ops["stream"][ops["activity"] == Activity.COMPUTE])
    communication = ops["stream"][ops["activity"] == Activity.COMMUNICATION]
    return bool(len(compute)) and not np.isin(communication, compute).any()


def _symptom(facts: Facts, hit: dict[Gpu, Shares]) -> Symptom:
    gpus = tuple(hit)
    worst = max(hit.values(), key=lambda one: one.exposed_ns)
    share = facts.share_pct(worst.exposed_ns)
    return Symptom(
        sentence=(
            f"Communication of {who(facts.trace, gpus)} has streams of its own, and still "
            f"{percent(worst.hidden_pct)} of it is hidden: {duration(worst.exposed_ns)} "
            f"{facts.a_step} ({percent(share)}) are exposed. It may share a hardware queue."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("exposed_ns", f"exposed communication {facts.a_step}", worst.exposed_ns),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
            Evidence("hidden_pct", "of communication hidden", worst.hidden_pct, "max_hidden_pct"),
        ),
        cost=Cost(worst.exposed_ns, "exposed communication"),
        advice=(
            Fix(
                "Give RCCL queues of its own, and measure.",
                "export TORCH_NCCL_HIGH_PRIORITY=1 GPU_MAX_HW_QUEUES=2",
            ),
        ),
        caveats=(
            "With many independent streams two queues are too few.",
            "Collectives whose result is needed at once cannot overlap whatever the queues.",
            "GPU_MAX_HW_QUEUES may be set without having been noted.",
        ),
        no_gain="no replayed change models hardware queues",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
