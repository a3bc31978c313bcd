"""The GPU protects itself: heat, or the server's power, lowers its clocks.

## Looks for
Reasons for lowered clocks that protect the hardware: too hot, a slowdown by the hardware itself, or
a power brake that the server asserts.

## Why it costs time
The driver lowers clocks step by step as it gets hotter; the hardware halves them, or worse. Compute
takes as much longer, and the other ranks wait for this one.

## How it decides
While the GPU computes: a reason of the hardware (`hw_slowdown`, `hw_thermal_slowdown`,
`hw_power_brake_slowdown`) holds in at least `min_num_samples` rows of telemetry, or
`sw_thermal_slowdown` holds for `min_thermal_pct` of the window.

## Stays silent when
Only the power limit holds clocks down (power-capped), or a reason was seen in a single row, as
happens when the GPU changes its performance state.

## What to do
Cooling first: airflow, inlet temperature, dust, a neighbour that heats it. Then the power supply
and its brake signal. A GPU that stays slow needs replacing.

## Example
A GPU at 88 C with `hw_thermal_slowdown`: compute runs at 900 MHz instead of 1980.

## References
- NVML API reference, clocks event reasons
- AMD SMI, violation status
"""

from __future__ import annotations

import math
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
from diagnose.rules._sensors import busy_samples_of, holds
from diagnose.trace import Gpu, Table

_HARDWARE = {"hw_slowdown": 0x8, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80}
_THERMAL = "sw_thermal_slowdown"
_COOLING = "Look at airflow, inlet temperature and fans of this machine; reseat or clean it."
_FIXES = {
    _THERMAL: _COOLING,
    "hw_thermal_slowdown": _COOLING,
    "hw_slowdown": "Look at cooling, and at the power supply and its cables.",
    "hw_power_brake_slowdown": "The server's power brake is asserted: look at its power supplies.",
}


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When protection is worth naming."""

    min_num_samples: int = limit(2, "rows with a hardware reason: one may be a change of state")
    min_thermal_pct: float = limit(5.0, "of the window with a thermal slowdown; judgement")


class Slowed(NamedTuple):
    """The reason on one GPU that held longest."""

    reason: str
    meaning: str
    held_pct: float
    clock_mhz: float
    reference_mhz: float
    cost_pct: float
    temperature_c: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each reason, for all GPUs with it."""
    reasons = facts.table("clock_reasons")
    if not facts.trace.samples.known("clocks_event_reasons").any():
        return NotJudged("the reasons for lowered clocks were not recorded")
    by_reason: dict[str, dict[Gpu, Slowed]] = {}
    for gpu in facts.gpus:
        slowed = _slowed(facts, reasons, gpu, limits)
        if slowed is not None:
            by_reason.setdefault(slowed.reason, {})[gpu] = slowed
    if not by_reason:
        return Clean("no protection is active while the GPU computes")
    return tuple(_symptom(facts, hit) for hit in by_reason.values())


def _slowed(facts: Facts, reasons: Table, gpu: Gpu, limits: Limits) -> Slowed | None:
    own = reasons.take(facts.on(reasons, gpu) & (reasons["compute_ns"] > 0))
    samples = busy_samples_of(facts, gpu)
    found = []
    for row, name in enumerate(own.texts("reason")):
        held = float(own["held_pct"][row])
        if name in _HARDWARE:
            enough = holds(samples, _HARDWARE[name]).sum() >= limits.min_num_samples
        else:
            enough = name == _THERMAL and held >= limits.min_thermal_pct
        if name is not None and enough:
            heat = samples["temperature_c"]
            known = heat[~np.isnan(heat)]
            found.append(
                Slowed(
                    name,
                    str(own.texts("meaning")[row]),
                    held,
                    float(own["clock_mhz"][row]),
                    float(own["reference_mhz"][row]),
                    float(own["cost_pct"][row]),
                    float(known.max()) if known.size else math.nan,
                )
            )
    return max(found, key=lambda slowed: slowed.held_pct, default=None)


def _symptom(facts: Facts, hit: dict[Gpu, Slowed]) -> Symptom:
    gpus = tuple(hit)
    worst = max(hit.values(), key=lambda one: (one.cost_pct, one.held_pct))
    evidence = [
        Evidence("reason", "reason for lowered clocks", worst.reason),
        Evidence("held_pct", "of the window", worst.held_pct, _threshold(worst.reason)),
    ]
    for key, label, value in (
        ("clock_mhz", "mean clock while computing", worst.clock_mhz),
        ("reference_mhz", "highest clock recorded", worst.reference_mhz),
        ("temperature_c", "highest temperature", worst.temperature_c),
    ):
        if not math.isnan(value):
            evidence.append(Evidence(key, label, value))
    at = "" if math.isnan(worst.clock_mhz) else f", compute runs at {worst.clock_mhz:.0f} MHz"
    cost = None
    if not math.isnan(worst.cost_pct):
        cost = Cost(facts.step_ns * worst.cost_pct / 100, "compute time by the loss of clock")
    return Symptom(
        sentence=(
            f"{worst.reason} on {who(facts.trace, gpus)} for {percent(worst.held_pct)} of the "
            f"window: {worst.meaning}{at}."
        ),
        where=Where(gpus=gpus),
        evidence=tuple(evidence),
        cost=cost,
        changes=_changes(worst),
        advice=(
            Fix(_FIXES[worst.reason]),
            Fix("See temperatures and the thresholds.", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
            Fix("Take the machine out of the job until it is cool, and compare."),
        ),
        caveats=(
            "Another reason may hold at the same time and be the one that counts.",
            "The gain is that of the highest clock recorded, which the power limit may not allow.",
        ),
        no_gain="the clock was not recorded",
        subject=worst.reason,
    )


def _changes(slowed: Slowed) -> tuple[str, ...]:
    """The step at the highest clock that was recorded: what a GPU left alone could reach."""
    if math.isnan(slowed.reference_mhz):
        return ()
    return (f"higher-clocks:mhz={slowed.reference_mhz:g}",)


def _threshold(reason: str) -> str | None:
    return "min_thermal_pct" if reason == _THERMAL else None


RULE = Rule(
    check=check,
    area="power",
    confidence="high",
    needs=(Need.TELEMETRY,),
    thresholds=Limits(),
)
