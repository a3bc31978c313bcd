"""Python's garbage collector stops the host, and the GPU runs dry.

## Looks for
GPU idle time during which the launching process collected garbage.

## Why it costs time
A full collection visits every object of the process: tens to hundreds of milliseconds in a large
one. Each rank collects at another moment, so with many ranks some rank is nearly always late, and
all others wait for it.

## How it decides
Collections are seen as spans: from this tool's recorder, from Python stacks, or an explicit
`gc.collect()`. A step is hit if the GPU idles for them for `min_idle_pct` of a step or more. It
fires where `min_of_steps_pct` of the steps of a rank or more are hit.

## Stays silent when
Collections are hidden by the host's lead, or the recording holds no spans of them: then their time
counts as Python's.

## What to do
Switch the automatic collection off, and collect on all ranks together every so many steps.

## Example
One collection of 180 ms on one of 512 ranks in every third step: the job loses 1.5 % of its time.

## References
- pytorch/torchtitan issues 148 and 696
- Python documentation, module gc: disable, collect, freeze
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    Outcome,
    Rule,
    Span,
    Symptom,
    Thresholds,
    Where,
    counted,
    duration,
    limit,
    percent,
    who,
)
from diagnose.trace import Gpu

_MOST_SPANS = 5


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When collections are worth naming."""

    min_idle_pct: float = limit(1.0, "of a step, for a step to be hit; the smallest worth naming")
    min_of_steps_pct: float = limit(1.0, "of the steps; 512 ranks multiply it (torchtitan)")


class Paused(NamedTuple):
    """Idle time of one GPU while garbage was collected."""

    hit_steps: int
    per_step_ns: float
    longest_ns: float
    spans: tuple[Span, ...]


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    found = {gpu: _paused(facts, limits, gpu) for gpu in facts.gpus}
    hit = {
        gpu: paused
        for gpu, paused in found.items()
        if 100 * paused.hit_steps / facts.steps[gpu].number >= limits.min_of_steps_pct
        and paused.hit_steps
    }
    if not hit:
        return Clean("no GPU idles for a garbage collection")
    return (_symptom(facts, hit),)


def _paused(facts: Facts, limits: Limits, gpu: Gpu) -> Paused:
    stalls = facts.table("stalls")
    rows = facts.on(stalls, gpu) & (stalls["cause"] == Cause.GARBAGE_COLLECTION)
    own = stalls.take(rows)
    least = limits.min_idle_pct / 100 * facts.steps[gpu].step_ns
    hit = [
        step
        for step in facts.steps[gpu].rows
        if own["length_ns"][own["step_row"] == step].sum() >= least
    ]
    longest = np.argsort(-own["length_ns"])[:_MOST_SPANS]
    spans = zip(own["start_ns"][longest].tolist(), own["end_ns"][longest].tolist(), strict=True)
    return Paused(
        len(hit),
        facts.per_step(stalls, "length_ns", gpu, rows),
        float(own["length_ns"].max(initial=0)),
        tuple(Span(gpu.source, start, end) for start, end in spans),
    )


def _symptom(facts: Facts, hit: dict[Gpu, Paused]) -> Symptom:
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: hit[gpu].per_step_ns)
    paused, steps = hit[worst], facts.steps[worst].number
    share = facts.share_pct(paused.per_step_ns)
    return Symptom(
        sentence=(
            f"Python's garbage collector leaves the GPU of {who(facts.trace, gpus)} idle in "
            f"{paused.hit_steps} of {counted(steps, 'step')}, {duration(paused.longest_ns)} at "
            f"the longest: {duration(paused.per_step_ns)} a step ({percent(share)})."
        ),
        where=Where(gpus=gpus, spans=paused.spans),
        affects=facts.gpus,
        evidence=(
            Evidence("idle_ns", "idle for it, a step", paused.per_step_ns),
            Evidence("idle_pct", "share of the step", share, "min_idle_pct"),
            Evidence("longest_ns", "longest", paused.longest_ns),
            Evidence(
                "of_steps_pct", "of the steps", 100 * paused.hit_steps / steps, "min_of_steps_pct"
            ),
        ),
        cost=Cost(paused.per_step_ns, "GPU idle while garbage is collected"),
        advice=(
            Fix("Switch the automatic collection off.", "gc.disable()"),
            Fix(
                "Collect the young generations on all ranks in the same step, every so many.",
                "if step % 50 == 0: gc.collect(1)",
            ),
            Fix("Take what lives as long as the job out of its sight.", "gc.freeze()"),
        ),
        caveats=("Reference cycles then fill the host's memory between collections: watch it.",),
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
    changes=("no-garbage-collection",),
    explains=("straggler-rank", "launch-bound"),
)
