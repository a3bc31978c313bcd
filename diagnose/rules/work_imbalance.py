"""Ranks do unequal work.

## Looks for
Ranks whose kernels amount to more compute in a step than the others', each kernel counted at the
same speed on all ranks.

## Why it costs time
Ranks meet at collectives: a step is as long as its largest share of work, and the others wait.

## How it decides
Work is the sum of a step's compute kernels, each taken as long as the median kernel of the same
name, launch shape and input shapes on all ranks; kernels that no other rank has are scaled by how
fast their rank runs those that others have too. It fires where the most of any rank is
`min_of_mean_ratio` times the mean or more, in `min_of_steps_pct` of the steps or more. A rank that
runs the same kernels more slowly has no more work by this measure.

## Stays silent when
Ranks run the same kernels as often, whatever their speed; or the recording does not tell kernels of
different size apart (no launch shapes).

## What to do
Even the work out: bucket or pack sequences by length, balance experts, move layers between pipeline
stages.

## Example
Rank 3 of 8 gets the longest sequences: 1.2 times the mean work in 9 of 10 steps, and the others
wait for the difference in the next collective.

## References
- Lin et al., Understanding Stragglers in Large Model Training, arXiv 2505.05713
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    percent,
    who,
)
from diagnose.schema import Activity
from diagnose.trace import Gpu, Table

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When unequal work is worth naming."""

    min_of_mean_ratio: float = limit(1.05, "most of any rank over the mean; judgement")
    min_of_steps_pct: float = limit(50.0, "of the steps; judgement")


class Work(NamedTuple):
    """Work of each GPU (rows) in each step (columns), in ns at the common speed."""

    gpus: tuple[Gpu, ...]
    of_step: Floats
    speed: Floats
    """Of each GPU: time that shared kernels take at the common speed over what they took."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding, for the ranks with most work."""
    work = _work_of(facts)
    if work is None:
        return NotJudged(
            "no step was recorded on all ranks", "record the same steps of all ranks together"
        )
    ratio = work.of_step.max(0) / work.of_step.mean(0)
    uneven = ratio >= limits.min_of_mean_ratio
    if 100 * uneven.mean() < limits.min_of_steps_pct:
        return Clean("all ranks do about the same work")
    return (_symptom(facts, work, ratio, uneven),)


def _work_of(facts: Facts) -> Work | None:
    numbers = facts.trace.steps["number"]
    steps = [{int(numbers[row]) for row in facts.steps[gpu].rows} for gpu in facts.gpus]
    shared = sorted(set.intersection(*steps))
    kernels = [_kernels(facts, gpu) for gpu in facts.gpus]
    if not shared or not all(len(one) for one in kernels):
        return None
    keys = np.concatenate(
        [np.stack([k["name"], k["launch_shape"], k["shapes"]], 1) for k in kernels]
    )
    length = np.concatenate([k["end_ns"] - k["start_ns"] for k in kernels]).astype(np.float64)
    owner = np.repeat(np.arange(len(kernels)), [len(k) for k in kernels])
    number = np.concatenate([numbers[k["step_row"]] for k in kernels])
    _, key = np.unique(keys, axis=0, return_inverse=True)
    common, speed = _at_common_speed(key.reshape(-1), length, owner, len(kernels))
    of_step = np.array(
        [
            [common[(owner == gpu) & (number == step)].sum() for step in shared]
            for gpu in range(len(kernels))
        ]
    )
    return Work(facts.gpus, of_step, speed) if (of_step.mean(0) > 0).all() else None


def _kernels(facts: Facts, gpu: Gpu) -> Table:
    ops = facts.operations_per_step(gpu)
    return ops.take(ops["activity"] == Activity.COMPUTE)


def _at_common_speed(
    key: npt.NDArray[np.int64], length: Floats, owner: npt.NDArray[np.int64], gpus: int
) -> tuple[Floats, Floats]:
    """Each kernel at the common speed, and the speed of each GPU."""
    order = np.argsort(key, kind="stable")
    pieces = np.split(order, np.cumsum(np.bincount(key))[:-1])
    common, several = length.copy(), np.zeros(length.size, bool)
    for rows in pieces:
        # The median over ranks: a rank with many kernels counts as much as one with few.
        owners = np.unique(owner[rows])
        if owners.size > 1:
            several[rows] = True
            own = [np.median(length[rows[owner[rows] == one]]) for one in owners]
            common[rows] = np.median(own)
    speed = np.ones(gpus)
    for gpu in range(gpus):
        rows = several & (owner == gpu)
        if length[rows].sum() > 0:
            speed[gpu] = common[rows].sum() / length[rows].sum()
        common[~several & (owner == gpu)] *= speed[gpu]
    return common, speed


def _symptom(facts: Facts, work: Work, ratio: Floats, uneven: npt.NDArray[np.bool_]) -> Symptom:
    most = work.of_step.argmax(0)[uneven]
    times: Mapping[int, int] = {gpu: int((most == gpu).sum()) for gpu in np.unique(most).tolist()}
    always = [gpu for gpu, number in times.items() if number > most.size / 2]
    gpus = tuple(work.gpus[gpu] for gpu in always)
    beyond = float((work.of_step.max(0) - work.of_step.mean(0)).mean())
    name = who(facts.trace, gpus) if gpus else "another rank each time"
    return Symptom(
        sentence=(
            f"Ranks do unequal work in {int(uneven.sum())} of {counted(uneven.size, 'step')}: the "
            f"most ({name}) is {np.median(ratio[uneven]):.2f} times the mean, "
            f"{duration(beyond)} a step more ({percent(facts.share_pct(beyond))})."
        ),
        where=Where(gpus=gpus),
        affects=facts.gpus,
        evidence=(
            Evidence(
                "of_mean_ratio",
                "most work over the mean, median of these steps",
                float(np.median(ratio[uneven])),
                "min_of_mean_ratio",
            ),
            Evidence(
                "of_steps_pct", "of the steps", float(100 * uneven.mean()), "min_of_steps_pct"
            ),
            Evidence("beyond_mean_ns", "most work less the mean, a step", beyond),
            Evidence(
                "slowest_speed_ratio", "slowest rank's speed, same kernels", float(work.speed.min())
            ),
        ),
        cost=Cost(beyond, "the most work of any rank less the mean"),
        advice=(
            Fix("Give ranks samples of like length: bucket by length, or pack sequences."),
            Fix("Experts: balance the tokens that each rank gets."),
            Fix("Pipeline stages: move layers from the fullest stage to the others."),
        ),
        caveats=(
            "Kernels that take longer for the same shapes are clocks or heat, not work: see the "
            "speed above.",
        ),
    )


RULE = Rule(
    check=check,
    area="ranks",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.SEVERAL_RANKS, Need.STEPS),
    thresholds=Limits(),
    changes=("no-straggler",),
    explains=("straggler-rank", "exposed-communication"),
)
