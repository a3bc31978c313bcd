"""A hot GPU runs at a lower clock, and the others wait for it.

## Looks for
A rank that comes last to most collectives, whose GPU is hotter than the others' and runs at a lower
clock, with the same work.

## Why it costs time
All ranks wait for the slowest. A few degrees between GPUs of one server make one of them lower its
clock first, and the whole job runs at its pace.

## How it decides
The rank is last in `min_last_pct` of its collectives. Its mean clock in the window is
`min_clock_gap_pct` below the median of the others, and its mean temperature is
`min_hotter_c` above theirs. Its kernels are as many as the others' to `max_work_gap_pct`: more
kernels are uneven work, not heat.

## Stays silent when
The late rank is not hotter, has more work, shares its GPU with the other ranks, or telemetry of
fewer than two GPUs was recorded.

## What to do
Airflow and placement: what heats this GPU? Where the power of each GPU can be set, give the cool
ones less and the hot one more.

## Example
Eight GPUs: rank 3 is 9 degrees hotter, its clock is 5 % lower, and it is last in 80 % of the
collectives.

## References
- arXiv 2511.09861: thermal stragglers in one node, up to 6 % of the step
- NVML API reference, temperature and clocks
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
    limit,
    percent,
    who,
)
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When heat explains a late rank."""

    min_clock_gap_pct: float = limit(3.0, "below the others' median clock; judgement")
    min_last_pct: float = limit(50.0, "of its collectives in which it is last; judgement")
    min_hotter_c: float = limit(2.0, "above the others' median: less is within the sensor")
    max_work_gap_pct: float = limit(1.0, "more kernels than the others: uneven work; judgement")


class Heat(NamedTuple):
    """Means of one GPU over the window."""

    clock_mhz: float
    temperature_c: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding, for the rank that is last most often."""
    heat = _heat(facts)
    if len(heat) < 2:
        return NotJudged(
            "clock and temperature of fewer than two GPUs were recorded",
            "record every rank with telemetry: `diagnose attach` and `diagnose run` do",
        )
    ranks = facts.table("ranks")
    last = {}
    for gpu in heat:
        own = ranks.take(facts.on(ranks, gpu) & (ranks["num_collectives"] > 0))
        if len(own):
            last[gpu] = 100 * float(own["num_last"][0]) / float(own["num_collectives"][0])
    worst = max(last, key=lambda gpu: last[gpu], default=None)
    if worst is None or last[worst] < limits.min_last_pct:
        return Clean("no rank with telemetry is last in most collectives")
    others = [one for gpu, one in heat.items() if gpu != worst]
    clock = float(np.median([one.clock_mhz for one in others]))
    cool = float(np.median([one.temperature_c for one in others]))
    own_heat = heat[worst]
    gap_pct = 100 * (1 - own_heat.clock_mhz / clock)
    hotter = own_heat.temperature_c - cool
    if gap_pct < limits.min_clock_gap_pct or hotter < limits.min_hotter_c:
        return Clean("the late rank is not hotter and slower-clocked than the others")
    if _more_work_pct(facts, worst) > limits.max_work_gap_pct:
        return Clean("the late rank runs more kernels than the others")
    return (_symptom(facts, worst, last[worst], own_heat, Heat(clock, cool)),)


def _heat(facts: Facts) -> dict[Gpu, Heat]:
    """By GPU, of those that one rank has for itself."""
    power = facts.table("power_summary")
    found = {}
    for gpu in facts.gpus:
        own = power.take(facts.on(power, gpu) & (power["num_ranks"] == 1))
        if len(own):
            heat = Heat(float(own["clock_mhz"][0]), float(own["temperature_c"][0]))
            if not any(np.isnan(heat)):
                found[gpu] = heat
    return found


def _more_work_pct(facts: Facts, gpu: Gpu) -> float:
    """How many more kernels per step it runs than the median of the others."""
    number = {
        one: len(facts.operations_per_step(one)) / facts.steps[one].number for one in facts.gpus
    }
    usual = float(np.median([number[one] for one in number if one != gpu]))
    return 100 * (number[gpu] / usual - 1) if usual else 0.0


def _symptom(facts: Facts, gpu: Gpu, last_pct: float, own: Heat, others: Heat) -> Symptom:
    gap_pct = 100 * (1 - own.clock_mhz / others.clock_mhz)
    steps = facts.table("breakdown")
    compute = facts.per_step(steps, "compute_only_ns", gpu)
    compute += facts.per_step(steps, "overlapped_ns", gpu)
    name = who(facts.trace, (gpu,))
    return Symptom(
        sentence=(
            f"The GPU of {name} is {own.temperature_c - others.temperature_c:.0f} degrees hotter "
            f"than the others and runs at {own.clock_mhz:.0f} instead of {others.clock_mhz:.0f} "
            f"MHz ({percent(gap_pct)} lower); it is last in {percent(last_pct)} of its collectives."
        ),
        where=Where(gpus=(gpu,)),
        affects=facts.gpus,
        evidence=(
            Evidence("clock_gap_pct", "below the others' clock", gap_pct, "min_clock_gap_pct"),
            Evidence("clock_mhz", "its mean clock", own.clock_mhz),
            Evidence("others_clock_mhz", "median of the others", others.clock_mhz),
            Evidence("temperature_c", "its mean temperature", own.temperature_c),
            Evidence("others_temperature_c", "median of the others", others.temperature_c),
            Evidence(
                "last_pct", "of its collectives in which it is last", last_pct, "min_last_pct"
            ),
        ),
        cost=Cost(compute * gap_pct / 100, "its compute by the loss of clock"),
        advice=(
            Fix(f"Look at airflow and inlet temperature at the GPU of {name}, and its neighbours."),
            Fix("Swap it with a cooler machine: the late rank moves with the GPU if it is heat."),
            Fix(
                "Where you may set limits, move power from the cool GPUs to the hot one.",
                "nvidia-smi -i GPU -pl WATTS",
            ),
        ),
        caveats=("A rank with more work also runs hotter: look at its kernels first.",),
    )


RULE = Rule(
    check=check,
    area="power",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.SEVERAL_RANKS, Need.TELEMETRY),
    thresholds=Limits(),
    changes=("no-straggler",),
    explains=("straggler-rank",),
)
