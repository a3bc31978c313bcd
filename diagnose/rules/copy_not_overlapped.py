"""Copies of input sit in the queue of the compute.

## Looks for
Copies from pinned host memory on the stream that carries most of the compute.

## Why it costs time
A stream runs one operation after the other: though another engine of the GPU does the copying,
the kernels behind it wait until it is done.

## How it decides
Such copies, of `min_copy_bytes` or more each, stand alone on the GPU for
`min_alone_pct` of the step or more.

## Stays silent when
Copies have a stream of their own, something else runs beside them, or they are as small as the
metadata that sharded training copies for each unit.

## What to do
Copy the next batch on a stream of its own while the current step runs.

## Example
256 MiB a step at 29 GB/s: 9 ms of a step of 47 ms in which the GPU computes nothing.

## References
- meta-pytorch/torchrec issue 3485
- PyTorch, CUDA semantics: streams and record_stream
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.rules import (
    Cost,
    Evidence,
    Facts,
    Fix,
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
from diagnose.rules._copies import Copies, Memory, copies_on
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When copies in the compute's queue are worth naming."""

    min_alone_pct: float = limit(2.0, "share of the step; worth a change of one line")
    min_copy_bytes: float = limit(65536.0, "each; smaller ones are metadata (judgement)")


def check(facts: Facts, limits: Limits) -> Iterator[Symptom]:
    """One finding for all GPUs with such copies."""
    least = int(limits.min_copy_bytes)
    found = {
        gpu: copies_on(facts, gpu, Memory.PINNED, least_bytes=least, compute_stream=True)
        for gpu in facts.gpus
    }
    hit = tuple(
        gpu for gpu in facts.gpus if facts.share_pct(found[gpu].alone_ns) >= limits.min_alone_pct
    )
    if hit:
        yield _symptom(facts, hit, found[max(hit, key=lambda gpu: found[gpu].alone_ns)])


def _symptom(facts: Facts, hit: tuple[Gpu, ...], worst: Copies) -> Symptom:
    share = facts.share_pct(worst.alone_ns)
    evidence = [
        Evidence("alone_ns", f"copies with nothing beside them {facts.a_step}", worst.alone_ns),
        Evidence("alone_pct", "share of the step", share, "min_alone_pct"),
        Evidence("num_copies", f"copies {facts.a_step}", worst.number),
    ]
    carried = ""
    if worst.num_bytes:
        carried = f" of {size(worst.num_bytes)}"
        evidence += [
            Evidence("copied_mib", f"copied {facts.a_step}", worst.num_bytes / 2**20),
            Evidence("rate_gb_per_s", "rate", worst.num_bytes / worst.length_ns),
        ]
    return Symptom(
        sentence=(
            f"Pinned copies{carried} run on the compute's stream {worst.streams[0]} of "
            f"{who(facts.trace, hit)}: {duration(worst.alone_ns)} {facts.a_step} "
            f"({percent(share)}) in which the GPU computes nothing."
        ),
        where=Where(gpus=hit, streams=worst.streams),
        evidence=tuple(evidence),
        cost=Cost(worst.alone_ns, "copies with nothing beside them"),
        advice=(
            Fix(
                "Copy the next batch on a stream of its own, and let the compute wait for it.",
                "with torch.cuda.stream(copies): batch = batch.to('cuda', non_blocking=True); "
                "...; torch.cuda.current_stream().wait_stream(copies); "
                "batch.record_stream(torch.cuda.current_stream())",
            ),
        ),
        caveats=(
            "It takes GPU memory for a second batch.",
            "Offloading to the host copies on purpose: its own prefetch is the knob there.",
        ),
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    thresholds=Limits(),
    changes=("copy-stream",),
)
