"""A buffer is given to communication while another transfer still uses it.

## Looks for
Two transfers on different streams of a GPU that are in flight at once, where the one writes into a
buffer that the other reads or writes.

## Why it costs time
It costs no time, it may cost the result: what the one sends or leaves behind is a mixture of both.
Losses differ between runs, or turn into NaN once transfers overlap.

## How it decides
By the addresses at which inputs and outputs begin, where the trace holds them: at least
`min_num_reused` pairs of transfers of one GPU overlap in time on different streams, and an output
of the one begins where an input or output of the other does. What kernels write into a buffer is
not in a trace: this is a hint, never more.

## Stays silent when
Transfers that share a buffer follow each other, or are ordered by their stream; or an execution
trace was recorded, by which `missing-stream-sync` decides. Where neither that nor addresses were
recorded, it is listed as not checked.

## What to do
If results differ between runs: use two buffers in turn for each direction, each of them again only
after its transfer has ended. NCCL does not ask for buffers of twice the size, and a larger
`NCCL_BUFFSIZE` does not help: that is NCCL's own pipeline.

## Example
A staging buffer is filled again and sent on a second stream, while the all-gather of the first
stream still writes into it.

## References
- Kineto, metadata of collectives: Input Tensors start, Output Tensors start
- NCCL user guide, environment variables: NCCL_BUFFSIZE
- PyTorch, CUDA stream sanitizer
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    Span,
    Symptom,
    Thresholds,
    Where,
    counted,
    duration,
    limit,
    who,
)
from diagnose.trace import Gpu

_MOST_SPANS = 4


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When reuse is worth a hint."""

    min_num_reused: int = limit(1, "pairs of transfers; one is enough to spoil a result")


class Transfer(NamedTuple):
    """One GPU operation that communicates, with addresses."""

    row: int
    stream: int
    external_id: int
    """Below 0: unknown. Operations of one call share it."""
    start_ns: int
    end_ns: int
    inputs: frozenset[int]
    outputs: frozenset[int]


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each GPU."""
    if facts.find("hazards") is not None:
        # What is used at once without an order is proven there, or is no fault.
        return Clean("the execution trace tells: see missing-stream-sync")
    table = facts.trace.collectives
    if not (table.known("in_addresses") & table.known("out_addresses")).any():
        return NotJudged(
            "the addresses of buffers are not in the trace",
            "record with `diagnose attach --check-sync`, or run a few steps under `diagnose "
            "check-sync`",
        )
    found = []
    for gpu in facts.gpus:
        pairs = list(_reused(_transfers(facts, gpu)))
        if len(pairs) >= max(limits.min_num_reused, 1):
            found.append(_symptom(facts, gpu, pairs))
    return tuple(found) or Clean("no buffer is used by two transfers at once")


def _transfers(facts: Facts, gpu: Gpu) -> list[Transfer]:
    """Those with addresses, by start."""
    table, ops = facts.trace.collectives, facts.trace.gpu_ops
    rows, on = table["gpu_op_row"], facts.trace.on(gpu)
    mine = table.known("in_addresses") & table.known("out_addresses")
    mine &= (rows >= on.start) & (rows < on.stop)
    mine &= ops.known("stream")[rows]
    chosen = table.take(mine)
    found = []
    for row, given, made in zip(
        chosen["gpu_op_row"].tolist(),
        chosen.texts("in_addresses"),
        chosen.texts("out_addresses"),
        strict=True,
    ):
        stream, call = int(ops["stream"][row]), int(ops["external_id"][row])
        start, end = int(ops["start_ns"][row]), int(ops["end_ns"][row])
        found.append(Transfer(row, stream, call, start, end, _addresses(given), _addresses(made)))
    return sorted(found, key=lambda one: (one.start_ns, one.row))


def _addresses(text: str | None) -> frozenset[int]:
    # 0 is the address of an empty tensor.
    return frozenset(int(number) for number in re.findall(r"\d{1,20}", text or "")) - {0}


def _reused(transfers: list[Transfer]) -> Iterator[tuple[Transfer, Transfer]]:
    """Pairs in flight at once that share a buffer, the earlier first."""
    running: list[Transfer] = []
    for later in transfers:
        running = [one for one in running if one.end_ns > later.start_ns]
        for earlier in running:
            same_call = earlier.external_id == later.external_id >= 0
            if earlier.stream == later.stream or same_call:
                continue
            touched = earlier.outputs & (later.inputs | later.outputs)
            if touched or later.outputs & earlier.inputs:
                yield earlier, later
        running.append(later)


def _symptom(facts: Facts, gpu: Gpu, pairs: list[tuple[Transfer, Transfer]]) -> Symptom:
    longest = max(min(a.end_ns, b.end_ns) - b.start_ns for a, b in pairs)
    spans = [Span(gpu.source, a.start_ns, max(a.end_ns, b.end_ns)) for a, b in pairs[:_MOST_SPANS]]
    streams = np.unique([one.stream for pair in pairs for one in pair]).tolist()
    return Symptom(
        sentence=(
            f"Two transfers use a buffer at once on {who(facts.trace, (gpu,))}: "
            f"{counted(len(pairs), 'pair')}, for up to {duration(longest)}."
        ),
        where=Where(gpus=(gpu,), streams=tuple(streams), spans=tuple(spans)),
        evidence=(
            Evidence("num_reused", "pairs of transfers", len(pairs), "min_num_reused"),
            Evidence("longest_ns", "longest time at once", longest),
        ),
        advice=(
            Fix(
                "Let the second transfer wait for the first one.",
                "torch.cuda.current_stream().wait_stream(other)  # or work.wait()",
            ),
            Fix("Or use two buffers in turn for each direction."),
            Fix("Be sure: see which uses nothing orders.", "diagnose attach --check-sync"),
        ),
        caveats=(
            "Buffers that begin at one address need not be used to the same end.",
            "If results are right and stay the same, there is nothing to do.",
        ),
        no_gain="it is about correctness, not time",
    )


RULE = Rule(
    check=check,
    area="correctness",
    confidence="low",
    needs=(Need.COMMUNICATION,),
    thresholds=Limits(),
)
