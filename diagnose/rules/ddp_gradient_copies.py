"""DistributedDataParallel copies each gradient into and out of buckets.

## Looks for
Kernels and copies that DistributedDataParallel launches for each parameter's gradient: into the
bucket (divided by the number of ranks on the way), and from the reduced bucket back into the
gradient.

## Why it costs time
They sit in the queue of the backward pass, one or two small operations for each parameter, and read
and write all gradients once more. Buckets and gradients also take memory twice.

## How it decides
PyTorch marks these places (`reducer::mul_out`, `reducer::copy_`, `reducer::copy_bucket_to_grad`).
What was launched within them takes `min_copies_pct` of the step or more. Copies out of the bucket
say that gradients are no views of it; copies into it alone, that they were but lost it.

## Stays silent when
Gradients are views of their buckets and stay so: then only a division in place is left, or nothing.
Without DistributedDataParallel it does not apply.

## What to do
Let gradients be views of the buckets. `zero_grad(set_to_none=True)`, the default, drops the views
in every step; then copy them together, once for each bucket.

## Example
36 parameters: 72 kernels and copies take 1.08 ms of a step of 15 ms (7.2 %). The 0.65 ms from
buckets back into gradients go away with views.

## References
- PyTorch, DistributedDataParallel: gradient_as_bucket_view, batched_grad_copy
- PyTorch, torch/csrc/distributed/c10d/reducer.cpp: mark_variable_ready_dense, finalize_bucket_dense
"""

from __future__ import annotations

from dataclasses import dataclass
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
from diagnose.rules._spans import ddp_forwards, inside, spans_where
from diagnose.trace import Gpu, Table

_INTO = ("reducer::mul_out", "reducer::copy_")
_BACK = ("reducer::copy_bucket_to_grad",)
_PREFIXES = ("torch::distributed::", "torch.distributed.ddp.")
"""PyTorch writes the one or the other, depending on version and place."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When copies of gradients matter."""

    min_copies_pct: float = limit(1.0, "of the step; the smallest effect worth naming (judgement)")


class Copies(NamedTuple):
    """What one GPU spends on them, per step."""

    number: float
    length_ns: float
    back_ns: float
    """Of it, from buckets back into gradients."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs: copies both ways, or into buckets only."""
    into, back = _marks(facts, _INTO), _marks(facts, _BACK)
    if not len(into) and not len(back):
        if not len(ddp_forwards(facts)):
            return NotApplicable("no DistributedDataParallel")
        return Clean("gradients are not copied")
    seen = {gpu: _copies(facts, gpu, into, back) for gpu in facts.gpus}
    hit = {
        gpu: one
        for gpu, one in seen.items()
        if facts.share_pct(one.length_ns) >= limits.min_copies_pct
    }
    return (_symptom(facts, hit),) if hit else Clean("copies of gradients take little time")


def _marks(facts: Facts, names: tuple[str, ...]) -> Table:
    known = {prefix + name for prefix in _PREFIXES for name in names}
    return spans_where(facts, lambda text: text in known)


def _copies(facts: Facts, gpu: Gpu, into: Table, back: Table) -> Copies:
    ops = facts.operations_per_step(gpu)
    ops = ops.take(ops.known("launch_row"))
    at = facts.trace.launches["start_ns"][ops["launch_row"]]
    thread = facts.trace.launches["thread"][ops["launch_row"]]
    found = []
    for spans in (into, back):
        # Another thread's launches at the same time are not the reducer's.
        own = np.isin(thread, spans["thread"][spans["source"] == gpu.source])
        found.append(ops.take(own & inside(spans, gpu.source, at)))
    lengths = [union_length(one["start_ns"], one["end_ns"]) for one in found]
    number = facts.steps[gpu].number
    return Copies(
        sum(len(one) for one in found) / number, sum(lengths) / number, lengths[1] / number
    )


def _symptom(facts: Facts, hit: dict[Gpu, Copies]) -> Symptom:
    gpus = tuple(hit)
    worst = max(hit.values(), key=lambda one: one.length_ns)
    share = facts.share_pct(worst.length_ns)
    ways = "into buckets and back" if worst.back_ns else "into buckets"
    return Symptom(
        sentence=(
            f"DistributedDataParallel copies gradients {ways} on {who(facts.trace, gpus)}: "
            f"{worst.number:,.0f} kernels and copies take {duration(worst.length_ns)} "
            f"{facts.a_step} ({percent(share)})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("copies_ns", f"copies of gradients {facts.a_step}", worst.length_ns),
            Evidence("copies_pct", "share of the step", share, "min_copies_pct"),
            Evidence("back_ns", "of it, from buckets back", worst.back_ns),
            Evidence("num_copies", f"kernels and copies {facts.a_step}", worst.number),
        ),
        cost=_cost(worst),
        advice=_advice(worst),
        caveats=(
            "Code that detaches or replaces .grad does not work with views.",
            "With views a division in place is left, about as long as the copy into the bucket.",
        ),
        no_gain="no replayed change models views of buckets",
    )


def _cost(copies: Copies) -> Cost:
    if copies.back_ns:
        return Cost(copies.back_ns, "copies from buckets back into gradients")
    return Cost(copies.length_ns, "copies of gradients into buckets, one by one")


def _advice(copies: Copies) -> tuple[Fix, ...]:
    together = Fix(
        "PyTorch 2.13 and later: copy them together, once for each bucket.",
        "DistributedDataParallel(model, batched_grad_copy=True)",
    )
    keep = Fix("Keep the views from step to step.", "optimizer.zero_grad(set_to_none=False)")
    if not copies.back_ns:
        return together, keep
    views = Fix(
        "Let gradients be views of the buckets.",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)",
    )
    return views, keep, together


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS, Need.COMMUNICATION),
    thresholds=Limits(),
)
