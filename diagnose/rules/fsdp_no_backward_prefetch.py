"""FSDP gathers each unit only when its backward pass needs it.

## Looks for
All-gathers of backward passes that FSDP2 launched for the unit at hand instead of the next one, and
that nothing hides.

## Why it costs time
The backward pass stands still while each unit's parameters arrive. Prefetched, they arrive while
the unit before is computed.

## How it decides
FSDP2 annotates its all-gathers and its prefetching. Of the backward all-gathers, without the first
of each step, which has nothing to hide behind, at least `min_not_prefetched_pct` are launched
outside of a prefetch, and those are exposed for `min_exposed_pct` of the step or more.

## Stays silent when
Gathers are prefetched, or hidden all the same; units keep their parameters after the forward pass.
FSDP1, which does not annotate this, is not looked at.

## What to do
Leave FSDP2's own prefetching on, or name the next units explicitly.

## Example
Twelve units, each gathered for 0.4 ms in the backward pass, none ahead: 4.4 ms of a 60 ms step.

## References
- PyTorch, FSDPModule.set_modules_to_backward_prefetch
- PyTorch, FullyShardedDataParallel: backward_prefetch (BACKWARD_PRE is the default)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When missing prefetch is worth naming."""

    min_exposed_pct: float = limit(3.0, "share of the step; worth a change of one line (judgement)")
    min_not_prefetched_pct: float = limit(50.0, "of the backward all-gathers; judgement")


class Late(NamedTuple):
    """Backward all-gathers of one GPU that were not prefetched."""

    number: float
    of_all_pct: float
    exposed_ns: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    if not is_marked(facts):
        return NotApplicable("no unit of FSDP2 is annotated")
    found = {gpu: late for gpu in facts.gpus if (late := _late_on(facts, gpu)) is not None}
    hit = {
        gpu: late
        for gpu, late in found.items()
        if facts.share_pct(late.exposed_ns) >= limits.min_exposed_pct
        and late.of_all_pct >= limits.min_not_prefetched_pct
    }
    if not hit:
        return Clean("backward all-gathers are prefetched, or cost little")
    return (_symptom(facts, tuple(hit), max(hit.values(), key=lambda late: late.exposed_ns)),)


def _late_on(facts: Facts, gpu: Gpu) -> Late | None:
    gathers = gathers_on(facts, gpu)
    # The first of a backward pass has nothing to hide behind.
    later = [
        now
        for before, now in pairwise(gathers)
        if now.in_backward and before.in_backward and before.step_row == now.step_row
    ]
    late = [gather for gather in later if not gather.prefetched]
    if not late:
        return None
    steps = facts.steps[gpu].number
    exposed = sum(gather.exposed_ns for gather in late) / steps
    return Late(len(late) / steps, 100 * len(late) / len(later), exposed)


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], late: Late) -> Symptom:
    share = facts.share_pct(late.exposed_ns)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: {late.number:.0f} all-gathers {facts.a_step} "
            f"of FSDP's backward pass are launched only when their unit is due; "
            f"{duration(late.exposed_ns)} ({percent(share)}) of them is exposed."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("exposed_ns", f"exposed transfer {facts.a_step}", late.exposed_ns),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
            Evidence(
                "not_prefetched_pct",
                "of backward all-gathers, not prefetched",
                late.of_all_pct,
                "min_not_prefetched_pct",
            ),
        ),
        cost=Cost(late.exposed_ns, "exposed all-gathers that could be prefetched"),
        advice=(
            Fix(
                "FSDP2: leave its own prefetching on, or name for each unit the one before it.",
                "layers[i].set_modules_to_backward_prefetch([layers[i - 1]])",
            ),
            Fix("FSDP1.", "FullyShardedDataParallel(m, backward_prefetch=BACKWARD_PRE)"),
        ),
        caveats=("Each unit that is gathered ahead needs its memory earlier.",),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
    explains=("exposed-communication", "late-collective-launch"),
)
