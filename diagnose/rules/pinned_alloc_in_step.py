"""Host memory is page-locked or freed in every step.

## Looks for
Calls that page-lock host memory or give it back (`cudaHostAlloc`, `cudaHostRegister`,
`cudaFreeHost`) in step after step.

## Why it costs time
Page-locking goes through the operating system page by page, and takes milliseconds for large
buffers. Freeing waits for the GPU, and both can hold up launches of collectives in the same
process, so that the other ranks wait. Using pinned memory is fine; making it in the loop is not.

## How it decides
In the marked steps after the first, at least `min_num_calls` such calls are made in a step, in
`min_steps_pct` of the steps or more.

## Stays silent when
Buffers are made once, before the loop or in its first step, or no step is marked.

## What to do
Allocate the buffers once and reuse them, or leave it to the data loader and PyTorch's caching host
allocator.

## Example
`tensor.pin_memory()` on a new shape in each step: one `cudaHostAlloc` of 4 ms a step, while the GPU
idles.

## References
- NCCL issues 48 and 70: allocation and collectives at the same time
- CUDA Runtime API, cudaHostAlloc
"""

from __future__ import annotations

from dataclasses import dataclass

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
    counted,
    duration,
    limit,
    who,
)
from diagnose.rules._allocations import steady_allocations


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When page-locking goes on in the steady state."""

    min_num_calls: int = limit(1, "calls in a step, mean: the steady state needs none")
    min_steps_pct: float = limit(50.0, "of the steps after the first; fewer are growth; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all ranks that page-lock memory."""
    hit = steady_allocations(
        facts,
        of_host_memory=True,
        min_num_calls=limits.min_num_calls,
        min_steps_pct=limits.min_steps_pct,
    )
    if not hit:
        return Clean("no host memory is page-locked in most steps")
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: (hit[gpu].idle_ns, hit[gpu].host_ns))
    seen = hit[worst]
    symptom = Symptom(
        sentence=(
            f"The host of {who(facts.trace, gpus)} page-locks or frees memory "
            f"{counted(round(seen.number), 'time')} a step ({', '.join(seen.names[:2])}), for "
            f"{duration(seen.host_ns)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_calls", "calls a step", seen.number, "min_num_calls"),
            Evidence("host_ns", "host time in them a step", seen.host_ns),
            Evidence("longest_ns", "longest call", seen.longest_ns),
            Evidence("idle_ns", "GPU idle that they caused a step", seen.idle_ns),
            Evidence("steps_pct", "steps with such calls", seen.steps_pct, "min_steps_pct"),
            Evidence("calls", "calls", ", ".join(seen.names)),
        ),
        cost=Cost(seen.idle_ns, "GPU idle time that page-locking caused"),
        advice=(
            Fix(
                "Let the loader pin batches, in a thread of its own.", "DataLoader(pin_memory=True)"
            ),
            Fix(
                "Make staging buffers once, before the loop, and copy into them.",
                "staging = torch.empty(shape, pin_memory=True)",
            ),
            Fix("Keep the shapes of pinned buffers the same, so that the cache serves them."),
        ),
        caveats=("Using pinned memory is fine: only making and freeing it in the loop costs.",),
    )
    return (symptom,)


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.STEPS),
    thresholds=Limits(),
    changes=("no-allocator-calls",),
)
