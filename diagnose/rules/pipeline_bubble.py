"""Pipeline stages wait longer for each other than the schedule asks for.

## Looks for
Ranks that send to and receive from each other as the stages of a pipeline do, and wait in these
transfers for more time than a pipeline of as many stages and micro-batches must.

## Why it costs time
While the first micro-batch travels to the last stage, later stages have nothing to do, and while
the last gradients travel back, earlier ones have not. This bubble is (p - 1) / m of the work for p
stages and m micro-batches. What is beyond it comes from uneven stages, slow transfers or a
schedule that waits more than it has to.

## How it decides
Stages are the ranks that point-to-point transfers connect, in the order of their numbers; m is how
often a step sends to the next stage with compute in between (with interleaved stages that is m
times the pieces of a stage, as their ideal bubble is). The bubble is point-to-point communication
with no compute beside it, the mean over the stages. It fires where that is `min_over_ideal_pct` or
more above (p - 1) / m of the mean work, by `min_excess_pct` of the step or more, and the last stage
waits `min_growth_pct` of the step longer than the first before its first compute of a step. All
stages must have been recorded.

## Stays silent when
The bubble is what the schedule asks for, however large; or ranks exchange data without being
stages (rings of context parallelism begin to compute all at once).

## What to do
Balance the stages. Then more micro-batches make the bubble smaller, and so does interleaving.

## Example
4 stages, 16 micro-batches: the bubble should be 3 / 16 of the work, 19 %. With 10, 10, 10 and 13
layers the last stage sets the pace, and the mean stage waits for 38 % of its work.

## References
- Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, arXiv 2104.04473
- Judgement: the thresholds
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
    NotApplicable,
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
from diagnose.rules._pipeline import Stage, pipelines, stage_of, transfers_without_peer
from diagnose.trace import Gpu

_UNEVEN = 1.05
"""Most over mean work, from which stages are worth balancing: the level of work-imbalance."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a bubble is larger than it has to be."""

    min_over_ideal_pct: float = limit(20.0, "above the ideal bubble (judgement)")
    min_excess_pct: float = limit(3.0, "of the step beyond the ideal bubble (judgement)")
    min_growth_pct: float = limit(1.0, "of the step, last against first stage (judgement)")


class Bubble(NamedTuple):
    """One pipeline. Times are per step, means over its stages."""

    stages: tuple[Stage, ...]
    num_batches: float
    bubble_ns: float
    ideal_ns: float
    growth_ns: float
    """How much longer the last stage waits before its first compute than the first."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Of its stages, in order."""
        return tuple(stage.gpu for stage in self.stages)

    @property
    def unevenness(self) -> float:
        """Most over mean work of a stage."""
        work = [stage.work_ns for stage in self.stages]
        return max(work) / float(np.mean(work)) if max(work) > 0 else 1.0


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all pipelines, with the figures of the worst."""
    found = pipelines(facts)
    if not found:
        if transfers_without_peer(facts):
            return NotJudged(
                "sends and receives do not say with which rank",
                "PyTorch notes it for single sends and receives only, not for batch_isend_irecv; "
                "compare waiting times of the stages in `diagnose report`",
            )
        return NotApplicable("no ranks send to each other as stages do")
    whole = [ranks for ranks in found if len(ranks.gpus) == len(ranks.ranks)]
    if not whole:
        ranks = found[0]
        return NotJudged(
            f"of {counted(len(ranks.ranks), 'stage')} only {len(ranks.gpus)} were recorded",
            "record all ranks of a pipeline and give their traces together",
        )
    bubbles = [bubble for ranks in whole if (bubble := _bubble(facts, ranks.gpus)) is not None]
    hit = [bubble for bubble in bubbles if _is_large(facts, bubble, limits)]
    return (_symptom(facts, hit),) if hit else Clean("bubbles are as the schedule has them")


def _bubble(facts: Facts, gpus: tuple[Gpu, ...]) -> Bubble | None:
    """None where no stage sends to the next one."""
    stages = tuple(stage_of(facts, gpus, place) for place in range(len(gpus)))
    batches = max(stage.num_batches for stage in stages)
    if not batches:
        return None
    work = float(np.mean([stage.work_ns for stage in stages]))
    return Bubble(
        stages,
        batches,
        float(np.mean([stage.waits_ns for stage in stages])),
        (len(gpus) - 1) / batches * work,
        stages[-1].head_ns - stages[0].head_ns,
    )


def _is_large(facts: Facts, bubble: Bubble, limits: Limits) -> bool:
    excess = bubble.bubble_ns - bubble.ideal_ns
    return (
        bubble.bubble_ns >= (1 + limits.min_over_ideal_pct / 100) * bubble.ideal_ns
        and facts.share_pct(excess) >= limits.min_excess_pct
        and facts.share_pct(bubble.growth_ns) >= limits.min_growth_pct
    )


def _symptom(facts: Facts, hit: list[Bubble]) -> Symptom:
    gpus = tuple(gpu for gpu in facts.gpus if any(gpu in bubble.gpus for bubble in hit))
    bubble = max(hit, key=lambda one: one.bubble_ns - one.ideal_ns)
    excess = bubble.bubble_ns - bubble.ideal_ns
    over = 100 * excess / bubble.ideal_ns if bubble.ideal_ns else float("inf")
    return Symptom(
        sentence=(
            f"The {len(bubble.gpus)} pipeline stages of {who(facts.trace, bubble.gpus)} wait "
            f"{duration(bubble.bubble_ns)} {facts.a_step} for each other "
            f"({percent(facts.share_pct(bubble.bubble_ns))}), where {bubble.num_batches:.0f} "
            f"micro-batches ask for {duration(bubble.ideal_ns)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("bubble_ns", f"waiting {facts.a_step}, mean of stages", bubble.bubble_ns),
            Evidence("ideal_ns", "that the schedule asks for", bubble.ideal_ns),
            Evidence("over_ideal_pct", "above that", over, "min_over_ideal_pct"),
            Evidence("excess_pct", "of the step", facts.share_pct(excess), "min_excess_pct"),
            Evidence(
                "growth_pct",
                "last stage begins later than the first, of the step",
                facts.share_pct(bubble.growth_ns),
                "min_growth_pct",
            ),
            Evidence("num_stages", "stages", len(bubble.gpus)),
            Evidence("num_pipelines", "pipelines that wait so", len(hit)),
            Evidence("num_batches", "sends to the next stage", bubble.num_batches),
            Evidence("work_ratio", "most over mean work of a stage", bubble.unevenness),
        ),
        cost=Cost(excess, "waiting for other stages beyond the ideal bubble"),
        advice=_advice(bubble),
        caveats=(
            "The size of a batch, and with it the number of micro-batches, may be fixed by "
            "convergence.",
            "More micro-batches in flight take memory.",
            "Transfers themselves are part of the waiting; where two stages are interleaved, "
            "micro-batches are counted up to twice and the ideal bubble is larger.",
        ),
        no_gain="no replayed change models another schedule",
    )


def _advice(bubble: Bubble) -> tuple[Fix, ...]:
    balance = Fix("Move layers from the busiest stage to the others.")
    rest = (
        Fix("More micro-batches in a step make the bubble a smaller part of it."),
        Fix(
            "Give each stage several smaller pieces of the model (interleaving).",
            "--num-layers-per-virtual-pipeline-stage  # Megatron; torch: ScheduleInterleaved1F1B",
        ),
    )
    return (balance, *rest) if bubble.unevenness >= _UNEVEN else rest


RULE = Rule(
    check=check,
    area="ranks",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.SEVERAL_RANKS),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
