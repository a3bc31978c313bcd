"""GPU memory is allocated and freed in every step.

## Looks for
Calls that allocate or free memory of the GPU (`cudaMalloc`, `cudaFree`, `cuMemMap`) in step after
step, where PyTorch's caching allocator should have all it needs.

## Why it costs time
These calls go to the driver, and freeing waits for the GPU: the host launches nothing meanwhile,
and the GPU runs dry. They come from `torch.cuda.empty_cache()` in the loop, from an allocator that
ran out of memory and retries, or from caching that is switched off.

## How it decides
In the marked steps after the first, at least `min_num_calls` such calls are made in a step, in
`min_steps_pct` of the steps or more. Page-locked host memory is another rule's
(pinned-alloc-in-step).

## Stays silent when
The cache grows once, in a first or a single step, or no step is marked.

## What to do
Take `empty_cache()` out of the loop. If the allocator retries for lack of memory, fragment it less
(`expandable_segments`) or need less of it.

## Example
`torch.cuda.empty_cache()` in each step: 59 `cudaMalloc` and 59 `cudaFree` a step; without it the
step gets 32 % shorter.

## References
- PyTorch, CUDA semantics, memory management
- PyTorch issue 50925: cudaFree and peers
"""

from __future__ import annotations

from dataclasses import dataclass

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
    who,
)
from diagnose.rules._allocations import Allocations, allocating, steady_allocations
from diagnose.trace import Gpu

_BEFORE = "of the idle time in waits for the GPU is in waits right before them"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When allocation goes on in the steady state."""

    min_num_calls: int = limit(1, "calls in a step, mean: the steady state needs none")
    min_steps_pct: float = limit(50.0, "of the steps after the first; fewer are growth; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all ranks that allocate."""
    hit = steady_allocations(
        facts,
        of_host_memory=False,
        min_num_calls=limits.min_num_calls,
        min_steps_pct=limits.min_steps_pct,
    )
    return (_symptom(facts, hit),) if hit else Clean("no GPU memory is allocated in most steps")


def _symptom(facts: Facts, hit: dict[Gpu, Allocations]) -> Symptom:
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: (hit[gpu].idle_ns, hit[gpu].host_ns))
    seen = hit[worst]
    waits = _waits_before(facts, worst)
    return Symptom(
        sentence=(
            f"The host of {who(facts.trace, gpus)} allocates or frees GPU memory "
            f"{seen.number:,.0f} times a step ({', '.join(seen.names[:2])}), for "
            f"{duration(seen.host_ns)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_calls", "calls a step", seen.number, "min_num_calls"),
            Evidence("host_ns", "host time in them a step", seen.host_ns),
            Evidence("idle_ns", "GPU idle that they caused a step", seen.idle_ns),
            Evidence("steps_pct", "steps with such calls", seen.steps_pct, "min_steps_pct"),
            Evidence("calls", "calls", ", ".join(seen.names)),
            *((Evidence("host_waits_pct", _BEFORE, waits),) if waits else ()),
        ),
        cost=Cost(seen.idle_ns, "GPU idle time that allocation caused"),
        advice=(
            Fix(
                "Remove it from the loop: it gives memory back that the next step needs again.",
                "torch.cuda.empty_cache()  # delete this line",
            ),
            Fix(
                "See whether the allocator retries: this must stay 0.",
                'torch.cuda.memory_stats()["num_alloc_retries"]',
            ),
            Fix(
                "If it does, fragment memory less.",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
        ),
        caveats=(
            "expandable_segments does not go with NCCL's registered user buffers.",
            "Caching that was switched off on purpose, or another library that allocates.",
        ),
        explains=("host-sync",) if waits >= 50 else (),
    )


def _waits_before(facts: Facts, gpu: Gpu) -> float:
    """Of the GPU idle time in waits of the host, how much precedes such a call directly, in %."""
    waits = facts.find("host_waits")
    if waits is None:
        return 0.0
    mine = waits.take(waits["source"] == gpu.source)
    calls = facts.trace.launches
    following = mine["call_row"] + 1
    allocates = np.append(allocating(facts, of_host_memory=False), False)[following]
    threads = np.append(calls["thread"], -1)
    implied = allocates & (threads[following] == calls["thread"][mine["call_row"]])
    total = float(mine["idle_ns"].sum())
    return 100 * float(mine["idle_ns"][implied].sum()) / total if total else 0.0


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.STEPS),
    thresholds=Limits(),
    changes=("no-allocator-calls",),
    explains=("host-sync",),
)
