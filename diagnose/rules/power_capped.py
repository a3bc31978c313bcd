"""The power limit holds the clocks down.

## Looks for
A GPU that reaches its power limit while it is busy, and runs below its highest clock because of it.

## Why it costs time
Compute-bound kernels take longer by as much as the clock is lower; memory-bound kernels and
communication hardly do.

## How it decides
The power cap is among the reasons for lowered clocks, compute ran `min_clock_loss_pct` below the
reference clock meanwhile (weighted by time), and power was `min_power_pct` of the limit or more.
The bit alone decides nothing: healthy jobs show it most of the time.

## Stays silent when
The loss is small, power is below the limit (then another limit is at work), or no telemetry was
recorded.

## What to do
If somebody lowered the limit, raise it. Otherwise waste fewer watts: less spinning in late
collectives, fewer channels of NCCL, and less overlap of two hungry kernels.

## Example
Matrix products back to back on a GPU of 700 W: mean power 683 W, the clock swings between 1140 and
1980 MHz, and compute runs 27 % below the highest clock.

## References
- NVML API reference, clocks event reasons
- arXiv 2507.03114: what power limits do to overlap
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

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
    limit,
    percent,
    who,
)
from diagnose.trace import Gpu, Table

_REASON = "sw_power_cap"
_FEWER_WATTS = (
    Fix(
        "Spend fewer watts on communication: fewer channels, less waiting for late ranks.",
        "NCCL_MAX_CTAS=8",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the power limit is worth naming."""

    min_clock_loss_pct: float = limit(
        5.0, "below the reference clock; healthy recordings show 1 to 8 % (measured)"
    )
    min_power_pct: float = limit(95.0, "of the limit, mean or peak; judgement")


class Capped(NamedTuple):
    """One GPU whose clocks the power limit holds down."""

    loss_pct: float
    clock_mhz: float
    reference_mhz: float
    power_w: float
    is_peak: bool
    """The power is the highest reading: the window is too short for a mean."""
    limit_w: float
    held_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs at their limit."""
    reasons = facts.table("clock_reasons")
    power = facts.table("power_summary")
    hit = {}
    for gpu in facts.gpus:
        capped = _capped(facts, reasons, power, gpu)
        if (
            capped is not None
            and capped.loss_pct >= limits.min_clock_loss_pct
            and capped.power_w >= limits.min_power_pct / 100 * capped.limit_w
        ):
            hit[gpu] = capped
    if not hit:
        return Clean("clocks are near their highest, or power is below the limit")
    return (_symptom(facts, hit),)


def _capped(facts: Facts, reasons: Table, power: Table, gpu: Gpu) -> Capped | None:
    """None where the reason was not seen or a figure is missing."""
    own = reasons.take(facts.on(reasons, gpu))
    rows = [row for row, name in enumerate(own.texts("reason")) if name == _REASON]
    summary = power.take(facts.on(power, gpu))
    if not rows or not len(summary):
        return None
    clock, reference = (float(own[n][rows[0]]) for n in ("clock_mhz", "reference_mhz"))
    mean, peak, most = (float(summary[n][0]) for n in ("mean_w", "peak_w", "limit_w"))
    found = Capped(
        100 * (1 - clock / reference) if reference else math.nan,
        clock,
        reference,
        peak if math.isnan(mean) else mean,
        math.isnan(mean),
        most,
        float(own["held_pct"][rows[0]]),
    )
    return None if any(map(math.isnan, found)) else found


def _symptom(facts: Facts, hit: dict[Gpu, Capped]) -> Symptom:
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: hit[gpu].loss_pct)
    capped = hit[worst]
    steps = facts.table("breakdown")
    compute = facts.per_step(steps, "compute_only_ns", worst)
    hidden = facts.per_step(steps, "overlapped_ns", worst)
    compute += hidden
    communicates = hidden + facts.per_step(steps, "exposed_communication_ns", worst) > 0
    verb = "runs" if len(gpus) == 1 else "run"
    return Symptom(
        sentence=(
            f"The power limit of {capped.limit_w:.0f} W holds the clock down: compute on "
            f"{who(facts.trace, gpus)} {verb} at {capped.clock_mhz:.0f} MHz instead of "
            f"{capped.reference_mhz:.0f} MHz ({percent(capped.loss_pct)} lower)."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence(
                "clock_loss_pct", "clock below the reference", capped.loss_pct, "min_clock_loss_pct"
            ),
            Evidence("clock_mhz", "mean clock while computing", capped.clock_mhz),
            Evidence("reference_mhz", "reference clock", capped.reference_mhz),
            Evidence(
                "power_w",
                "highest reading of power" if capped.is_peak else "mean power",
                capped.power_w,
            ),
            Evidence("limit_w", "limit", capped.limit_w),
            Evidence(
                "power_pct",
                "of the limit",
                100 * capped.power_w / capped.limit_w,
                "min_power_pct",
            ),
            Evidence("held_pct", "of the window with the limit reached", capped.held_pct),
        ),
        cost=Cost(compute * capped.loss_pct / 100, "compute time by the loss of clock"),
        advice=(
            Fix(
                "See whether the limit was lowered, and raise it (needs administrator rights).",
                "nvidia-smi -q -d POWER; nvidia-smi -pl WATTS",
            ),
            *(_FEWER_WATTS if communicates else ()),
            Fix("Compare limits on this job.", "diagnose power-sweep -- COMMAND"),
        ),
        caveats=(
            "Memory-bound kernels and communication gain hardly anything from a higher clock.",
            "A limit that was set on purpose, or rights that you do not have.",
        ),
        no_gain="no replayed change models a higher limit",
    )


RULE = Rule(
    check=check,
    area="power",
    confidence="medium",
    needs=(Need.TELEMETRY,),
    thresholds=Limits(),
)
