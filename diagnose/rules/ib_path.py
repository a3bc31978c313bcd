"""Between machines the network is slow, within them it is not.

## Looks for
Large collectives of groups that span machines, far below what nccl-tests reach between the same
machines, while groups within a machine are as fast as they should be.

## Why it costs time
The fabric, or the way to it, is used in part: one path of several, or a detour through host memory.

## How it decides
Median bus bandwidth of at least `min_num_collectives` undisturbed messages of `min_message_mib` or
more, waiting taken out. It fires where a group between machines stays below `max_of_measured_pct`
of what nccl-tests reach and all those within machines reach `min_within_pct` of it or more. What
nccl-tests reach is, with `--nccl-tests FILE`, its row for the same collective, number of ranks and
of machines and the nearest size (runs within and between machines may stand in one file); without
such a row `measured_gb_per_s` between and `measured_within_gb_per_s` within machines, to be set for
the job. `max_of_link_pct` is not used here: no nominal rate holds for a fabric.

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
from typing import NamedTuple

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
from diagnose.rules._references import Asked, Reference, nccl_tests_reference, set_reference

_NAMES = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_CROSS_NIC",
)


_UNKNOWN = NotJudged(
    "what the links reach alone, within and between machines, is not known",
    "run nccl-tests both ways on the same ranks and give their output with --nccl-tests FILE, or "
    "write measured_within_gb_per_s and measured_gb_per_s into diagnose.toml",
)


@dataclass(frozen=True, kw_only=True)
class Limits(NetworkLimits):
    """When the fabric is slow and the machines are not."""

    measured_within_gb_per_s: float = limit(
        0.0, "busbw of nccl-tests within one machine, to be set for the job; 0: not known"
    )
    min_within_pct: float = limit(80.0, "of what nccl-tests reached within a machine; judgement")


class Held(NamedTuple):
    """A speed and what nccl-tests reach."""

    speed: Speed
    reference: Reference

    @property
    def reached_pct(self) -> float:
        """Of the reference."""
        return 100 * self.speed.busbw_gb_per_s / self.reference.busbw_gb_per_s


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding, for the slowest kind of collective between machines."""
    if len(set(_hosts(facts).values()) - {None}) < 2:
        return NotApplicable("one machine, or machines are not known")
    is_set = limits.measured_gb_per_s > 0 and limits.measured_within_gb_per_s > 0
    if not (is_set or facts.reference):
        return _UNKNOWN
    parts = _parted(facts, speeds_of(facts, limits))
    if not all(parts):
        return Clean("groups within and between machines were not both measured")
    names = ("measured_gb_per_s", "measured_within_gb_per_s")
    between, within = (
        _held(facts, limits, speeds, name) for speeds, name in zip(parts, names, strict=True)
    )
    if not between or not within:
        return _UNKNOWN
    slowest = min(between, key=lambda one: one.reached_pct)
    least_within = min(within, key=lambda one: one.reached_pct)
    fast = slowest.reached_pct >= limits.max_of_measured_pct
    if fast or least_within.reached_pct < limits.min_within_pct:
        return Clean("the fabric is fast, or the machines are slow themselves")
    return (_symptom(facts, slowest, least_within),)


def _held(facts: Facts, limits: Limits, speeds: Sequence[Speed], threshold: str) -> list[Held]:
    """The speeds that something is known for."""
    found = []
    for speed in speeds:
        asked = Asked(speed.kind, speed.median_bytes, speed.group_size, speed.num_hosts)
        # A table that does not name its machines tells neither the fabric nor the links.
        measured = nccl_tests_reference(facts, asked, hosts_known=True)
        reference = measured or set_reference(getattr(limits, threshold), threshold)
        if reference is not None:
            found.append(Held(speed, reference))
    return found


def _hosts(facts: Facts) -> dict[int, str | None]:
    return {gpu.source: facts.trace.sources[gpu.source].host for gpu in facts.gpus}


def _parted(facts: Facts, speeds: Sequence[Speed]) -> tuple[list[Speed], list[Speed]]:
    """Speeds between machines and within one."""
    hosts = _hosts(facts)
    spanned = [({hosts[gpu.source] for gpu in speed.gpus}, speed) for speed in speeds]
    known = [(names, speed) for names, speed in spanned if None not in names]
    return [s for n, s in known if len(n) > 1], [s for n, s in known if len(n) == 1]


def _symptom(facts: Facts, between: Held, within: Held) -> Symptom:
    speed, reached = between.speed, between.reached_pct
    variables = set_to(facts, _NAMES)
    shown = ", ".join(f"{n}={' or '.join(sorted(set(v.values())))}" for n, v in variables.items())
    return Symptom(
        sentence=(
            f"Between machines {speed.kind} on {who(facts.trace, speed.gpus)} reaches "
            f"{speed.busbw_gb_per_s:.1f} GB/s, {percent(reached)} of "
            f"{between.reference.busbw_gb_per_s:.1f} GB/s ({between.reference.words}); within "
            f"machines it is {percent(within.reached_pct)}."
        ),
        where=Where(gpus=speed.gpus),
        evidence=(
            Evidence("busbw_gb_per_s", "between machines, median", speed.busbw_gb_per_s),
            Evidence("of_measured_pct", "of nccl-tests", reached, "max_of_measured_pct"),
            Evidence("reference", "which is", between.reference.words),
            Evidence(
                "within_pct", "within machines, of nccl-tests", within.reached_pct, "min_within_pct"
            ),
            Evidence("within_reference", "which is", within.reference.words),
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
