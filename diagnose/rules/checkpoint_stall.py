"""A step stops to save a checkpoint.

## Looks for
A step that is many times longer than the others and copies much more to the host: weights and
optimizer state on their way to a file.

## Why it costs time
A synchronous save copies everything to the host and writes it before training goes on, on every
rank, while all GPUs idle.

## How it decides
A timed step takes `min_step_ratio` times the median or more, and copies `min_copied_mib` more from
the GPU to the host than the median step. The time that such steps take above the median is
`min_lost_pct` of all timed steps or more. At least `min_num_steps` steps are needed to say what is
usual.

## Stays silent when
A long step copies nothing more than others (something else stopped it), or steps are few.

## What to do
Save asynchronously: copy to the host, and write in a thread while training goes on. Save sharded,
and less often.

## Example
Steps of 400 ms, and every 500th takes 20 s and copies 14 GiB to the host: 9 % of the time.

## References
- PyTorch, torch.distributed.checkpoint.async_save
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause
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
    duration,
    limit,
    size,
    who,
)
from diagnose.schema import Kind
from diagnose.trace import Gpu

_MOSTLY = 0.8
"""Of the idle time after waits of the host: lies in the saves, so that these explain it."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a step looks like a save."""

    min_step_ratio: float = limit(5.0, "of the median step; judgement")
    min_copied_mib: float = limit(64.0, "to the host, more than the median step; judgement")
    min_lost_pct: float = limit(1.0, "of the timed steps; smallest effect worth naming")
    min_num_steps: int = limit(4, "timed steps, so that the median is a usual one")


class Saves(NamedTuple):
    """Steps of one GPU that look like a save."""

    rows: tuple[int, ...]
    longest_ns: float
    usual_ns: float
    copied_bytes: float
    lost_ns: float
    lost_pct: float
    num_steps: int


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs that stop to save."""
    most = max((len(facts.steps[gpu].rows) for gpu in facts.gpus), default=0)
    if most < limits.min_num_steps:
        return NotJudged(
            f"{counted(most, 'step')} with a time: too few to say what is usual",
            "record longer, over a checkpoint",
        )
    hit = {gpu: saves for gpu in facts.gpus if (saves := _saves(facts, gpu, limits))}
    return (_symptom(facts, hit),) if hit else Clean("no step stops to copy to the host")


def _saves(facts: Facts, gpu: Gpu, limits: Limits) -> Saves | None:
    """None where no step looks like a save, or together they take too little."""
    table = facts.table("breakdown")
    steps = table.take(facts.on(table, gpu) & table.known("step_row"))
    length = (steps["end_ns"] - steps["start_ns"]).astype(np.float64)
    if len(steps) < limits.min_num_steps:
        return None
    ops = facts.operations_per_step(gpu)
    to_host = ops.strings.where(lambda text: "DtoH" in text)[ops["name"]]
    ops = ops.take(to_host & (ops["kind"] == Kind.MEMCPY) & ops.known("bytes"))
    copied = np.array([ops["bytes"][ops["step_row"] == row].sum() for row in steps["step_row"]])
    usual, more = float(np.median(length)), copied - float(np.median(copied))
    found = (length >= limits.min_step_ratio * usual) & (more >= limits.min_copied_mib * 2**20)
    lost = float((length[found] - usual).sum())
    lost_pct = 100 * lost / float(length.sum())
    if not found.any() or lost_pct < limits.min_lost_pct:
        return None
    return Saves(
        tuple(steps["step_row"][found].tolist()),
        float(length[found].max()),
        usual,
        float(more[found].max()),
        lost / len(steps),
        lost_pct,
        len(steps),
    )


def _holds_waits(facts: Facts, hit: dict[Gpu, Saves]) -> bool:
    """Whether GPUs that ran dry in a wait of the host mostly did so in these steps."""
    stalls = facts.find("stalls")
    if stalls is None:
        return False
    waits = stalls.take((stalls["cause"] == Cause.HOST_SYNC) & stalls.known("step_row"))
    saves = np.zeros(len(waits), bool)
    for gpu, one in hit.items():
        saves |= facts.on(waits, gpu) & np.isin(waits["step_row"], one.rows)
    inside = int(waits["length_ns"][saves].sum())
    return inside > _MOSTLY * int(waits["length_ns"].sum())


def _symptom(facts: Facts, hit: dict[Gpu, Saves]) -> Symptom:
    gpus = tuple(hit)
    worst = max(hit.values(), key=lambda one: one.lost_ns)
    names = facts.trace.steps.texts("name")
    return Symptom(
        sentence=(
            f"{counted(len(worst.rows), 'step')} of {worst.num_steps} on "
            f"{who(facts.trace, gpus)} "
            f"{'takes' if len(worst.rows) == 1 else 'take up to'} {duration(worst.longest_ns)} "
            f"instead of {duration(worst.usual_ns)} and "
            f"{'copies' if len(worst.rows) == 1 else 'copy'} {size(worst.copied_bytes)} more to "
            "the host, as a checkpoint does."
        ),
        where=Where(gpus=gpus, steps=tuple(str(names[row]) for row in worst.rows)),
        affects=facts.gpus,
        evidence=(
            Evidence("longest_step_ns", "longest such step", worst.longest_ns),
            Evidence("usual_step_ns", "median step", worst.usual_ns),
            Evidence(
                "step_ratio", "over the median", worst.longest_ns / worst.usual_ns, "min_step_ratio"
            ),
            Evidence("copied_bytes", "more to the host", worst.copied_bytes, "min_copied_mib"),
            Evidence("lost_pct", "of the timed steps", worst.lost_pct, "min_lost_pct"),
        ),
        cost=Cost(worst.lost_ns, "time of these steps above the median, spread over all"),
        advice=(
            Fix(
                "Save while training goes on: only the copy to the host stops it.",
                "torch.distributed.checkpoint.async_save(state, checkpoint_id=PATH)",
            ),
            Fix("Save sharded: each rank writes its own part."),
            Fix("Save less often, as far as lost work allows."),
        ),
        caveats=(
            "async_save needs host memory for a copy, and its first call page-locks that memory.",
            "The share holds for this window only: it depends on how often the job saves.",
        ),
        no_gain="no replayed change models a save beside training",
        explains=("host-sync",) if _holds_waits(facts, hit) else (),
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="medium",
    needs=(Need.STEPS,),
    thresholds=Limits(),
)
