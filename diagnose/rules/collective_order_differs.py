"""Ranks of one group issue its collectives in different order.

## Looks for
A process group whose ranks issue the same collectives, and not in the same order.

## Why it costs time
NCCL pairs collectives by the order in which each rank issues them, whatever they are called. Such a
job hangs, or goes on with tensors that were added to others: of equal size nobody notices. Where it
still runs, the order was right by luck in all steps before.

## How it decides
Where collectives have sequence numbers of their group, by them: under one number ranks differ in
the kind, or the same ones stand in another order over a run of numbers. Otherwise by order of
launch, between places where two ranks are known to agree (a step of the same number on both, or two
collectives that were matched): both issue the same collectives of known kind, size and element
type, and not in the same order. At least `min_num_places` collectives stand elsewhere.

## Stays silent when
The recording of one rank begins or ends in between, ranks issue different collectives (the work is
uneven), it is sends and receives of a pipeline, or parts of a batched call, which may stand in any
order. Where there are neither numbers, steps nor matches, it is listed as not checked.

## What to do
Make the order the same on all ranks: do not issue collectives from a loop over a set or over
whatever tensor is ready first, nor from two threads of one group. Use a group for each if the order
cannot be known.

## Example
Rank 0 reduces the gradients of the first layer and then the second, rank 1, whose hooks fired in
another order, the second first.

## References
- NCCL user guide, using multiple NCCL communicators concurrently
- PyTorch, distributed debugging: TORCH_DISTRIBUTED_DEBUG=DETAIL checks that ranks agree
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.matching import Matches, match_collectives
from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Need,
    NotJudged,
    Outcome,
    Rule,
    Span,
    Symptom,
    Thresholds,
    Where,
    counted,
    limit,
    size,
    who,
)
from diagnose.rules._issue_order import Array, Difference, comparable, differences, signatures
from diagnose.schema import NULL
from diagnose.trace import Gpu

_MOST_SHOWN = 4
_MOST = 0.5


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When another order is worth naming."""

    min_num_places: int = limit(1, "collectives out of order; one is enough to hang a job")


