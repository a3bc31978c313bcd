"""Input is late: the GPU idles before a step.

## Looks for
GPU idle time during which the host waited for input: in a data loader's `__next__`, or, where no
loader was recorded, with no operator and no call for 1 ms or more before the step's first launch.
Where 1 MiB or more was copied to the host just before, the host is taken to work on that (a
checkpoint), not to wait for input.

## Why it costs time
Until the batch is there the host has nothing to launch, and the GPU stands still.

## How it decides
By GPU idle time, not by how long loading took: a loader that is slow while the GPU still has work
queued costs nothing. It fires where idle time whose cause is input (`stalls`) reaches
`min_idle_pct` of the step. With a recorded loader the confidence is high, else medium: then all
that is known is that the host was away before the step.

## Stays silent when
The host's lead over the GPU hides the loading, or the idle time has another cause.

## What to do
Load in worker processes and ahead of time; move decoding and augmentation out of the main process.

## Example
A dataset that sleeps 30 ms a batch, with two batches queued: the GPU still idles 22 ms of a step
of 60 ms.

## References
- PyTorch, torch.utils.data.DataLoader
- TraceML, input-bound steps (warning at 10 %)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.rules import (
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
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
    """When late input is worth naming."""

    min_idle_pct: float = limit(3.0, "idle share of the step; worth a change of one line")


def check(facts: Facts, limits: Limits) -> Iterator[Symptom]:
    """One finding for all GPUs that wait for input."""
    stalls = facts.table("stalls")
    by_input = stalls["cause"] == Cause.DATA_LOADING
    idle = {gpu: facts.per_step(stalls, "length_ns", gpu, by_input) for gpu in facts.gpus}
    hit = tuple(g for g in facts.gpus if facts.share_pct(idle[g]) >= limits.min_idle_pct)
    if hit:
        worst = max(hit, key=lambda gpu: idle[gpu])
        sure = by_input & (stalls["confidence"] == Confidence.HIGH)
        known = facts.per_step(stalls, "length_ns", worst, sure)
        rows = np.flatnonzero(by_input & facts.on(stalls, worst))
        longest = int(stalls["length_ns"][rows].max())
        yield _symptom(facts, hit, (idle[worst], known, longest))


def _symptom(facts: Facts, hit: tuple[Gpu, ...], figures: tuple[float, float, int]) -> Symptom:
    idle, known, longest = figures
    share = facts.share_pct(idle)
    recorded = known >= idle / 2
    doing = (
        "the host waits for the data loader"
        if recorded
        else "the host runs no operator and no call before the step (no data loader was recorded)"
    )
    return Symptom(
        sentence=(
            f"The GPU of {who(facts.trace, hit)} idles {duration(idle)} {facts.a_step} "
            f"({percent(share)}) while {doing}."
        ),
        where=Where(gpus=hit),
        evidence=(
            Evidence("idle_ns", f"GPU idle {facts.a_step}, waiting for input", idle),
            Evidence("idle_pct", "share of the step", share, "min_idle_pct"),
            Evidence("loader_idle_ns", "of it, within a recorded data loader", known),
            Evidence("longest_idle_ns", "longest single wait", float(longest)),
        ),
        cost=Cost(idle, "GPU idle time that late input caused"),
        advice=(
            Fix(
                "Load in worker processes that stay alive and run ahead.",
                "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True)",
            ),
            Fix("Copy from pinned memory without blocking.", "DataLoader(..., pin_memory=True)"),
            Fix(
                "If workers are busy all the time: a format that decodes faster, augmentation "
                "ahead of training or on the GPU.",
            ),
        ),
        caveats=(
            "More workers than free processors make it worse: see how many the container has.",
            "Without a recorded loader it may be other work of the host before the step, such as "
            "logging or evaluation.",
        ),
        confidence="high" if recorded else "medium",
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS),
    thresholds=Limits(),
    changes=("prefetch-data",),
)
