"""Input is copied from pageable host memory.

## Looks for
Copies to the GPU from host memory that is not page-locked.

## Why it costs time
The driver first moves the data into a page-locked buffer of its own, piece by piece. That is
slower than the link, and the call does not return before the data has left: the host cannot run
ahead meanwhile.

## How it decides
It fires where these copies take `min_copy_pct` of the step or more, or carry `min_copy_mib` a step
or more and take `min_large_copy_pct` of it.

## Stays silent when
Copies come from pinned memory, or are too small to matter.

## What to do
Let the data loader pin its batches and copy without blocking.

## Example
256 MiB a step at 5.9 GB/s: 46 ms of a step of 85 ms. From pinned memory the same bytes take 9 ms.

## References
- CUDA Runtime API, API synchronization behavior
- PyTorch tutorial, a guide on good usage of non_blocking and pin_memory()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.rules import (
    Cost,
    Evidence,
    Facts,
    Fix,
    Rule,
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    size,
    who,
)
from diagnose.rules._copies import Copies, Memory, copies_on
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When copies from pageable memory are worth naming."""

    min_copy_pct: float = limit(1.0, "share of the step; smallest effect worth naming")
    min_copy_mib: float = limit(1.0, "a step, from which the way of copying matters (judgement)")
    min_large_copy_pct: float = limit(
        0.1, "share of the step that such bytes must take, to be no noise (judgement)"
    )


def check(facts: Facts, limits: Limits) -> Iterator[Symptom]:
    """One finding for all GPUs with such copies."""
    found = {gpu: copies_on(facts, gpu, Memory.PAGEABLE) for gpu in facts.gpus}
    hit = tuple(gpu for gpu in facts.gpus if _matters(facts, limits, found[gpu]))
    if hit:
        yield _symptom(facts, hit, found[max(hit, key=lambda gpu: found[gpu].length_ns)])


def _matters(facts: Facts, limits: Limits, copies: Copies) -> bool:
    share = facts.share_pct(copies.length_ns)
    large = copies.num_bytes >= limits.min_copy_mib * 2**20 and share >= limits.min_large_copy_pct
    return share >= limits.min_copy_pct or large


def _symptom(facts: Facts, hit: tuple[Gpu, ...], worst: Copies) -> Symptom:
    share = facts.share_pct(worst.length_ns)
    evidence = [
        Evidence("copy_ns", f"copies from pageable memory {facts.a_step}", worst.length_ns),
        Evidence("copy_pct", "share of the step", share, "min_copy_pct"),
        Evidence("alone_ns", "of it, beside nothing else on the GPU", worst.alone_ns),
        Evidence("num_copies", f"copies {facts.a_step}", worst.number),
    ]
    carried = ""
    if worst.num_bytes and worst.length_ns:
        rate = worst.num_bytes / worst.length_ns
        carried = f" for {size(worst.num_bytes)}, {rate:.1f} GB/s"
        evidence += [
            Evidence("copied_mib", f"copied {facts.a_step}", worst.num_bytes / 2**20),
            Evidence("rate_gb_per_s", "rate", rate),
        ]
    return Symptom(
        sentence=(
            f"Copies from pageable host memory take {duration(worst.length_ns)} {facts.a_step} "
            f"({percent(share)}){carried} on {who(facts.trace, hit)}, and the host waits for "
            "each."
        ),
        where=Where(gpus=hit),
        evidence=tuple(evidence),
        cost=Cost(worst.length_ns, "copies from pageable memory", True),
        advice=(
            Fix("Let the loader pin its batches, on a thread of its own.", "pin_memory=True"),
            Fix("Copy without blocking.", 'batch.to("cuda", non_blocking=True)'),
            Fix(
                "Own buffers: allocate them once, pinned, and reuse them.",
                "torch.empty(shape, pin_memory=True)",
            ),
        ),
        caveats=(
            "tensor.pin_memory().to(...) in the training loop can be slower than a plain .to(): "
            "pin ahead of time.",
            "Copies of a few KiB gain nothing.",
        ),
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    thresholds=Limits(),
    changes=("pinned-copies",),
)
