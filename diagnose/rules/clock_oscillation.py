"""The clock of the GPU swings while it is busy.

## Looks for
A clock of the multiprocessors that goes down and up again during the recorded work.

## Why it costs time
Each low costs compute-bound kernels its share of time, and two steps, or two runs, are no longer
comparable: the same kernel takes longer at a lower clock.

## How it decides
Within the window of the GPU's work the clock covers `min_range_pct` of the highest clock recorded,
and it turns at least `min_num_swings` times. A swing is a move by half of that range or more
before the clock turns; smaller moves are noise of the control loop. Rows in which the GPU idled do
not count: an idle GPU lowers its clock as it should.

## Stays silent when
The clock is steady, falls once and stays, or too few readings were taken.

## What to do
The reason that held during the lows names the cause: the power limit, temperature or the hardware.
To compare runs, lock the clock to one that the GPU can hold.

## Example
Matrix products back to back on a GPU of 700 W: the clock moves between 1320 and 1560 MHz, with the
power limit as the reason.

## References
- NVML API reference, clocks event reasons
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
    counted,
    limit,
    percent,
    who,
)
from diagnose.rules._sensors import busy_samples_of, samples_of
from diagnose.trace import Gpu, Table

_FIXES = {
    "sw_power_cap": "The power limit holds it down: spend fewer watts, or raise the limit.",
    "sw_thermal_slowdown": "Temperature holds it down: look at airflow and inlet temperature.",
    "hw_thermal_slowdown": "Temperature holds it down: look at airflow and inlet temperature.",
    "hw_slowdown": "The hardware protects itself: look at cooling and the power supply.",
    "hw_power_brake_slowdown": "The server asks for less power: look at its power supply.",
}


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a clock swings."""

    min_range_pct: float = limit(10.0, "of the highest clock recorded; judgement")
    min_num_swings: int = limit(3, "moves down and up: fewer are one change of load; judgement")


class Swings(NamedTuple):
    """The clock of one GPU while it was busy."""

    number: int
    least_mhz: float
    most_mhz: float
    highest_mhz: float
    mean_mhz: float

    @property
    def range_pct(self) -> float:
        """What the clock covers, of the highest."""
        return 100 * (self.most_mhz - self.least_mhz) / self.highest_mhz


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs whose clock swings."""
    seen = {gpu: found for gpu in facts.gpus if (found := _swings(facts, gpu, limits))}
    if not seen:
        return NotJudged("the clock was not recorded while the GPU was busy")
    hit = {
        gpu: one
        for gpu, one in seen.items()
        if one.range_pct >= limits.min_range_pct and one.number >= limits.min_num_swings
    }
    return (_symptom(facts, hit),) if hit else Clean("the clock is steady while the GPU is busy")


def _swings(facts: Facts, gpu: Gpu, limits: Limits) -> Swings | None:
    """None without two readings of the clock."""
    every = _clock(samples_of(facts, gpu))
    busy = _clock(busy_samples_of(facts, gpu))
    if len(busy) < 2:
        return None
    highest = float(every.max())
    turn = limits.min_range_pct / 200 * highest
    mean = float(busy.mean())
    return Swings(_turns(busy.tolist(), turn), float(busy.min()), float(busy.max()), highest, mean)


def _clock(samples: Table) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    clock = samples["sm_clock_mhz"]
    return clock[clock > 0]


def _turns(clock: list[float], least: float) -> int:
    """Moves of ``least`` or more, one way and then the other."""
    low = high = clock[0]
    direction, number = 0, 0
    for value in clock:
        low, high = min(low, value), max(high, value)
        if direction <= 0 and value - low >= least:
            direction, number, low, high = 1, number + 1, value, value
        elif direction >= 0 and high - value >= least:
            direction, number, low, high = -1, number + 1, value, value
        elif direction > 0:
            low = high
        elif direction < 0:
            high = low
    return number


def _symptom(facts: Facts, hit: dict[Gpu, Swings]) -> Symptom:
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: hit[gpu].range_pct)
    swings = hit[worst]
    names, meaning = _reasons(facts, worst)
    loss_pct = 100 * (1 - swings.mean_mhz / swings.highest_mhz)
    steps = facts.table("breakdown")
    compute = facts.per_step(steps, "compute_only_ns", worst)
    compute += facts.per_step(steps, "overlapped_ns", worst)
    because = f": {meaning}" if meaning else ""
    return Symptom(
        sentence=(
            f"The clock of {who(facts.trace, gpus)} swings {counted(swings.number, 'time')} "
            f"between {swings.least_mhz:.0f} and {swings.most_mhz:.0f} MHz while busy "
            f"({percent(swings.range_pct)} of {swings.highest_mhz:.0f} MHz){because}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("clock_least_mhz", "lowest clock while busy", swings.least_mhz),
            Evidence("clock_most_mhz", "highest clock while busy", swings.most_mhz),
            Evidence("range_pct", "of the highest recorded", swings.range_pct, "min_range_pct"),
            Evidence("num_swings", "swings", swings.number, "min_num_swings"),
            Evidence("reasons", "reasons that held", ", ".join(names) or "none recorded"),
        ),
        cost=Cost(compute * loss_pct / 100, "compute time by the loss of clock"),
        advice=(
            *(Fix(text) for text in dict.fromkeys(_FIXES[n] for n in names if n in _FIXES)),
            Fix(
                "To compare runs, lock the clock below the lows (needs administrator rights).",
                f"nvidia-smi -lgc {swings.least_mhz:.0f}; nvidia-smi -rgc  # undo",
            ),
        ),
        caveats=(
            "The sensor is read a few times a second: faster swings do not show.",
            "Phases in which the GPU idles lower the clock too; rows that say so are left out.",
        ),
        no_gain="no replayed change models a steady clock",
    )


def _reasons(facts: Facts, gpu: Gpu) -> tuple[list[str], str]:
    """Names of the reasons that lowered the clock, longest held first; what the first means."""
    table = facts.find("clock_reasons")
    if table is None:
        return [], ""
    own = table.take(facts.on(table, gpu) & table["slows"] & (table["held_ns"] > 0))
    order = np.argsort(-own["held_ns"], kind="stable").tolist()
    names = [str(own.texts("reason")[row]) for row in order]
    return names, str(own.texts("meaning")[order[0]]) if order else ""


RULE = Rule(
    check=check,
    area="power",
    confidence="medium",
    needs=(Need.TELEMETRY,),
    thresholds=Limits(),
)
