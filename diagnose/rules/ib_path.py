"""Between machines the network is slow, within them it is not.

## Looks for
Large collectives of groups that span machines, far below what nccl-tests reach between the same
machines, while groups within a machine are as fast as they should be.

## Why it costs time
The fabric, or the way to it, is used in part: one path of several, or a detour through host memory.

## How it decides
Median bus bandwidth of at least `min_num_collectives` undisturbed messages of `min_message_mib` or
more, waiting taken out. It fires where groups between machines stay below `max_of_measured_pct` of
`measured_gb_per_s` and those within machines reach `min_within_pct` of `measured_within_gb_per_s`
or more. Both are busbw of nccl-tests, to be set for the job. `max_of_link_pct` is not used here: no
nominal rate holds for a fabric.

## Stays silent when
All ranks are on one machine, or one of the two kinds of group was not measured. Without both
references it is listed as not checked.

## What to do
Look at how NCCL spreads its traffic: several queue pairs on RoCE, adaptive routing on InfiniBand,
network cards near their GPUs with direct access.

## Example
Within a machine 350 of 360 GB/s, between machines 18 of 45: one queue pair on a RoCE fabric that
balances by flow.

## References
- NCCL user guide, environment variables: NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_ADAPTIVE_ROUTING
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Need,
    NotApplicable,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Where,
    limit,
    percent,
    who,
)
from diagnose.rules._network import NetworkLimits, Speed, set_to, speeds_of

_NAMES = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_CROSS_NIC",
)


@dataclass(frozen=True, kw_only=True)
class Limits(NetworkLimits):
    """When the fabric is slow and the machines are not."""

    measured_within_gb_per_s: float = limit(
        0.0, "busbw of nccl-tests within one machine, to be set for the job; 0: not known"
    )
    min_within_pct: float = limit(80.0, "of what nccl-tests reached within a machine; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding, for the slowest kind of collective between machines."""
    if len(set(_hosts(facts).values()) - {None}) < 2:
        return NotApplicable("one machine, or machines are not known")
    if not (limits.measured_gb_per_s > 0 and limits.measured_within_gb_per_s > 0):
        return NotJudged(
            "what the links reach alone, within and between machines, is not known",
            "run nccl-tests both ways and write measured_within_gb_per_s and measured_gb_per_s "
            "into diagnose.toml",
        )
    between, within = _parted(facts, speeds_of(facts, limits))
    if not between or not within:
        return Clean("groups within and between machines were not both measured")
    slowest = min(between, key=lambda speed: speed.busbw_gb_per_s)
    reached = 100 * slowest.busbw_gb_per_s / limits.measured_gb_per_s
    least_within = min(speed.busbw_gb_per_s for speed in within)
    reached_within = 100 * least_within / limits.measured_within_gb_per_s
    if reached >= limits.max_of_measured_pct or reached_within < limits.min_within_pct:
        return Clean("the fabric is fast, or the machines are slow themselves")
    return (_symptom(facts, slowest, reached, reached_within),)


def _hosts(facts: Facts) -> dict[int, str | None]:
    return {gpu.source: facts.trace.sources[gpu.source].host for gpu in facts.gpus}


def _parted(facts: Facts, speeds: Sequence[Speed]) -> tuple[list[Speed], list[Speed]]:
    """Speeds between machines and within one."""
    hosts = _hosts(facts)
    spanned = [({hosts[gpu.source] for gpu in speed.gpus}, speed) for speed in speeds]
    known = [(names, speed) for names, speed in spanned if None not in names]
    return [s for n, s in known if len(n) > 1], [s for n, s in known if len(n) == 1]


def _symptom(facts: Facts, speed: Speed, reached: float, within: float) -> Symptom:
    variables = set_to(facts, _NAMES)
    shown = ", ".join(f"{n}={' or '.join(sorted(set(v.values())))}" for n, v in variables.items())
    return Symptom(
        sentence=(
            f"Between machines {speed.kind} on {who(facts.trace, speed.gpus)} reaches "
            f"{speed.busbw_gb_per_s:.1f} GB/s, {percent(reached)} of what nccl-tests do; within "
            f"machines it is {percent(within)}."
        ),
        where=Where(gpus=speed.gpus),
        evidence=(
            Evidence("busbw_gb_per_s", "between machines, median", speed.busbw_gb_per_s),
            Evidence("of_measured_pct", "of nccl-tests", reached, "max_of_measured_pct"),
            Evidence("within_pct", "within machines, of nccl-tests", within, "min_within_pct"),
            Evidence("num_collectives", "measured", speed.number, "min_num_collectives"),
            Evidence("variables", "set for the fabric", shown or "none"),
        ),
        advice=(
            Fix("RoCE: several queue pairs.", "NCCL_IB_QPS_PER_CONNECTION=4"),
            Fix("InfiniBand: leave adaptive routing on.", "unset NCCL_IB_ADAPTIVE_ROUTING"),
            Fix("See which cards are used, and whether they reach the GPU.", "NCCL_DEBUG=INFO"),
        ),
        caveats=("Values that are right for one cluster are wrong for another: measure.",),
        subject=speed.kind,
        no_gain="what the fabric would reach is known only by measuring",
    )


RULE = Rule(
    check=check,
    area="network",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.SEVERAL_RANKS),
    thresholds=Limits(),
    explains=("slow-network", "exposed-communication"),
)
