"""Hidden communication is paid for in slower kernels.

## Looks for
Compute kernels that take longer beside communication than the same kernels (name, launch shape,
input shapes) take alone.

## Why it costs time
A collective occupies multiprocessors, memory bandwidth and power that the compute beside it lacks:
what it hides is less than its length.

## How it decides
By the analysis `contention`, per GPU, with changes of the clock divided out: a slowdown of
`min_slowdown_ratio` or more whose 95 % interval lies above 1, costing `min_cost_pct` of the step
or more, measured on `min_num_paired` kernels and `min_coverage_pct` of the overlapped compute.

## Stays silent when
Too little of the overlapped compute ever ran alone, or the interval includes no slowdown.

## What to do
Give the collectives fewer multiprocessors, let copy engines or the switch do the work, or move
communication beside kernels that are limited by arithmetic.

## Example
Four GEMMs of 1000 us take 1600 us each beside an all-gather: 1.6 times, 2.4 ms in all.

## References
- arXiv 2507.03114: 18.9 % mean and 40 % largest slowdown
- NVIDIA/nccl issues 1428 and 1433, on what collectives take from compute
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
from diagnose.rules._contended import Contended, contended_on
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When contention is worth naming, and when it is known well enough."""

    min_slowdown_ratio: float = limit(1.10, "beside communication over alone (judgement)")
    min_cost_pct: float = limit(2.0, "share of the step (judgement)")
    min_coverage_pct: float = limit(30.0, "of overlapped compute that has twins (judgement)")
    min_num_paired: int = limit(3, "so that a mean means something (judgement)")


class _Found(NamedTuple):
    gpus: tuple[Gpu, ...]
    worst: Contended
    kernel: str


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs whose compute is slowed."""
    found = {gpu: one for gpu in facts.gpus if (one := contended_on(facts, gpu)) is not None}
    told = {
        gpu: one
        for gpu, one in found.items()
        if one.num_paired >= limits.min_num_paired and one.coverage_pct >= limits.min_coverage_pct
    }
    hit = {
        gpu: one
        for gpu, one in told.items()
        if one.slowdown >= limits.min_slowdown_ratio
        and one.slowdown_low > 1
        and facts.share_pct(one.cost_ns) >= limits.min_cost_pct
    }
    if hit:
        gpu = max(hit, key=lambda one: hit[one].cost_ns)
        return (_symptom(facts, _Found(tuple(hit), hit[gpu], _slowest(facts, gpu))),)
    if found and not told:
        covered = max(one.coverage_pct for one in found.values())
        return NotJudged(
            f"only {percent(covered)} of the overlapped compute also ran alone",
            "record a window without overlap and give it as the twins: "
            "diagnose contention PATH --alone OTHER",
        )
    return Clean("no slowdown of compute beside communication beyond chance")


def _slowest(facts: Facts, gpu: Gpu) -> str:
    kernels = facts.table("contention_kernels")
    rows = facts.on(kernels, gpu) & kernels.known("cost_ns")
    costs = kernels.take(rows)
    if not len(costs):
        return ""
    return str(costs.strings[int(costs["name"][costs["cost_ns"].argmax()])])


def _symptom(facts: Facts, found: _Found) -> Symptom:
    worst = found.worst
    share = facts.share_pct(worst.cost_ns)
    evidence = [
        Evidence("slowdown_ratio", "beside / alone", worst.slowdown, "min_slowdown_ratio"),
        Evidence("slowdown_low_ratio", "lower end of its 95 % interval", worst.slowdown_low),
        Evidence("cost_ns", f"extra compute time {facts.a_step}", worst.cost_ns),
        Evidence("cost_pct", "share of the step", share, "min_cost_pct"),
        Evidence("coverage_pct", "measured", worst.coverage_pct, "min_coverage_pct"),
        Evidence("num_paired", "kernels measured", float(worst.num_paired), "min_num_paired"),
    ]
    if found.kernel:
        evidence.append(Evidence("kernel", "kernel that lost most", found.kernel))
    return Symptom(
        sentence=(
            f"Compute on {who(facts.trace, found.gpus)} takes {worst.slowdown:.2f} times as long "
            f"beside communication as alone: {duration(worst.cost_ns)} {facts.a_step} more "
            f"({percent(share)}), measured on {percent(worst.coverage_pct)} of it."
        ),
        where=Where(gpus=found.gpus),
        evidence=tuple(evidence),
        cost=Cost(worst.cost_ns, "extra time of compute beside communication"),
        advice=(
            Fix("See which kernels and collectives.", "diagnose contention PATH"),
            Fix("Let NCCL use fewer multiprocessors.", "NCCL_MAX_CTAS=16"),
            Fix(
                "FSDP2: buffers that the switch and copy engines can use.",
                "module.set_allocate_memory_from_process_group_for_comm(True)",
            ),
            Fix("Move communication beside GEMMs, away from normalisation and optimizer."),
        ),
        caveats=(
            "Fewer multiprocessors make the communication itself longer: measure both.",
            "Twins that differ in cache state or data look like contention.",
        ),
    )


RULE = Rule(
    check=check,
    area="contention",
    confidence="medium",
    needs=(Need.COMMUNICATION,),
    thresholds=Limits(),
    changes=("no-contention",),
)
