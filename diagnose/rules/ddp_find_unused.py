"""DistributedDataParallel searches for unused parameters in every step.

## Looks for
What `find_unused_parameters=True` leaves in a trace: one more all-reduce of 32 bit integers at the
end of each backward pass (which parameters any rank used), and a pause of the host at the end of
each forward pass (the search through the graph).

## Why it costs time
The host walks the whole graph of the step before the backward pass may begin, and the integers are
one more collective that nothing hides.

## How it decides
All-reduces of integers are launched by backward threads in `min_of_steps_pct` of the steps or more,
where DistributedDataParallel is annotated, and the host's pause at the end of its forward passes
takes `min_gap_pct` of the step or more.

## Stays silent when
There is no such all-reduce, or the pause is short. Whether parameters really are unused is not in
a trace.

## What to do
Switch it off if all parameters are used in each step; PyTorch logs a warning then. If the same
ones are unused in every step, declare the graph static.

## Example
A model of 3,000 parameter tensors: 2 ms of search in a step of 90 ms, and 12 KB of integers.

## References
- PyTorch, DistributedDataParallel: find_unused_parameters, static_graph
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
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._messages import messages_on
from diagnose.rules._spans import ddp_forwards
from diagnose.trace import Gpu, Table


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the search is worth naming."""

    min_gap_pct: float = limit(1.0, "share of the step; the smallest effect worth naming")
    min_of_steps_pct: float = limit(50.0, "of the steps; judgement")


class Search(NamedTuple):
    """What the search leaves on one GPU and its host, per step."""

    of_steps_pct: float
    """Steps with an all-reduce of integers in the backward pass."""
    exposed_ns: float
    """Of that all-reduce."""
    gap_ns: float
    """From the last operator of a forward pass to its end."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    forwards = ddp_forwards(facts)
    if not len(forwards):
        return NotApplicable("no forward pass of DistributedDataParallel is annotated")
    found = {gpu: _search_of(facts, gpu, forwards) for gpu in facts.gpus}
    hit = {
        gpu: one
        for gpu, one in found.items()
        if one.of_steps_pct >= limits.min_of_steps_pct
        and facts.share_pct(one.gap_ns) >= limits.min_gap_pct
    }
    if not hit:
        return Clean("no search for unused parameters, or it costs little")
    return (_symptom(facts, tuple(hit), max(hit.values(), key=lambda one: one.gap_ns)),)


def _search_of(facts: Facts, gpu: Gpu, forwards: Table) -> Search:
    messages = messages_on(facts, gpu)
    integers = np.array([str(one).lower() in ("int", "int32") for one in messages.dtype], bool)
    rows = messages.is_kind("all_reduce") & messages.in_backward & integers
    steps = np.unique(messages.step_row[rows]).size
    marks = int((facts.trace.steps["source"] == gpu.source).sum())
    return Search(
        100 * steps / messages.steps,
        messages.per_step(messages.exposed_ns, rows),
        _gaps_ns(facts, gpu, forwards) / max(marks, 1),
    )


def _gaps_ns(facts: Facts, gpu: Gpu, forwards: Table) -> float:
    """The host's pauses at the ends of forward passes, together."""
    ops, total = facts.trace.host_ops, 0
    own = forwards.take(forwards["source"] == gpu.source)
    for thread in np.unique(own["thread"]).tolist():
        rows = np.flatnonzero((ops["source"] == gpu.source) & (ops["thread"] == thread))
        # In the order of their starts, as the table is.
        starts, ends = ops["start_ns"][rows], ops["end_ns"][rows]
        passes = own["thread"] == thread
        first = np.searchsorted(starts, own["start_ns"][passes], side="right").tolist()
        after = np.searchsorted(starts, own["end_ns"][passes], side="left").tolist()
        for low, high, end in zip(first, after, own["end_ns"][passes].tolist(), strict=True):
            inside = ends[low:high][ends[low:high] < end]
            if inside.size:
                total += end - int(inside.max())
    return float(total)


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], one: Search) -> Symptom:
    share = facts.share_pct(one.gap_ns)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: DistributedDataParallel searches for unused "
            f"parameters in every step; the host pauses for {duration(one.gap_ns)} a step "
            f"({percent(share)}) before the backward pass."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("gap_ns", "pause of the host a step", one.gap_ns),
            Evidence("gap_pct", "share of the step", share, "min_gap_pct"),
            Evidence("exposed_ns", "exposed all-reduce of integers a step", one.exposed_ns),
            Evidence("of_steps_pct", "of the steps, with it", one.of_steps_pct, "min_of_steps_pct"),
        ),
        cost=Cost(one.gap_ns + one.exposed_ns, "the host's pause and the all-reduce of integers"),
        advice=(
            Fix(
                "If every parameter is used in each step: switch the search off.",
                "DistributedDataParallel(model, find_unused_parameters=False)",
            ),
            Fix(
                "If the same ones are unused in each step.",
                "DistributedDataParallel(model, static_graph=True)",
            ),
        ),
        caveats=(
            "If control flow really skips parameters, switching it off ends in an error or hangs.",
            "The pause costs nothing where the host is far enough ahead of the GPU.",
        ),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
)
