"""Buffers are broadcast before each forward pass.

## Looks for
Broadcasts that DistributedDataParallel launches at the beginning of its forward pass, step after
step.

## Why it costs time
The forward pass waits for them, and most models' buffers (of BatchNorm, say) need no such
agreement.

## How it decides
Broadcasts launched inside of `DistributedDataParallel.forward` before the backward pass. It fires
where their exposed transfer takes `min_exposed_pct` of the step or more, in `min_of_steps_pct` of
the steps or more.

## Stays silent when
There are none, or they cost little. Broadcasts outside of DistributedDataParallel are others'.

## What to do
Switch it off where the ranks' buffers need not be equal.

## Example
A ResNet whose 106 buffers are broadcast in three messages before each forward pass: 0.3 ms of a
20 ms step.

## References
- PyTorch, DistributedDataParallel: broadcast_buffers, forward_sync_buffers (2.13)
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
from diagnose.rules._messages import messages_on
from diagnose.rules._spans import ddp_forwards, inside
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When broadcasts are worth naming."""

    min_exposed_pct: float = limit(1.0, "share of the step; the smallest effect worth naming")
    min_of_steps_pct: float = limit(50.0, "of the steps; judgement")


class Broadcasts(NamedTuple):
    """Broadcasts at the beginning of one GPU's forward passes, per step."""

    number: float
    exposed_ns: float
    of_steps_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    if not len(ddp_forwards(facts)):
        return NotApplicable("no forward pass of DistributedDataParallel is annotated")
    found = {gpu: _broadcasts_on(facts, gpu) for gpu in facts.gpus}
    hit = {
        gpu: one
        for gpu, one in found.items()
        if facts.share_pct(one.exposed_ns) >= limits.min_exposed_pct
        and one.of_steps_pct >= limits.min_of_steps_pct
    }
    if not hit:
        return Clean("no buffers are broadcast, or they cost little")
    return (_symptom(facts, tuple(hit), max(hit.values(), key=lambda one: one.exposed_ns)),)


def _broadcasts_on(facts: Facts, gpu: Gpu) -> Broadcasts:
    messages = messages_on(facts, gpu)
    rows = messages.is_kind("broadcast") & ~messages.in_backward
    rows &= inside(ddp_forwards(facts), gpu.source, messages.launch_ns)
    steps = np.unique(messages.step_row[rows]).size
    return Broadcasts(
        float(rows.sum()) / messages.steps,
        messages.per_step(messages.exposed_ns, rows),
        100 * steps / messages.steps,
    )


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], one: Broadcasts) -> Symptom:
    share = facts.share_pct(one.exposed_ns)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: broadcasts of buffers ({one.number:.0f} "
            f"{facts.a_step}) hold the forward pass up for {duration(one.exposed_ns)} "
            f"{facts.a_step} ({percent(share)})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_broadcasts", f"broadcasts {facts.a_step}", one.number),
            Evidence("exposed_ns", f"exposed transfer {facts.a_step}", one.exposed_ns),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
            Evidence("of_steps_pct", "of the steps", one.of_steps_pct, "min_of_steps_pct"),
        ),
        cost=Cost(one.exposed_ns, "exposed broadcasts of buffers"),
        advice=(
            Fix(
                "PyTorch 2.13 and newer.",
                "DistributedDataParallel(model, forward_sync_buffers=False)",
            ),
            Fix("Older.", "DistributedDataParallel(model, broadcast_buffers=False)"),
        ),
        caveats=("BatchNorm's statistics may have to be equal on all ranks.",),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
)
