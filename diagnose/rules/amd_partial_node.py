"""Collectives of 2 or 4 GPUs on MI300X use few links.

## Looks for
Process groups of two or four GPUs on MI300X, where eight are connected, without more channels.

## Why it costs time
Each GPU has a link to each of the seven others. A group of two or four uses only the links within
it, and by default too few channels to fill those.

## How it decides
Collectives of groups of 2 or 4 ranks expose `min_exposed_pct` of the step or more, and
`NCCL_MIN_NCHANNELS` is not set.

## Stays silent when
The group has eight GPUs or more, communication is hidden, or the number of channels was set.

## What to do
Use all eight GPUs of the node in the group, or raise the number of channels.

## Example
Tensor parallelism over 4 of 8 GPUs of a node: all-reduces take 12 % of the step.

## References
- ROCm, RCCL usage tips: 2 and 4 GPU configurations on MI300X
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
from diagnose.trace import Gpu

_SIZES = (2, 4)


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When small groups matter."""

    min_exposed_pct: float = limit(3.0, "exposed share of the step; worth a change of one line")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs with such groups."""
    models = [gpu for gpu in facts.gpus if "MI300X" in (facts.gpu_name(gpu.source) or "")]
    if not models:
        return NotApplicable("no MI300X")
    chosen = facts.variables("NCCL_MIN_NCHANNELS")
    steps = facts.table("breakdown")
    hit = {}
    for gpu in models:
        size = _size(facts, gpu)
        exposed = facts.per_step(steps, "exposed_communication_ns", gpu)
        enough = facts.share_pct(exposed) >= limits.min_exposed_pct
        if size and enough and gpu.source not in chosen:
            hit[gpu] = (size, exposed)
    return (_symptom(facts, hit),) if hit else Clean("groups are whole nodes, or hidden, or tuned")


def _size(facts: Facts, gpu: Gpu) -> int | None:
    """The size of the groups that communicate most, where it is 2 or 4."""
    trace, collectives = facts.trace, facts.trace.collectives
    ops = trace.gpu_ops.take(collectives["gpu_op_row"])
    known = facts.on(ops, gpu) & collectives.known("group_size")
    if not known.any():
        return None
    length = (ops["end_ns"] - ops["start_ns"])[known].astype(np.float64)
    sizes, at = np.unique(collectives["group_size"][known], return_inverse=True)
    most = int(sizes[int(np.argmax(np.bincount(at, length)))])
    return most if most in _SIZES else None


def _symptom(facts: Facts, hit: dict[Gpu, tuple[int, float]]) -> Symptom:
    gpus = tuple(hit)
    size, exposed = max(hit.values(), key=lambda one: one[1])
    share = facts.share_pct(exposed)
    return Symptom(
        sentence=(
            f"Collectives of {who(facts.trace, gpus)} run in groups of {size} GPUs of MI300X with "
            f"the default number of channels and expose {duration(exposed)} {facts.a_step} "
            f"({percent(share)})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_gpus", "GPUs of the group", size),
            Evidence("exposed_ns", f"exposed communication {facts.a_step}", exposed),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
        ),
        cost=Cost(exposed, "exposed communication"),
        advice=(
            Fix("Let the group span the eight GPUs of the node where the layout allows it."),
            Fix("Else use more channels, and measure.", "NCCL_MIN_NCHANNELS=32"),
        ),
        caveats=("More channels take compute units from the kernels beside them.",),
        no_gain="no replayed change models more channels",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
