"""Power peaks above the limit.

## Looks for
Readings of instant power above the power limit of the GPU.

## Why it costs time
It costs the job nothing by itself: a GPU may exceed its limit for moments, and the control loop
brings the mean back below it. It matters to those who run the machine, since supplies and cabling
carry the peaks of many GPUs that step together.

## How it decides
At least `min_num_refreshes` different readings of the sensor exceed `min_peak_pct` of the limit, in
all of the telemetry. Rows that repeat a reading count once.

## Stays silent when
Only a mean over a second was recorded (it hides peaks), the limit is not known, or a single reading
is over.

## What to do
Nothing on the GPU. Tell those who plan the power supply, with the height and the number.

## Example
Matrix products back to back on a GPU of 700 W: the mean is 683 W, and instant power peaks at 842 W,
120 % of the limit.

## References
- NVML API reference, NVML_FI_DEV_POWER_INSTANT
- arXiv 2507.03114: peaks of up to 140 % of the limit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.rules import (
    Clean,
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
    counted,
    limit,
    percent,
    who,
)
from diagnose.rules._sensors import samples_of
from diagnose.trace import Gpu, Table


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """Which peaks are worth naming."""

    min_peak_pct: float = limit(105.0, "of the limit; above what a control loop leaves; judgement")
    min_num_refreshes: int = limit(2, "readings over it: one may be a glitch of the sensor")


class Peaks(NamedTuple):
    """Readings of one GPU above its limit."""

    number: int
    peak_w: float
    limit_w: float
    refresh_ns: float

    @property
    def peak_pct(self) -> float:
        """The highest reading, of the limit."""
        return 100 * self.peak_w / self.limit_w


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs with peaks."""
    power = facts.table("power_summary")
    seen = {gpu: peaks for gpu in facts.gpus if (peaks := _peaks(facts, power, gpu, limits))}
    if not seen:
        return NotJudged(
            "neither instant power nor a limit was recorded", "record on a GPU that reports both"
        )
    hit = {gpu: one for gpu, one in seen.items() if one.number >= limits.min_num_refreshes}
    return (_symptom(facts, hit),) if hit else Clean("power stays near or below the limit")


def _peaks(facts: Facts, power: Table, gpu: Gpu, limits: Limits) -> Peaks | None:
    """None where the sensor or the limit is missing."""
    summary = power.take(facts.on(power, gpu))
    if not len(summary) or not bool(summary.known("peak_sensor")[0]):
        return None
    limit_w = float(summary["limit_w"][0])
    if not limit_w > 0:
        return None
    samples = samples_of(facts, gpu)
    readings = samples[str(summary.texts("peak_sensor")[0])]
    readings = readings[~np.isnan(readings)]
    new = np.append(True, readings[1:] != readings[:-1])[: len(readings)]
    over = new & (readings > limits.min_peak_pct / 100 * limit_w)
    peak_w = float(summary["recorded_peak_w"][0])
    return Peaks(int(over.sum()), peak_w, limit_w, float(summary["refresh_ns"][0]))


def _symptom(facts: Facts, hit: dict[Gpu, Peaks]) -> Symptom:
    gpus = tuple(hit)
    most = max(hit.values(), key=lambda peaks: peaks.peak_pct)
    return Symptom(
        sentence=(
            f"Power of {who(facts.trace, gpus)} peaks at {most.peak_w:.0f} W or more, "
            f"{percent(most.peak_pct)} of the limit of {most.limit_w:.0f} W "
            f"({counted(most.number, 'reading')} over it)."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("peak_w", "highest reading, at least", most.peak_w),
            Evidence("limit_w", "limit", most.limit_w),
            Evidence("peak_pct", "of the limit", most.peak_pct, "min_peak_pct"),
            Evidence("num_readings", "readings over it", most.number, "min_num_refreshes"),
            Evidence("refresh_ns", "the sensor has a new value every", most.refresh_ns),
        ),
        advice=(
            Fix("Tell those who plan power supplies and cabling: nothing is wrong with the GPU."),
            Fix("See in which part of the step power peaks.", "diagnose power RECORDING"),
        ),
        caveats=(
            "The true peaks are higher: the sensor has a new value a few times a second only.",
        ),
        no_gain="peaks of power cost the job no time",
    )


RULE = Rule(
    check=check,
    area="power",
    confidence="high",
    needs=(Need.TELEMETRY,),
    thresholds=Limits(),
    at_most="info",
)
