"""More streams than hardware queues: streams wait for strangers.

## Looks for
A step whose work is on more streams than the GPU has queues for work from the host, and work that
begins as work of another stream ends, though no recorded wait ties the two.

## Why it costs time
Streams are dealt out to the queues. Two that share one are handed to the GPU in the order of
launches: while the one launched first waits for its own stream, the other stands behind it.

## How it decides
A step uses more streams than CUDA_DEVICE_MAX_CONNECTIONS (8 where it is not set). An operation
counts where it was launched and free to run `min_held_us` or more before it began; it began at most
`max_release_us` after an operation of another stream ended, and right after another one began that
was launched earlier and had waited for that end on its own stream: the one ahead in the queue. Time
in which a kernel with a block for every multiprocessor ran (for a copy: another copy) is not
counted: then there was no room. What is left, without counting any moment twice, is `min_held_pct`
of the step or more.

## Stays silent when
Recorded waits tie the streams, no wait of any stream was recorded, kernels fill the GPU meanwhile,
the number of multiprocessors is not known, the variable is 1 (single-hardware-queue), the process
runs under MPS, or the GPU is AMD's (amd-queue-oversubscription).

## What to do
Set CUDA_DEVICE_MAX_CONNECTIONS to 16 or 32, or use fewer streams.

## Example
Twelve streams of prefetching, offloading and three process groups with 8 queues: copies that were
ready begin 200 us later, as a stranger's kernel ends.

## References
- NVIDIA/Megatron-LM, cuda_graphs.py: warns below 16 where many streams coexist
- CUDA programming guide, environment variables: CUDA_DEVICE_MAX_CONNECTIONS
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.intervals import Intervals, subtract, union, union_length
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
from diagnose.rules._blocks import filling
from diagnose.rules._queues import Array, Queued, queued_on
from diagnose.schema import Kind
from diagnose.trace import Gpu

_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_DEFAULT = 8
_MPS = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY")


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When strangers in a queue are worth naming."""

    min_held_us: float = limit(20.0, "held though free to run; launched early (judgement)")
    max_release_us: float = limit(
        5.0, "from a stranger's end to the start; 1.5 to 1.9 seen on an H200"
    )
    min_held_pct: float = limit(3.0, "of the step; worth a change of one line (judgement)")


class Held(NamedTuple):
    """What strangers in the queue held on one GPU."""

    num_streams: int
    num_queues: int
    number: int
    held_ns: float
    """Per step; no moment counts twice."""
    streams: tuple[int, ...]


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    hit: dict[Gpu, Held] = {}
    for gpu in facts.gpus:
        held = _held(facts, limits, gpu)
        if held is not None and facts.share_pct(held.held_ns) >= limits.min_held_pct:
            hit[gpu] = held
    if not hit:
        return Clean("streams have queues enough, or wait for what was recorded")
    return (_symptom(facts, hit),)


def _held(facts: Facts, limits: Limits, gpu: Gpu) -> Held | None:
    if any(gpu.source in facts.variables(name) for name in _MPS):
        return None
    value = facts.variables(_NAME).get(gpu.source, "").strip()
    queues = int(value) if value.isdecimal() else _DEFAULT
    queued = queued_on(facts, gpu)
    streams = _streams_of_a_step(queued)
    full = filling(facts, gpu)
    if queues < 2 or streams <= queues or full is None or not queued.waits_recorded:
        return None
    rows = _behind_strangers(queued, limits)
    return Held(
        streams,
        queues,
        int(rows.size),
        _held_with_room_ns(queued, rows, union(full["start_ns"], full["end_ns"]))
        / facts.steps[gpu].number,
        tuple(np.unique(queued.ops["stream"][rows]).tolist()),
    )


def _held_with_room_ns(queued: Queued, rows: Array, full: Intervals) -> int:
    """Time in which any of some operations was held though there was room for it."""
    is_copy = queued.ops["kind"][rows] == Kind.MEMCPY
    copies = queued.during(queued.ops["kind"] == Kind.MEMCPY)
    left = []
    for mine, busy in ((rows[~is_copy], full), (rows[is_copy], copies)):
        left.append(subtract(union(queued.ready_ns[mine], queued.ops["start_ns"][mine]), busy))
    return union_length(*(np.concatenate(pair) for pair in zip(*left, strict=True)))


def _streams_of_a_step(queued: Queued) -> int:
    """How many streams have work of one step, in the step with most."""
    ops = queued.ops.take(queued.in_steps)
    if not len(ops):
        return 0
    pairs = np.unique(np.stack([ops["step_row"], ops["stream"]], 1), axis=0)
    return int(np.unique(pairs[:, 0], return_counts=True)[1].max())


def _behind_strangers(queued: Queued, limits: Limits) -> Array:
    """Operations let go with one of another stream that was launched before them.

    The one let go stood first in the queue: launched earlier, it began as the operation before it
    on its stream ended, and no later than this one.
    """
    start = queued.ops["start_ns"]
    release = limits.max_release_us * 1000
    wanted = np.flatnonzero(queued.in_steps & (queued.held_ns >= limits.min_held_us * 1000))
    # Who was first in a queue began right as its own stream let it.
    first = np.flatnonzero((queued.before >= 0) & (start - queued.own_ns <= release))
    first = first[np.argsort(start[first], kind="stable")]
    begun = start[first]
    low = np.searchsorted(begun, start[wanted] - release)
    high = np.searchsorted(begun, start[wanted], side="right")
    count = high - low
    one = np.repeat(np.arange(wanted.size), count)
    place = np.arange(one.size) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    held, ahead = wanted[one], first[place]
    # Places are in order of launch. Held so long, it cannot be behind one of its own stream.
    fits = (ahead < held) & (start[held] - queued.own_ns[ahead] <= release)
    return np.unique(held[fits])


def _symptom(facts: Facts, hit: dict[Gpu, Held]) -> Symptom:
    worst = max(hit.values(), key=lambda one: one.held_ns)
    share = facts.share_pct(worst.held_ns)
    advice = [Fix("Use fewer streams: what need not overlap can share one.")]
    more = [number for number in (16, 32) if number > worst.num_queues]
    if more:
        best = next((number for number in more if number >= worst.num_streams), more[-1])
        advice.insert(0, Fix("Give the GPU more queues.", f"{_NAME}={best}"))
    return Symptom(
        sentence=(
            f"{counted(worst.num_streams, 'stream')} of {who(facts.trace, hit)} share "
            f"{counted(worst.num_queues, 'hardware queue')}: {counted(worst.number, 'operation')} "
            "ready to run began only as another stream's ended though no wait ties them, "
            f"{duration(worst.held_ns)} {facts.a_step} ({percent(share)})."
        ),
        where=Where(gpus=tuple(hit), streams=worst.streams),
        evidence=(
            Evidence("held_ns", f"held {facts.a_step}", worst.held_ns),
            Evidence("held_pct", "share of the step", share, "min_held_pct"),
            Evidence("num_operations", "operations held", worst.number),
            Evidence("num_streams", "streams in a step", worst.num_streams),
            Evidence("num_queues", _NAME, worst.num_queues),
        ),
        cost=Cost(worst.held_ns, "ready work held behind another stream's", True),
        advice=tuple(advice),
        caveats=(
            "Under MPS more connections allow fewer clients.",
            "Megatron's tensor parallelism on Hopper and older wants 1, for its order.",
            "Streams that wait for each other in ways the profiler does not record look the same.",
        ),
        subject=_NAME,
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.LAUNCHES, Need.NVIDIA),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