class Disorder(NamedTuple):
    """One group: its GPU that the others are compared with, and those that differ."""

    reference: Gpu
    others: tuple[Gpu, ...]
    found: tuple[Difference, ...]
    """The earliest first; of all GPUs that differ."""
    num_places: int


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each group."""
    matches = match_collectives(facts.trace)
    usable, signature = comparable(facts.trace, matches), signatures(facts.trace, matches)
    found, compared = [], False
    for lane in np.unique(matches.lanes.lane[usable]).tolist():
        parts = _parts(matches, usable, int(lane))
        if len(parts) < 2:
            continue
        compared = compared or _can_compare(facts, matches, parts)
        one = _disorder(facts, matches, usable, signature, parts)
        if one is not None and one.num_places >= max(limits.min_num_places, 1):
            found.append(_symptom(facts, matches, one))
    if not compared:
        return NotJudged(
            "nothing says which collectives of two ranks are the same",
            "record all ranks in the same steps, with profiler.step() after each",
        )
    return tuple(found) or Clean("ranks of a group issue its collectives in one order")


def _parts(matches: Matches, usable: np.typing.NDArray[np.bool_], lane: int) -> list[Array]:
    """The rows of each GPU of a lane, by issue; the GPU with most that can be compared first."""
    rows = np.flatnonzero(matches.lanes.lane == lane)
    rows = rows[np.lexsort((matches.lanes.position[rows], matches.lanes.gpu[rows]))]
    cuts = np.flatnonzero(np.diff(matches.lanes.gpu[rows])) + 1
    parts = [part for part in np.split(rows, cuts) if usable[part].any()]
    return sorted(parts, key=lambda part: -int(usable[part].sum()))


def _can_compare(facts: Facts, matches: Matches, parts: list[Array]) -> bool:
    """Whether two GPUs have numbers or steps in common, or most of their rows are matched."""
    table, ops = facts.trace.collectives, facts.trace.gpu_ops
    rows = np.concatenate(parts)
    steps = [ops["step_row"][table["gpu_op_row"][part]] for part in parts]
    marked = sum(bool((step >= 0).any()) for step in steps) > 1
    numbered = sum(bool((table["sequence"][part] != NULL).any()) for part in parts) > 1
    return marked or numbered or float((matches.match[rows] >= 0).mean()) > _MOST


def _disorder(
    facts: Facts,
    matches: Matches,
    usable: np.typing.NDArray[np.bool_],
    signature: Array,
    parts: list[Array],
) -> Disorder | None:
    trace, gpu = facts.trace, matches.lanes.gpu
    found: list[Difference] = []
    for other in parts[1:]:
        found += differences(trace, matches, signature, usable, parts[0], other)
    if not found:
        return None
    found.sort(key=lambda one: (int(matches.lanes.position[one.first[0]]), int(one.second[0])))
    places = sum(int((signature[one.first] != signature[one.second]).sum()) for one in found)
    numbers = sorted({int(gpu[one.second[0]]) for one in found})
    others = tuple(trace.gpus[number] for number in numbers)
    return Disorder(trace.gpus[int(gpu[parts[0][0]])], others, tuple(found), places)


def _symptom(facts: Facts, matches: Matches, one: Disorder) -> Symptom:
    trace, earliest = facts.trace, one.found[0]
    other = trace.gpus[int(matches.lanes.gpu[earliest.second[0]])]
    proven = any(difference.proven for difference in one.found)
    group = matches.lanes.group[matches.lanes.lane[earliest.first[0]]]
    name = f"group {trace.strings[int(group)]}" if group >= 0 else "a group"
    sequence = int(trace.collectives["sequence"][earliest.first[0]])
    place = f"number {sequence}" if sequence != NULL else "the first such place"
    ours, theirs = (_words(facts, rows) for rows in (earliest.first, earliest.second))
    if ours[0] == theirs[0]:
        # Sizes that differ by less than what is shown of them.
        ours, theirs = (_words(facts, rows, exact=True) for rows in earliest[:2])
    ops, rows = trace.gpu_ops, trace.collectives["gpu_op_row"]
    spans = tuple(
        Span(gpu.source, int(ops["start_ns"][on].min()), int(ops["end_ns"][on].max()))
        for gpu, on in (
            (one.reference, rows[earliest.first]),
            (other, rows[earliest.second]),
        )
    )
    gpus = (one.reference, *one.others)
    return Symptom(
        sentence=(
            f"Collectives of {name} are issued in another order on "
            f"{who(trace, one.others)} than on {who(trace, (one.reference,))}, "
            f"{counted(one.num_places, 'place')}: at {place}, {who(trace, (one.reference,))} "
            f"issues {ours[0]}, {who(trace, (other,))} {theirs[0]}."
        ),
        where=Where(gpus=gpus, spans=spans),
        evidence=(
            Evidence("num_places", "collectives out of order", one.num_places, "min_num_places"),
            Evidence("order_here", f"order on {who(trace, (one.reference,))}", ", ".join(ours)),
            Evidence("order_there", f"order on {who(trace, (other,))}", ", ".join(theirs)),
            Evidence(
                "proof", "how it is known", "sequence numbers" if proven else "order of launch"
            ),
        ),
        advice=(
            Fix("Issue the collectives of a group in one order on all ranks."),
            Fix("Let PyTorch name the first one that differs.", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        ),
        caveats=("Collectives of equal kind, size and type cannot be told apart.",),
        confidence="high" if proven else "medium",
        severity="critical" if proven else "warning",
        no_gain="it is about correctness, not time",
        subject=name,
    )


def _words(facts: Facts, rows: Array, *, exact: bool = False) -> list[str]:
    """The first few collectives: kind, size, element type."""
    table = facts.trace.collectives
    found = []
    for row in rows[:_MOST_SHOWN].tolist():
        kind, dtype = (int(table[column][row]) for column in ("collective", "dtype"))
        number = int(table["bytes"][row])
        words = [facts.trace.strings[kind]]
        if number != NULL:
            words.append(f"{number:,} B" if exact else size(number))
        words += [f"of {facts.trace.strings[dtype]}"] if dtype >= 0 else []
        found.append(" ".join(words))
    return found


RULE = Rule(
    check=check,
    area="correctness",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.SEVERAL_RANKS),
    thresholds=Limits(),
)
