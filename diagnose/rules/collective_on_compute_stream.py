"""The collective sits in the queue of the compute.

## Looks for
Communication kernels on the stream that carries most of the compute.

## Why it costs time
A stream runs one operation after the other: on the compute's own stream nothing can overlap.
Newer versions of PyTorch run collectives with `async_op=False` on the caller's stream.

## How it decides
Communication on the stream with more than half of the GPU's compute reaches
`min_communication_pct` of the step. Where all ranks were recorded, a row of the evidence says how
much of it is waiting for late ranks.

## Stays silent when
The operations come from a CUDA graph, which replays everything on one stream, or the collectives
have streams of their own.

## What to do
Issue the collective with `async_op=True` and wait where its result is used, or leave it to
DistributedDataParallel or FSDP, whose hooks do that.

## Example
Matrix products and all-gathers in turn on stream 7: 120 us of communication in 420 us, none of it
hidden, though the GPU never idles.

## References
- pytorch/pytorch pull requests 148590 and 150398: synchronous collectives on the caller's stream
- marin-community/marin issue 8054: 2.15 s of a step of 18 s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.intervals import union_length
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
from diagnose.rules._exposed import exposed_on
from diagnose.schema import Activity, Call
from diagnose.trace import Gpu, Table

_MOST_OF_COMPUTE = 0.5


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When communication on the compute's stream is worth naming."""

    min_communication_pct: float = limit(
        3.0, "share of the step; worth a change of one line (judgement)"
    )


class Queued(NamedTuple):
    """Communication on the stream that carries most compute, per step."""

    stream: int
    number: float
    length_ns: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each such stream number."""
    found = {gpu: queued for gpu in facts.gpus if (queued := _queued(facts, gpu)) is not None}
    hit = {
        gpu: queued
        for gpu, queued in found.items()
        if facts.share_pct(queued.length_ns) >= limits.min_communication_pct
    }
    if not hit:
        return Clean("communication has streams of its own, or little time")
    streams = sorted({queued.stream for queued in hit.values()})
    return tuple(
        _symptom(facts, {g: q for g, q in hit.items() if q.stream == stream}) for stream in streams
    )


def _queued(facts: Facts, gpu: Gpu) -> Queued | None:
    ops = facts.operations_per_step(gpu)
    ops = ops.take(ops.known("stream") & ~_from_graph(facts, ops))
    compute = ops.take(ops["activity"] == Activity.COMPUTE)
    length = compute["end_ns"] - compute["start_ns"]
    streams, at = np.unique(compute["stream"], return_inverse=True)
    of_stream = np.bincount(at.reshape(-1), length)
    if not streams.size or of_stream.max() <= _MOST_OF_COMPUTE * length.sum():
        return None
    stream = int(streams[of_stream.argmax()])
    own = ops.take((ops["stream"] == stream) & (ops["activity"] == Activity.COMMUNICATION))
    if not len(own):
        return None
    steps = facts.steps[gpu].number
    covered = union_length(own["start_ns"], own["end_ns"])
    return Queued(stream, len(own) / steps, covered / steps)


def _from_graph(facts: Facts, ops: Table) -> np.ndarray:
    """Which operations a graph replay launched; unknown launches count as single ones."""
    launches = facts.trace.launches
    from_graph = np.zeros(len(ops), bool)
    known = ops.known("launch_row")
    calls = launches["call"][ops["launch_row"][known]]
    from_graph[known] = calls == Call.GRAPH_LAUNCH
    return from_graph


def _symptom(facts: Facts, hit: dict[Gpu, Queued]) -> Symptom:
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: hit[gpu].length_ns)
    queued = hit[worst]
    share = facts.share_pct(queued.length_ns)
    evidence = [
        Evidence(
            "communication_ns",
            f"communication on the compute's stream {facts.a_step}",
            queued.length_ns,
        ),
        Evidence("communication_pct", "share of the step", share, "min_communication_pct"),
        Evidence("num_collectives", f"operations {facts.a_step}", queued.number),
        Evidence("stream", "stream", str(queued.stream)),
    ]
    waiting = exposed_on(facts, worst).waiting_ns
    if waiting is not None:
        evidence.append(Evidence("waiting_ns", "of it, waiting for late ranks", waiting))
    return Symptom(
        sentence=(
            f"{counted(round(queued.number), 'collective')} {facts.a_step} on "
            f"{who(facts.trace, gpus)} run on stream {queued.stream}, which also carries the "
            f"compute: {duration(queued.length_ns)} ({percent(share)}) that nothing can overlap."
        ),
        where=Where(gpus=gpus, streams=(queued.stream,)),
        evidence=tuple(evidence),
        cost=Cost(queued.length_ns, "communication on the compute's stream"),
        advice=(
            Fix(
                "Issue it asynchronously and wait where the result is used.",
                "work = dist.all_reduce(x, async_op=True); ...; work.wait()",
            ),
            Fix(
                "Gradients: let the wrapper reduce them during backward.",
                "model = DistributedDataParallel(model)  # or fully_shard(model)",
            ),
            Fix("Other collectives: give them a process group of their own.", "dist.new_group()"),
        ),
        caveats=(
            "If the next kernel needs the result at once, there is nothing to overlap with.",
            "Many tiny collectives: the extra event waits may cost more than they hide.",
        ),
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="high",
    needs=(Need.COMMUNICATION,),
    thresholds=Limits(),
    changes=("communication-stream",),
    explains=("exposed-communication",),
)
