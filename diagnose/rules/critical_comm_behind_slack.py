"""A collective that nobody waits for yet delays one that is needed now.

## Looks for
A collective whose consumer already waits and that stood in its stream's queue behind others whose
results are used much later.

## Why it costs time
NCCL runs what was launched first. The compute that waits for the second waits for the first, too.

## How it decides
What uses a collective is taken from the recorded waits of streams. One is critical where its
consumer, launched and free on its own stream, begins as it ends. One before it in the stream has
slack where its first use is `min_slack_us` or more after its end and later than that of the
critical one: it could have run after that and been in time. The time that critical collectives
were ready and such ones moved data, at most as long as the consumer waited, is `min_wait_pct` of
the step or more. Where which event a wait is for was not recorded, a consumer counts only if it
follows a single wait.

## Stays silent when
Both results are needed at the same place, the one before is used sooner, the critical one was not
ready earlier, or its consumer came later anyway.

## What to do
Issue the critical one first; or give it a process group of its own, with high priority. A delay of
the other is bounded by its own slack, never a constant.

## Example
A gradient's reduce-scatter of 500 us, read by the optimizer, stands before the all-gather of the
next layer's parameters, for which the compute stream waits: 500 us a layer.

## References
- NCCL, ordering of operations across communicators; NCCL_LAUNCH_ORDER_IMPLICIT
- Centauri, ASPLOS 2024: communication partitioned and ordered by need
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
    Outcome,
    Rule,
    Span,
    Symptom,
    Thresholds,
    Where,
    counted,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._consumers import NEVER, Consumers, consumers_of
from diagnose.rules._queues import Array, Queued, queued_on
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a wrong order is worth naming."""

    min_slack_us: float = limit(200.0, "from a collective's end to its first use (judgement)")
    min_wait_pct: float = limit(2.0, "of the step; worth a change of order (judgement)")


