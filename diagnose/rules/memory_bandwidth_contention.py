"""Compute and communication share the GPU's memory bandwidth.

## Looks for
Memory that is busy to its limit while communication runs, and was not before, with kernels slowed
that live from memory: elementwise, normalisation, reduction, optimizer.

## Why it costs time
A collective reads and writes every byte in the GPU's own memory, some of them several times. A
kernel that needs the whole bandwidth gets what is left.

## How it decides
By the sensor of memory bandwidth (GPU performance monitoring) in the analysis `contention_causes`,
over intervals in which compute ran alone or beside a kind of collective throughout: more than
`min_beside_pct` in use beside communication, less than `max_alone_pct` alone. And by the analysis
`contention_kernels`: the kernels named above make `min_of_cost_pct` or more of what all slower
kernels of a GPU lose, and `min_cost_pct` of the step or more.

## Stays silent when
Memory was as busy alone, or the slower kernels are matrix products. Phases shorter than the
sensor's interval (some 100 ms) say nothing: then it is listed as not checked.

## What to do
Fuse what is slow, so that it moves fewer bytes; move communication beside matrix products; move
fewer bytes between GPUs.

## Example
Optimizer steps with 60 % of the bandwidth in use alone, 92 % beside reduce-scatters: 1.4 times as
long.

## References
- NVML: GPU performance monitoring, DRAM bandwidth utilisation
- NVIDIA/nccl issue 1428: traffic on the links costs two to three times as much in memory
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
    NotJudged,
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
from diagnose.rules._contended import slowed_on
from diagnose.trace import Gpu

_FROM_MEMORY = ("elementwise", "norm", "reduction", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When memory is what they share."""

    min_beside_pct: float = limit(85.0, "of the bandwidth: about what can be reached (judgement)")
    max_alone_pct: float = limit(70.0, "of the bandwidth: room was left (judgement)")
    min_of_cost_pct: float = limit(50.0, "of what slower kernels lose; judgement")
    min_cost_pct: float = limit(2.0, "share of the step (judgement)")


class Busy(NamedTuple):
    """Memory bandwidth in use, over all GPUs."""

    collective: str
    alone_pct: float
    beside_pct: float


class Slower(NamedTuple):
    """What kernels that live from memory lose on one GPU, per step."""

    cost_ns: float
    of_cost_pct: float
    kernel: str


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    found = {gpu: one for gpu in facts.gpus if (one := _slower_on(facts, gpu)) is not None}
    hit = {
        gpu: one
        for gpu, one in found.items()
        if one.of_cost_pct >= limits.min_of_cost_pct
        and facts.share_pct(one.cost_ns) >= limits.min_cost_pct
    }
    if not hit:
        return Clean("kernels that live from memory lose little beside communication")
    used = _used(facts)
    if not used:
        return NotJudged(
            "no phase of one state is as long as the sensor of memory bandwidth needs",
            "record a longer window; phases well above 100 ms, alone and beside communication, "
            "are needed",
        )
    busy = [
        one
        for one in used
        if one.beside_pct >= limits.min_beside_pct and one.alone_pct < limits.max_alone_pct
    ]
    if not busy:
        return Clean("memory bandwidth is not what communication uses up")
    worst = max(hit.values(), key=lambda one: one.cost_ns)
    return (_symptom(facts, tuple(hit), max(busy, key=lambda one: one.beside_pct), worst),)


def _used(facts: Facts) -> list[Busy]:
    """For each kind of collective, where the sensor tells of both states."""
    causes = facts.table("contention_causes")
    columns = [causes[name] for name in ("dram_alone_pct", "dram_overlapped_pct")]
    kinds = causes.texts("collective")
    found = [
        Busy(kind or "communication", *values)
        for kind, *values in zip(kinds, *(column.tolist() for column in columns), strict=True)
    ]
    return [one for one in found if not np.isnan(one.alone_pct + one.beside_pct)]


def _slower_on(facts: Facts, gpu: Gpu) -> Slower | None:
    slowed = slowed_on(facts, gpu)
    mine = [kernel for kernel in slowed if kernel.family in _FROM_MEMORY]
    every, cost = (sum(kernel.cost_ns for kernel in one) for one in (slowed, mine))
    if not mine or not every > 0:
        return None
    return Slower(cost, 100 * cost / every, max(mine, key=lambda kernel: kernel.cost_ns).name)


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], busy: Busy, slower: Slower) -> Symptom:
    share = facts.share_pct(slower.cost_ns)
    return Symptom(
        sentence=(
            f"Beside {busy.collective} {percent(busy.beside_pct)} of the memory bandwidth is in "
            f"use, {percent(busy.alone_pct)} without; kernels that live from memory lose "
            f"{duration(slower.cost_ns)} {facts.a_step} ({percent(share)}) on "
            f"{who(facts.trace, gpus)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("beside_pct", "in use beside it", busy.beside_pct, "min_beside_pct"),
            Evidence("alone_pct", "in use alone", busy.alone_pct, "max_alone_pct"),
            Evidence("cost_ns", f"extra time of these kernels {facts.a_step}", slower.cost_ns),
            Evidence("cost_pct", "share of the step", share, "min_cost_pct"),
            Evidence(
                "of_cost_pct",
                "of what all slower kernels lose",
                slower.of_cost_pct,
                "min_of_cost_pct",
            ),
            Evidence("kernel", "kernel that lost most", slower.kernel),
        ),
        cost=Cost(slower.cost_ns, "extra time of kernels that live from memory"),
        advice=(
            Fix("Fuse elementwise work, so that it moves fewer bytes.", "torch.compile(model)"),
            Fix("One pass over the parameters.", "torch.optim.AdamW(parameters, fused=True)"),
            Fix("Move communication beside matrix products, which need less of the memory."),
            Fix("Move fewer bytes between GPUs: reduce gradients in 16 bits."),
        ),
        caveats=(
            "The sensor averages over some 100 ms: shorter phases may be busier or less busy.",
            "It is the whole GPU's: processes that share it are in it.",
        ),
    )


RULE = Rule(
    check=check,
    area="contention",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.GPM),
    thresholds=Limits(),
)
