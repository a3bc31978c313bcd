"""Everybody waits for one rank.

## Looks for
One rank, or a minority of ranks together, that comes last to the collectives of its groups in
most steps. Ranks are compared on a common clock, aligned at the common ends of collectives. Time
that a rank itself lost waiting elsewhere is not held against it.

## Why it costs time
A collective ends when its last rank has arrived. The others wait inside of its kernel, so in
their traces the wait looks like slow communication, and the late rank shows the *shortest*
communication of all.

## How it decides
The analysis `stragglers` names a constant pattern: late in most steps and holding most of what
is lost to last arrivals. It fires where the others lose `min_lost_pct` of the step or more to that
rank alone. `min_compute_ratio` and `min_host_share_pct` only tell why it is late.

## Stays silent when
Another rank is late each time (jitter or uneven work, not one slow machine), GPUs wait only in
sends and receives of a pipeline, or only one rank was recorded.

## What to do
Look at that rank, not at the network: its amount of work, its host, its clocks and temperature,
its data. Do not tune NCCL, bucket sizes or the network for this.

## Example
Four ranks leave an all-reduce together; three arrive at 1.00 ms, one at 1.80 ms. The three show
0.8 ms more "communication" than the transfer takes, and would be done 0.79 ms earlier without it.

## References
- Lin et al., Understanding Stragglers in Large Model Training, arXiv 2505.05713
- NVIDIA/nccl issue 146: a collective's kernel also waits for its peers
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.analyzers.stragglers import Pattern, StragglerThresholds
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
    percent,
    who,
)
from diagnose.trace import Gpu, Table
from diagnose.wording.labels import FIRST_COPY, cause_label


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When one late rank is worth naming."""

    min_lost_pct: float = limit(5.0, "share of the step; the alarm level of published trace tools")
    min_compute_ratio: float = limit(1.02, "its compute over the median rank's; judgement")
    min_host_share_pct: float = limit(
        50.0, "how much of the loss its longer idle time covers; judgement"
    )


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all ranks that are late together."""
    wanted = StragglerThresholds(min_share=limits.min_lost_pct / 100)
    options = {} if wanted == StragglerThresholds() else {"thresholds": wanted}
    table = facts.table("stragglers", **options)
    late = table.take(table["pattern"] == Pattern.CONSTANT)
    if not len(late):
        return Clean("no rank is late in most steps")
    return (_symptom(facts, limits, late),)


def _symptom(facts: Facts, limits: Limits, late: Table) -> Symptom:
    places = list(zip(late["source"].tolist(), late["device"].tolist(), strict=True))
    gpus = tuple(gpu for gpu in facts.trace.gpus if (gpu.source, gpu.device) in places)
    lost = float(np.nanmax(late["lost_per_step_ns"]))
    steps = f"{int(late['late_steps'].min())} of {int(late['num_steps'][0])} steps"
    together = "together " if len(gpus) > 1 else ""
    verb = "hold" if len(gpus) > 1 else "holds"
    name = who(facts.trace, gpus)
    sentence = (
        f"{name[0].upper()}{name[1:]} {verb} the others up {together}in {steps}: they lose "
        f"up to {duration(lost)} a step to it, {percent(facts.share_pct(lost))} of the step."
    )
    ratio = float(np.nanmax(late["compute_ratio"]))
    longer_idle = _longer_idle(facts, gpus)
    evidence = [
        Evidence("lost_per_step_ns", "the others lose a step", lost),
        Evidence("lost_pct", "share of the step", facts.share_pct(lost), "min_lost_pct"),
        Evidence("last_pct", "its collectives in which it is last", float(late["last_pct"].max())),
        Evidence("compute_ratio", "its compute over the median rank's", ratio, "min_compute_ratio"),
    ]
    if longer_idle:
        label = "its GPU idles longer a step than the others'"
        evidence.append(Evidence("longer_idle_ns", label, longer_idle))
    by_host = longer_idle >= limits.min_host_share_pct / 100 * lost
    cause = _idle_cause(facts, gpus) if by_host else None
    if cause is not None:
        evidence.append(Evidence("idle_cause", "most of its idle time", cause))
    return Symptom(
        sentence=sentence,
        where=Where(gpus=gpus),
        affects=facts.gpus,
        evidence=tuple(evidence),
        cost=Cost(lost, "what the others wait for it alone", is_upper_bound=True),
        advice=_advice(name, by_host=by_host, by_work=ratio >= limits.min_compute_ratio),
        caveats=(
            "Do not tune NCCL, the network or bucket sizes for this: the transfer is not slow.",
            "If another recording names another rank, it is jitter or uneven work.",
        ),
        confidence=None if late["certain"].all() else "medium",
    )


def _longer_idle(facts: Facts, gpus: tuple[Gpu, ...]) -> float:
    """How much longer a late GPU idles per step than the median of the others, at most. >= 0."""
    breakdown = facts.table("breakdown")
    idle = {gpu: facts.per_step(breakdown, "idle_ns", gpu) for gpu in facts.gpus}
    others = [value for gpu, value in idle.items() if gpu not in gpus]
    own = [idle[gpu] for gpu in gpus if gpu in idle]
    return max(max(own) - float(np.median(others)), 0.0) if own and others else 0.0


def _idle_cause(facts: Facts, gpus: tuple[Gpu, ...]) -> str | None:
    """Why the late GPUs are idle for most of the time that they are; None: not known."""
    causes = facts.find("stall_causes")
    if causes is None:
        return None
    mine = causes.take(np.logical_or.reduce([facts.on(causes, gpu) for gpu in gpus]))
    total = {
        cause: int(mine["length_ns"][mine["cause"] == cause].sum())
        for cause in np.unique(mine["cause"]).tolist()
        if cause < FIRST_COPY
    }
    return cause_label(Cause(max(total, key=total.__getitem__)).name) if total else None


def _advice(name: str, *, by_host: bool, by_work: bool) -> tuple[Fix, ...]:
    steps = []
    if by_host:
        steps.append(
            Fix(
                f"The GPU of {name} idles while the others compute: its host is late. See what "
                "it waits for there (input, garbage collection, synchronisation, a busy CPU). "
                "The profiler slows a host too: the loss is as recorded, a replayed gain without "
                "it.",
                "diagnose stalls PATH --by cause",
            )
        )
    elif by_work:
        steps.append(
            Fix(
                f"More compute on {name}. Compare its kernels with another rank's: more, or "
                "larger ones, is uneven work; the same ones, each slower, is the machine.",
                "diagnose contention PATH --by kernel",
            )
        )
    steps += [
        Fix(f"Compare clocks, temperature and power limit of {name} with the others'."),
        Fix(
            "Swap that machine's place in the job: if the late rank moves with the machine, it is "
            "the machine; if it stays with the rank, it is the rank's work or data."
        ),
    ]
    return tuple(steps)


RULE = Rule(
    check=check,
    area="ranks",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.SEVERAL_RANKS),
    thresholds=Limits(),
    changes=("no-straggler",),
    explains=("exposed-communication", "slow-network", "late-collective-launch"),
)
