"""The last gradients are reduced when the backward pass is over.

## Looks for
Reductions of gradients that run after the last kernel of their backward pass.

## Why it costs time
A bucket is reduced once its last gradient is there. The bucket of the first layers is full when
nothing is left of the backward pass that could hide it, and the optimizer waits.

## How it decides
Transfer of a backward pass's all-reduces that runs after the last compute kernel which the
backward thread launched, with no compute beside it. It fires from `min_tail_pct` of the step on,
where it happens in `min_of_steps_pct` of the steps or more.

## Stays silent when
The tail is short, or gradients are reduced as the backward pass goes; and for tiny buckets, which
smaller ones would not help. The first step of a job, before buckets are rebuilt, is like any other.

## What to do
A smaller cap makes the last bucket smaller. Where the graph of the model does not change, buckets
are rebuilt in the order of execution after the first step, which helps most.

## Example
Buckets of 25 MiB, and the last one is reduced for 0.8 ms after the backward pass of a 12 ms step:
6.7 %; with 10 MiB about 0.3 ms are left.

## References
- PyTorch, DistributedDataParallel: bucket_cap_mb, and Internal Design
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
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    size,
    who,
)
from diagnose.rules._messages import Messages, launched_in_backward, messages_on
from diagnose.schema import Activity
from diagnose.trace import Gpu

_FLOOR_BYTES = 2**20
"""Buckets no larger are bound by latency: tiny-collectives."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the tail is worth naming."""

    min_tail_pct: float = limit(3.0, "share of the step; worth a change of one line (judgement)")
    min_of_steps_pct: float = limit(50.0, "of the steps; judgement")


class Tail(NamedTuple):
    """What one GPU reduces after its backward passes, per step."""

    exposed_ns: float
    of_steps_pct: float
    last_bytes: float
    """Median size of the last reduction."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    found = {gpu: tail for gpu in facts.gpus if (tail := _tail_of(facts, gpu)) is not None}
    hit = {
        gpu: tail
        for gpu, tail in found.items()
        if facts.share_pct(tail.exposed_ns) >= limits.min_tail_pct
        and tail.of_steps_pct >= limits.min_of_steps_pct
    }
    if not hit:
        return Clean("little is reduced after the backward pass")
    return (_symptom(facts, tuple(hit), max(hit.values(), key=lambda tail: tail.exposed_ns)),)


def _tail_of(facts: Facts, gpu: Gpu) -> Tail | None:
    messages, ops = messages_on(facts, gpu), facts.trace.gpu_ops
    reduces = messages.is_kind("all_reduce") & messages.in_backward
    computes = launched_in_backward(facts, gpu) & (ops["activity"] == Activity.COMPUTE)
    exposed, last_bytes, hit = 0.0, [], 0
    for step in facts.steps[gpu].rows:
        compute_ends = ops["end_ns"][computes & (ops["step_row"] == step)]
        mine = np.flatnonzero(reduces & (messages.step_row == step))
        if not compute_ends.size or not mine.size:
            continue
        after = _after(facts, messages, mine, int(compute_ends.max()))
        last = mine[np.argmax(ops["end_ns"][messages.row[mine]])]
        if after > 0 and messages.bytes[last] > _FLOOR_BYTES:
            exposed, hit = exposed + after, hit + 1
            last_bytes.append(float(messages.bytes[last]))
    if not hit:
        return None
    steps = len(facts.steps[gpu].rows)
    return Tail(exposed / steps, 100 * hit / steps, float(np.median(last_bytes)))


def _after(facts: Facts, messages: Messages, rows: np.ndarray, end_ns: int) -> float:
    """Exposed transfer of some messages from a time on."""
    ops = facts.trace.gpu_ops
    end = ops["end_ns"][messages.row[rows]]
    return float(np.minimum(messages.exposed_ns[rows], np.maximum(end - end_ns, 0)).sum())


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], tail: Tail) -> Symptom:
    share = facts.share_pct(tail.exposed_ns)
    smaller = max(tail.last_bytes / 2 / 2**20, 1.0)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: gradients are still reduced for "
            f"{duration(tail.exposed_ns)} {facts.a_step} ({percent(share)}) after the backward "
            f"pass is over; the last bucket has {size(tail.last_bytes)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("tail_ns", f"exposed after the backward pass {facts.a_step}", tail.exposed_ns),
            Evidence("tail_pct", "share of the step", share, "min_tail_pct"),
            Evidence("of_steps_pct", "of the steps", tail.of_steps_pct, "min_of_steps_pct"),
            Evidence("last_bucket_bytes", "last bucket, median", tail.last_bytes),
        ),
        cost=Cost(tail.exposed_ns, "exposed reduction after the backward pass"),
        advice=(
            Fix(
                "Make buckets smaller, so that less is left for the end.",
                f"DistributedDataParallel(model, bucket_cap_mb={smaller:.0f})",
            ),
            Fix(
                "A graph that is the same in every step lets the buckets follow the order of "
                "execution.",
                "DistributedDataParallel(model, static_graph=True)",
            ),
        ),
        caveats=(
            "Many more buckets cost latency each: see tiny-collectives.",
            "A first layer with one huge tensor (an embedding) fills a bucket by itself.",
        ),
        changes=(f"bucket-size:mb={smaller:.0f}",),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.STEPS),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
