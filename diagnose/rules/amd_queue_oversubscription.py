"""More queues or processes on an AMD GPU than it can run at once.

## Looks for
More processes on one GPU, or more streams in a process that may use many queues, than the hardware
holds at once.

## Why it costs time
An AMD GPU runs 24 compute queues and 11 address spaces at a time. Beyond that its firmware takes
turns among them: kernels stop and go in slices of milliseconds.

## How it decides
More than `max_num_processes` recorded processes name one GPU, or their streams with work in the
window, no more for each than `GPU_MAX_HW_QUEUES` allows (default 4), are more than `max_num_queues`
together. The kernel's log says it for certain, and is not part of a recording.

## Stays silent when
Counts are within the limits, or no process names its GPU.

## What to do
Fewer processes for each GPU, fewer streams, or fewer queues for each process.

## Example
Twelve inference processes on one MI300X: the kernel's log says that the runlist is oversubscribed.

## References
- ROCm, oversubscription of hardware resources
- HIP documentation, GPU_MAX_HW_QUEUES
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.rules import (
    Clean,
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
    limit,
    who,
)
from diagnose.trace import Gpu

_QUEUES = 4


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """What an AMD GPU holds at once."""

    max_num_processes: int = limit(11, "address spaces, as ROCm's documentation says")
    max_num_queues: int = limit(24, "compute queues, as ROCm's documentation says")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each GPU that is asked for too much."""
    cards: dict[tuple[str | None, str], list[Gpu]] = {}
    for gpu in facts.gpus:
        source = facts.trace.sources[gpu.source]
        if source.gpu_uuid is not None:
            cards.setdefault((source.host, source.gpu_uuid), []).append(gpu)
    if not cards:
        return NotJudged("no process names its GPU", "record with `diagnose run` or `attach`")
    found = []
    for gpus in cards.values():
        queues = sum(_queues(facts, gpu) for gpu in gpus)
        if len(gpus) > limits.max_num_processes or queues > limits.max_num_queues:
            found.append(_symptom(facts, tuple(gpus), queues))
    return tuple(found) or Clean("processes and queues are within what the GPU holds")


def _queues(facts: Facts, gpu: Gpu) -> int:
    """At most so many of a process: its streams, dealt out to its queues."""
    ops = facts.trace.gpu_ops
    streams = len(np.unique(ops["stream"][facts.on(ops, gpu)]))
    text = facts.variables("GPU_MAX_HW_QUEUES").get(gpu.source, "").strip()
    most = int(text) if text.isascii() and text.isdigit() else _QUEUES
    return min(streams, most)


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], queues: int) -> Symptom:
    return Symptom(
        sentence=(
            f"{len(gpus)} processes ({who(facts.trace, gpus)}) with up to {queues} queues share "
            "one AMD GPU, which takes turns among more than it holds at once."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_processes", "processes on the GPU", len(gpus), "max_num_processes"),
            Evidence("num_queues", "their queues, at most", queues, "max_num_queues"),
        ),
        advice=(
            Fix("Run fewer processes for each GPU, or fewer streams in each."),
            Fix("Let each process use fewer queues.", "GPU_MAX_HW_QUEUES=2"),
            Fix(
                "See whether the driver says so.",
                "dmesg | grep -i 'runlist is getting oversubscribed'",
            ),
        ),
        caveats=(
            "HSA_OVERSUBSCRIPTION is no remedy: no such variable exists.",
            "Queues of processes that were not recorded count too, and are not seen here.",
        ),
        no_gain="what taking turns costs is not in the recording",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="high",
    needs=(Need.AMD,),
    thresholds=Limits(),
)
