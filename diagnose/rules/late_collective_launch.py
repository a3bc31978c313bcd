"""The host issues collectives long after they could have begun.

## Looks for
Collectives that begin as soon as they are launched, on a stream that was idle, though what they
wait for had been over long before.

## Why it costs time
What the collective could have hidden behind is over when it begins, and the step waits for it.

## How it decides
A collective counts where it begins within `max_start_us` of its launch, and the operation before
it on its stream and all that recorded waits make it wait for ended `min_late_us` or more before
the launch. It could have saved at most that time, and at most its own transfer with no compute
beside it; over a step that is `min_late_pct` of it or more. A wait whose event is not recorded is
taken to be for everything launched before it, so that lateness is at least what is said here.

## Stays silent when
The host is ahead of the GPU (collectives start long after their launch: prefetching that FSDP does
by itself suffices), their input was not ready, or compute hides them.

## What to do
Issue them earlier: explicit prefetching for FSDP; where the host is late with everything, cure that
first (launch-bound, host-sync).

## Example
Per layer, the host runs 400 us of Python before it launches the all-gather of 300 us, on a GPU that
has long done the layer before: 300 us a layer.

## References
- PyTorch, FSDP: forward_prefetch is for loads bound by the host
- PyTorch, fully_shard: set_modules_to_forward_prefetch
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
from diagnose.rules._queues import Array, Queued, queued_on
from diagnose.schema import NULL
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a late launch is worth naming."""

    max_start_us: float = limit(20.0, "from launch to start; more: the host is ahead (judgement)")
    min_late_us: float = limit(100.0, "from ready to launch; several launches long (judgement)")
    min_late_pct: float = limit(3.0, "of the step; worth a change of one line (judgement)")


class Late(NamedTuple):
    """Collectives of one GPU that were launched late."""

    queued: Queued
    rows: Array
    lost_ns: float
    """Per step, at most."""
    median_late_ns: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    late = {gpu: _late(facts, limits, gpu) for gpu in facts.gpus}
    hit = {
        gpu: one
        for gpu, one in late.items()
        if one.rows.size and facts.share_pct(one.lost_ns) >= limits.min_late_pct
    }
    if not hit:
        return Clean("collectives are launched as soon as they can begin, or early enough")
    return (_symptom(facts, hit),)


def _late(facts: Facts, limits: Limits, gpu: Gpu) -> Late:
    queued, slack = queued_on(facts, gpu), facts.table("slack")
    before = np.maximum(queued.own_ns, queued.waited_ns)
    start, launched = queued.ops["start_ns"], queued.launched_ns
    wanted = queued.in_steps & queued.communicates & (before != NULL) & (before <= launched)
    wanted &= start - launched < limits.max_start_us * 1000
    rows = np.flatnonzero(wanted)
    late = launched[rows] - before[rows]
    rows, late = rows[late >= limits.min_late_us * 1000], late[late >= limits.min_late_us * 1000]
    at = np.searchsorted(slack["gpu_op_row"], queued.rows[rows])
    lost = np.minimum(late, slack["exposed_transfer_ns"][at])
    rows, late, lost = rows[lost > 0], late[lost > 0], lost[lost > 0]
    return Late(
        queued,
        rows,
        float(lost.sum()) / facts.steps[gpu].number,
        float(np.median(late)) if late.size else 0.0,
    )


def _symptom(facts: Facts, hit: dict[Gpu, Late]) -> Symptom:
    gpu, worst = max(hit.items(), key=lambda item: item[1].lost_ns)
    share, queued = facts.share_pct(worst.lost_ns), worst.queued
    spans = tuple(
        Span(gpu.source, int(queued.launched_ns[row]), int(queued.ops["end_ns"][row]))
        for row in worst.rows[:3].tolist()
    )
    return Symptom(
        sentence=(
            f"{counted(int(worst.rows.size), 'collective')} on {who(facts.trace, hit)} "
            f"could have begun {duration(worst.median_late_ns)} (median) before the host launched "
            f"them: {duration(worst.lost_ns)} of communication {facts.a_step} ({percent(share)}) "
            "could have been over by then."
        ),
        where=Where(
            gpus=tuple(hit),
            streams=tuple(np.unique(queued.ops["stream"][worst.rows]).tolist()),
            spans=spans,
        ),
        evidence=(
            Evidence("lost_ns", f"exposed, launched late {facts.a_step}", worst.lost_ns),
            Evidence("late_pct", "share of the step", share, "min_late_pct"),
            Evidence(
                "median_late_ns",
                "from ready to launch, median",
                worst.median_late_ns,
                "min_late_us",
            ),
            Evidence("num_collectives", "collectives launched late", int(worst.rows.size)),
        ),
        cost=Cost(worst.lost_ns, "exposed transfer of collectives launched late", True),
        advice=(
            Fix(
                "FSDP: prefetch explicitly, so that the host issues it earlier.",
                "module.set_modules_to_forward_prefetch([...])  # FSDP1: forward_prefetch=True",
            ),
            Fix(
                "Issue it where its input is ready, and wait where its result is used.",
                "work = dist.all_reduce(x, async_op=True); ...; work.wait()",
            ),
            Fix("Where the host is late with everything, cure what holds it first."),
        ),
        caveats=(
            "Prefetching holds more parameters in memory.",
            "What the host itself computes before it can launch (sizes, splits) has to come first.",
        ),
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
