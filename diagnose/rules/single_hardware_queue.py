"""Streams take turns though nothing orders them.

## Looks for
Compute and communication on different streams that run strictly one after the other without a
recorded wait between them, while CUDA_DEVICE_MAX_CONNECTIONS=1 leaves the GPU one queue for work
from the host.

## Why it costs time
With one hardware queue, work is handed to the GPU in the order of launches: what was launched
behind a collective can be held up by it, though it is of another stream.

## How it decides
The variable is 1; of communication `max_hidden_pct` at most is hidden; `min_num_pairs` times or
more, an operation that was launched and free to run begins `min_held_us` or more later, as an
operation of the other kind on another stream ends; and the communication of these pairs is exposed
for `min_exposed_pct` of the step. Where the environment is not known, the same is a hint.

## Stays silent when
Recorded stream waits order the two, communication overlaps, or the variable is known not to be 1.
Where neither the environment nor any wait of a stream was recorded, nothing is said.

## What to do
Unset CUDA_DEVICE_MAX_CONNECTIONS, whose default is 8, or set it higher.

## Example
GEMMs and reduce-scatters of 100 us in turn, launched early: 400 us of communication, none hidden.

## References
- pytorch/torchtitan issues 1147 and 4508
- CUDA programming guide, environment variables: CUDA_DEVICE_MAX_CONNECTIONS
- NVIDIA/Megatron-LM, arguments that ask for 1 or forbid it
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
    counted,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._queues import Queued, queued_on
from diagnose.schema import Activity
from diagnose.trace import Gpu

_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_SWITCH_NS = 10_000
"""Longest pause between an operation's end and the start of one that it held up."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """What makes turns on several streams suspicious."""

    max_hidden_pct: float = limit(5.0, "of communication; more: the streams do overlap")
    min_num_pairs: int = limit(3, "in the recording, so that it is no accident (judgement)")
    min_held_us: float = limit(20.0, "held though free to run; launched early (judgement)")
    min_exposed_pct: float = limit(1.0, "share of the step; smallest effect worth naming")


class Turns(NamedTuple):
    """Operations held by one of the other kind on another stream."""

    number: int
    exposed_ns: float
    """Exposed time of the communication among them, per step."""
    hidden_pct: float
    streams: tuple[int, ...]


_NO_TURNS = Turns(0, 0.0, 100.0, ())


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for the GPUs whose variable is 1, one for those whose is not known."""
    values = facts.variables(_NAME)
    set_to_1 = [gpu for gpu in facts.gpus if values.get(gpu.source, "").strip() == "1"]
    unknown = [gpu for gpu in facts.gpus if not facts.environment(gpu.source)]
    found = []
    for gpus, known in ((set_to_1, True), (unknown, False)):
        turns = {gpu: _turns(facts, limits, gpu, known=known) for gpu in gpus}
        hit = {
            gpu: one
            for gpu, one in turns.items()
            if one.number >= limits.min_num_pairs
            and one.hidden_pct <= limits.max_hidden_pct
            and facts.share_pct(one.exposed_ns) >= limits.min_exposed_pct
        }
        if hit:
            found.append(_symptom(facts, hit, known=known))
    return found or Clean("streams overlap, wait for each other, or have queues enough")


def _turns(facts: Facts, limits: Limits, gpu: Gpu, *, known: bool) -> Turns:
    queued = queued_on(facts, gpu)
    if not known and not queued.waits_recorded:
        return _NO_TURNS
    held, by = _held(queued, limits.min_held_us * 1000)
    breakdown = facts.table("breakdown")
    hidden = facts.per_step(breakdown, "overlapped_ns", gpu)
    exposed = facts.per_step(breakdown, "exposed_communication_ns", gpu)
    members = np.unique(np.concatenate([held, by]))
    ops = queued.ops.take(members)
    # Communication that nothing hides is as long as exposed; little is hidden where this fires.
    own = ops["activity"] == Activity.COMMUNICATION
    length = float((ops["end_ns"] - ops["start_ns"])[own].sum()) / facts.steps[gpu].number
    return Turns(
        number=int(held.size),
        exposed_ns=min(length, exposed),
        hidden_pct=100 * hidden / (hidden + exposed) if hidden + exposed else 100.0,
        streams=tuple(np.unique(ops["stream"]).tolist()),
    )


def _held(queued: Queued, least_ns: float) -> tuple[np.ndarray, np.ndarray]:
    """Operations held without a recorded reason, and what ended as each began."""
    ops, held, by = queued.ops, [], []
    wanted = queued.in_steps & (queued.held_ns >= least_ns)
    activity, start, end = ops["activity"], ops["start_ns"], ops["end_ns"]
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    for op in np.flatnonzero(wanted & (activity != Activity.MEMORY)).tolist():
        low = np.searchsorted(ends, start[op] - _SWITCH_NS)
        near = by_end[low : np.searchsorted(ends, start[op], side="right")]
        near = near[near < op]  # In order of launch: only what was launched before.
        other = (activity[near] != activity[op]) & (activity[near] != Activity.MEMORY)
        other &= (ops["stream"][near] != ops["stream"][op]) & (end[near] > queued.ready_ns[op])
        if other.any():
            held.append(op)
            by.append(int(near[other][-1]))
    return np.array(held, np.int64), np.array(by, np.int64)


def _symptom(facts: Facts, hit: dict[Gpu, Turns], *, known: bool) -> Symptom:
    worst = max(hit.values(), key=lambda one: one.exposed_ns)
    share = facts.share_pct(worst.exposed_ns)
    why = f"with {_NAME}=1" if known else f"as with {_NAME}=1 (the environment is not known)"
    return Symptom(
        sentence=(
            f"{counted(worst.number, 'operation')} on {who(facts.trace, hit)} began only as "
            f"another stream's ended though nothing recorded orders them, {why}: "
            f"{duration(worst.exposed_ns)} of communication {facts.a_step} ({percent(share)}) is "
            "exposed."
        ),
        where=Where(gpus=tuple(hit), streams=worst.streams),
        evidence=(
            Evidence(
                "exposed_communication_ns",
                f"exposed communication of these pairs {facts.a_step}",
                worst.exposed_ns,
            ),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
            Evidence("num_pairs", "operations held", float(worst.number), "min_num_pairs"),
            Evidence("hidden_pct", "of communication, hidden", worst.hidden_pct, "max_hidden_pct"),
            Evidence("variable", _NAME, "1" if known else "not known"),
        ),
        cost=Cost(worst.exposed_ns, "exposed communication of these pairs", True),
        advice=(
            Fix("Leave the default of 8 queues.", f"unset {_NAME}"),
            Fix("FSDP together with tensor parallelism: more queues.", f"{_NAME}=32"),
        ),
        caveats=(
            "Tensor, sequence and context parallelism of Megatron want 1 on Hopper and older.",
            "Under MPS, more connections allow fewer clients.",
        ),
        confidence="high" if known else "low",
        subject=_NAME,
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.NVIDIA),
    thresholds=Limits(),
    changes=("hide-communication",),
    explains=("exposed-communication",),
)
