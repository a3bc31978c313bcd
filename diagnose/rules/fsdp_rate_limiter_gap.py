"""FSDP's rate limiter lets the GPU run dry.

## Looks for
Waits of FSDP1's rate limiter during which the GPU runs out of work.

## Why it costs time
The limiter makes the host wait until an earlier unit's memory is free, so that not too many are
gathered ahead. If the host's lead is short, the next launches then come too late.

## How it decides
FSDP1 annotates the wait as `FullyShardedDataParallel.rate_limiter`. It fires where GPU idle time
that these waits cause takes `min_idle_pct` of the step or more. The wait itself is no loss.

## Stays silent when
The GPU stays busy during the waits, which is what they are for, or there is no limiter.

## What to do
Switch it off, if memory allows.

## Example
A small model on FSDP1: the limiter waits for 0.5 ms in each of 12 units, and the GPU idles for
0.1 ms after each: 1.2 ms of a 20 ms step.

## References
- PyTorch, FullyShardedDataParallel: limit_all_gathers
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
from diagnose.rules._spans import inside, spans_where
from diagnose.trace import Gpu, Table

_LIMITER = "FullyShardedDataParallel.rate_limiter"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the limiter is worth naming."""

    min_idle_pct: float = limit(2.0, "share of the step; worth a change of one line (judgement)")


class Waits(NamedTuple):
    """Waits of one process's limiter, per step."""

    number: float
    length_ns: float
    idle_ns: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    limiter = spans_where(facts, lambda text: text == _LIMITER)
    if not len(limiter):
        return NotApplicable("no rate limiter of FSDP1 is annotated")
    found = {gpu: _waits_of(facts, gpu, limiter) for gpu in facts.gpus}
    dry = {
        gpu: waits
        for gpu, waits in found.items()
        if facts.share_pct(waits.idle_ns) >= limits.min_idle_pct
    }
    if not dry:
        return Clean("the GPU stays busy while the limiter waits")
    return (_symptom(facts, tuple(dry), max(dry.values(), key=lambda waits: waits.idle_ns)),)


def _waits_of(facts: Facts, gpu: Gpu, limiter: Table) -> Waits:
    """Waits inside of the limiter's spans, during the marks of the steps."""
    waits, marks = facts.table("host_waits"), facts.trace.steps
    waits = waits.take(waits["source"] == gpu.source)
    marks = marks.take(marks["source"] == gpu.source)
    begun = waits["start_ns"]
    within = inside(limiter, gpu.source, begun) & inside(marks, gpu.source, begun)
    return Waits(
        *(
            float(column[within].sum()) / max(len(marks), 1)
            for column in (np.ones(len(waits)), waits["length_ns"], waits["idle_ns"])
        )
    )


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], waits: Waits) -> Symptom:
    share = facts.share_pct(waits.idle_ns)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: the GPU idles for {duration(waits.idle_ns)} "
            f"{facts.a_step} ({percent(share)}) because FSDP's rate limiter holds the host up "
            f"{waits.number:.0f} times."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("idle_ns", f"idle after the limiter's waits {facts.a_step}", waits.idle_ns),
            Evidence("idle_pct", "share of the step", share, "min_idle_pct"),
            Evidence("wait_ns", "the host waits (no loss by itself)", waits.length_ns),
            Evidence("num_waits", f"waits {facts.a_step}", waits.number),
        ),
        cost=Cost(waits.idle_ns, "GPU idle that the limiter's waits cause"),
        advice=(
            Fix(
                "Switch the limiter off.",
                "FullyShardedDataParallel(module, limit_all_gathers=False)",
            ),
        ),
        caveats=("Where memory is tight it is needed: without it the allocator thrashes.",),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
    explains=("host-sync",),
)
