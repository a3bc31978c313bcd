"""NCCL's buffers were made smaller than the messages need.

## Looks for
`NCCL_BUFFSIZE` set below its default of 4 MiB, in a job whose messages are larger than that.

## Why it costs time
NCCL moves a message through a buffer for each channel and peer, in eight parts that follow each
other. A smaller buffer holds fewer bytes in flight: the parts get short, and each costs the latency
of a hop.

## How it decides
The variable is set below `min_buffer_mib`, and messages larger than a buffer take
`min_large_pct` or more of the time of all collectives whose size is known.

## Stays silent when
The variable is unset or larger, or messages fit into a buffer. Larger buffers than the default are
no finding, and neither is a buffer below twice the message: NCCL pipelines, and needs no such rule.
Buckets that are too small are another rule's (tiny-collectives).

## What to do
Unset it. Memory that it saves is a few MiB for each channel.

## Example
`NCCL_BUFFSIZE=65536` with buckets of 25 MiB: each bucket is 400 buffers long.

## References
- NCCL user guide, NCCL_BUFFSIZE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    percent,
    size,
    who,
)
from diagnose.trace import Gpu

_VARIABLE = "NCCL_BUFFSIZE"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a buffer is small."""

    min_buffer_mib: float = limit(4.0, "NCCL's default: what its authors tuned for")
    min_large_pct: float = limit(50.0, "of communication time in larger messages; judgement")


class Buffers(NamedTuple):
    """One rank's buffers and messages."""

    buffer_bytes: int
    largest_bytes: int
    large_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all ranks with small buffers."""
    set_to = {
        source: int(text)
        for source, text in facts.variables(_VARIABLE).items()
        if text.strip().isascii() and text.strip().isdigit()
    }
    small = {
        source: value
        for source, value in set_to.items()
        if 0 < value < limits.min_buffer_mib * 2**20
    }
    gpus = facts.gpus_of(small)
    if not gpus:
        return Clean("the buffers have their default size or more")
    seen = {gpu: one for gpu in gpus if (one := _buffers(facts, gpu, small[gpu.source]))}
    if not seen:
        return NotJudged(
            "the sizes of messages were not recorded",
            "PyTorch notes them on collectives launched in the window, outside of CUDA graphs",
        )
    hit = {gpu: one for gpu, one in seen.items() if one.large_pct >= limits.min_large_pct}
    return (_symptom(facts, hit),) if hit else Clean("most messages fit into a buffer")


def _buffers(facts: Facts, gpu: Gpu, buffer_bytes: int) -> Buffers | None:
    """None where no size is known."""
    collectives = facts.trace.collectives
    ops = facts.trace.gpu_ops.take(collectives["gpu_op_row"])
    known = facts.on(ops, gpu) & collectives.known("bytes")
    length = (ops["end_ns"] - ops["start_ns"])[known].astype(np.float64)
    message = collectives["bytes"][known]
    if not length.sum() > 0:
        return None
    large = 100 * float(length[message > buffer_bytes].sum() / length.sum())
    return Buffers(buffer_bytes, int(message.max()), large)


def _symptom(facts: Facts, hit: dict[Gpu, Buffers]) -> Symptom:
    gpus = tuple(hit)
    worst = min(hit.values(), key=lambda one: one.buffer_bytes)
    return Symptom(
        sentence=(
            f"{_VARIABLE} is {size(worst.buffer_bytes)} on {who(facts.trace, gpus)}, while "
            f"messages of up to {size(worst.largest_bytes)} take "
            f"{percent(worst.large_pct)} of the time of collectives."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("variable", "variable", _VARIABLE),
            Evidence("buffer_bytes", "buffer", worst.buffer_bytes, "min_buffer_mib"),
            Evidence("largest_bytes", "largest message", worst.largest_bytes),
            Evidence(
                "large_pct",
                "of the time in messages beyond a buffer",
                worst.large_pct,
                "min_large_pct",
            ),
        ),
        advice=(
            Fix("Unset it: the default is 4 MiB.", f"unset {_VARIABLE}"),
            Fix(
                "Measure both on the ranks of this job.",
                f"diagnose run --try {_VARIABLE}={worst.buffer_bytes},4194304 -- COMMAND",
            ),
        ),
        caveats=(
            "Small buffers save GPU memory where there are many communicators.",
            "Within one node the difference may be small: measure.",
        ),
        no_gain="how fast the default would be is not in the recording",
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="medium",
    needs=(Need.ENVIRONMENT, Need.COMMUNICATION),
    thresholds=Limits(),
)