class Behind(NamedTuple):
    """Critical collectives of one GPU behind others that have time."""

    queued: Queued
    rows: Array
    """Places in the queue of the critical ones."""
    wait_ns: float
    """Per step."""
    least_slack_ns: int
    """Of those before them."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    behind = {gpu: _behind(facts, limits, gpu) for gpu in facts.gpus}
    hit = {
        gpu: one
        for gpu, one in behind.items()
        if one.rows.size and facts.share_pct(one.wait_ns) >= limits.min_wait_pct
    }
    if not hit:
        return Clean("collectives run in the order in which their results are needed")
    return (_symptom(facts, hit),)


def _behind(facts: Facts, limits: Limits, gpu: Gpu) -> Behind:
    queued = queued_on(facts, gpu)
    communicates = queued.communicates
    rows, waits, slacks = [], [], [NEVER]
    for stream in np.unique(queued.ops["stream"][communicates]).tolist():
        found = _on_stream(facts, limits, queued, consumers_of(queued, stream))
        rows.append(found[0])
        waits.append(found[1])
        slacks.append(found[2])
    none = np.empty(0, np.int64)
    return Behind(
        queued,
        np.concatenate([none, *rows]),
        float(np.concatenate([none, *waits]).sum()) / facts.steps[gpu].number,
        min(slacks),
    )


def _on_stream(
    facts: Facts, limits: Limits, queued: Queued, uses: Consumers
) -> tuple[Array, Array, int]:
    """Critical collectives, how long each waited behind others with slack, their least slack."""
    lane, consumer = uses.lane, uses.consumer
    end = queued.ops["end_ns"][lane]
    free, use, communicates = queued.free_ns[lane], uses.first_use_ns, queued.communicates[lane]
    moves = _moving_from(facts, queued, lane)
    # One that several wait for: the first to be ready has waited longest.
    since = np.maximum(queued.own_ns, queued.launched_ns)[consumer]
    order = np.lexsort((since, uses.needed))
    critical, first = np.unique(uses.needed[order], return_index=True)
    waited = end[critical] - since[order][first]
    keep = queued.in_steps[lane[critical]] & communicates[critical]
    critical, waited = critical[keep], waited[keep]
    # Pairs of each with those before it that had not ended when it was ready.
    low = np.searchsorted(np.maximum.accumulate(end), free[critical], side="right")
    count = np.maximum(critical - low, 0)
    one = np.repeat(np.arange(critical.size), count)
    ahead = np.arange(one.size) - np.repeat(np.cumsum(count) - count, count) + low[one]
    needed = critical[one]
    slack = np.where(use[ahead] == NEVER, -1, use[ahead] - end[ahead])
    fits = communicates[ahead] & (slack >= limits.min_slack_us * 1000)
    # Used later than the critical one, it could have run after that and been in time.
    fits &= use[ahead] > use[needed]
    behind = np.zeros(critical.size, np.int64)
    moved = end[ahead] - np.maximum(moves[ahead], free[needed])
    np.add.at(behind, one[fits], np.maximum(moved, 0)[fits])
    wait = np.minimum(behind, waited)
    hit = wait > 0
    return lane[critical[hit]], wait[hit], int(slack[fits].min(initial=NEVER))


def _moving_from(facts: Facts, queued: Queued, lane: Array) -> Array:
    """When each moves data: its start, or, waiting for late ranks taken out, later."""
    slack = facts.table("slack")
    start, end = queued.ops["start_ns"][lane], queued.ops["end_ns"][lane]
    if not len(slack):
        return start
    at = np.minimum(np.searchsorted(slack["gpu_op_row"], queued.rows[lane]), len(slack) - 1)
    known = slack["gpu_op_row"][at] == queued.rows[lane]
    found: Array = np.where(known, np.maximum(end - slack["transfer_ns"][at], start), start)
    return found


def _symptom(facts: Facts, hit: dict[Gpu, Behind]) -> Symptom:
    gpu, worst = max(hit.items(), key=lambda item: item[1].wait_ns)
    share, ops, least = facts.share_pct(worst.wait_ns), worst.queued.ops, worst.least_slack_ns
    spans = tuple(
        Span(gpu.source, int(worst.queued.free_ns[row]), int(ops["end_ns"][row]))
        for row in worst.rows[:3].tolist()
    )
    return Symptom(
        sentence=(
            f"{counted(int(worst.rows.size), 'collective')} that compute waited for on "
            f"{who(facts.trace, hit)} stood {duration(worst.wait_ns)} {facts.a_step} "
            f"({percent(share)}) behind others whose results were used {duration(least)} or more "
            "after their end."
        ),
        where=Where(
            gpus=tuple(hit),
            streams=tuple(np.unique(ops["stream"][worst.rows]).tolist()),
            spans=spans,
        ),
        evidence=(
            Evidence("wait_ns", f"waiting behind those {facts.a_step}", worst.wait_ns),
            Evidence("wait_pct", "share of the step", share, "min_wait_pct"),
            Evidence("num_collectives", "collectives waited for", int(worst.rows.size)),
            Evidence("slack_ns", "least slack of those before", least, "min_slack_us"),
        ),
        cost=Cost(worst.wait_ns, "waiting behind collectives that had time", True),
        advice=(
            Fix("Issue the one that is needed first before the other."),
            Fix(
                "Or give it a process group of its own, at high priority.",
                "dist.new_group(pg_options=ProcessGroupNCCL.Options(is_high_priority_stream=True))",
            ),
        ),
        caveats=(
            "The order must be the same on all ranks, across communicators too, or the job hangs.",
            "Do not delay a collective by a fixed time: only its own slack is free.",
            "Where bandwidth is the limit the total stays the same; only the order gets better.",
        ),
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.SYNC_EVENTS),
    thresholds=Limits(),
    changes=("comm-priority",),
    explains=("one-communicator-queue", "exposed-communication"),
)
