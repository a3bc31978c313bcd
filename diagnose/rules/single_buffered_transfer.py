"""A transfer waits for its only buffer to be free.

## Looks for
Buffers smaller than twice the largest transfer through them, where what writes into the buffer had
been queued, its stream stood idle, and it began as soon as the last reader had ended.

## Why it costs time
The new content does not depend on the old one: only the memory is the same. With one buffer the
filling, the transfer and the reading take turns; with two in turn they run side by side.

## How it decides
By the memory that operators use, from an execution trace of the same steps. An operation that only
writes a range, after one on another stream that only read it, one of both a transfer
(communication, or a copy to or from the host): the wait counts if the stream had nothing else to do
since before the reader's end, the operation had been launched by then, and it began within
`max_gap_us` of that end, or of the end of what the reader's stream did after it. Buffers that the
allocator gave out within the window are left out, as are those that hold twice the largest
transfer. At least `min_num_refills` waits, costing `min_cost_pct` of the step: where the buffer is
sent, the wait of what fills it; where it is received into, the wait of the first reader for the
transfer, for as long as that could have run earlier. One wait for several buffers counts once.
Other work of the GPU may hide a part: an upper bound.

## Stays silent when
The buffer holds two transfers or more, the new content is worked out from the old one, or the wait
is for anything else. Without an execution trace it is listed as not checked.

## What to do
Use two buffers in turn. NCCL itself does not ask for buffers of twice the size, and a larger
`NCCL_BUFFSIZE` does not help: that is NCCL's own pipeline.

## Example
A prefetching stream copies the next batch into the tensor that the current step reads: it waits for
the step, and the next step waits for the copy.

## References
- PyTorch, execution trace observer: storages and ranges of operators' tensors
- CUDA C++ best practices guide, asynchronous and overlapping transfers with computation
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.intervals import union_length
from diagnose.rules import (
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    Outcome,
    Rule,
    Span,
    Symptom,
    Thresholds,
    Where,
    counted,
    duration,
    limit,
    percent,
    size,
    who,
)
from diagnose.rules._buffer_uses import Streams, Use, buffers_of
from diagnose.rules._event_log import UNRECORDED, clean_as_recorded
from diagnose.rules._steps import step_rows
from diagnose.trace import Gpu

_MOST_SPANS = 3
_LOOK_BACK = 64
"""Uses of a buffer among which the one before is searched: more are never in flight at once."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a second buffer is worth its memory."""

    min_cost_pct: float = limit(1.0, "share of the step; smallest effect worth naming")
    min_num_refills: int = limit(2, "waits for the reader; a single one may be chance (judgement)")
    max_gap_us: float = limit(20.0, "from the reader's end to the refill: a launch (judgement)")


class Refill(NamedTuple):
    """A buffer was written again right after its last reader."""

    reader: Use
    writer: Use
    wait_begin_ns: int
    """When a stream that computes began to wait: for the buffer, or for its new content."""
    wait_end_ns: int

    @property
    def waited_ns(self) -> int:
        """How long it waited."""
        return self.wait_end_ns - self.wait_begin_ns


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each GPU and size of buffer."""
    if not len(facts.trace.accesses):
        return UNRECORDED
    found = [symptom for gpu in facts.gpus for symptom in _symptoms(facts, gpu, limits)]
    if found:
        return tuple(found)
    sources = np.unique(facts.trace.accesses["source"])
    unrecorded = tuple(gpu for gpu in facts.gpus if gpu.source not in sources)
    return clean_as_recorded(
        facts.trace, "no transfer waits for a buffer that is still read", unrecorded
    )


def _symptoms(facts: Facts, gpu: Gpu, limits: Limits) -> Iterator[Symptom]:
    alike: dict[int, list[Refill]] = {}
    streams = Streams(facts, gpu)
    for uses in buffers_of(facts, gpu):
        largest = max(use.end - use.begin for use in uses if use.is_transfer)
        if max(use.end for use in uses) < 2 * largest:
            alike.setdefault(largest, []).extend(_refills(uses, streams, limits.max_gap_us * 1e3))
    for largest, refills in alike.items():
        cost = _per_step(facts, gpu, refills)
        enough = len(refills) >= limits.min_num_refills
        if enough and facts.share_pct(cost) >= limits.min_cost_pct:
            yield _symptom(facts, gpu, largest, refills, cost)


def _refills(uses: list[Use], streams: Streams, max_gap_ns: float) -> Iterator[Refill]:
    """``uses`` of one buffer, by start."""
    for place, writer in enumerate(uses):
        if writer.reads or not writer.writes:
            continue
        before = [use for use in uses[max(place - _LOOK_BACK, 0) : place] if use.meets(writer)]
        if not before:
            continue
        reader = max(before, key=lambda use: use.end_ns)
        if reader.writes or reader.stream == writer.stream:
            continue
        if not (reader.is_transfer or writer.is_transfer):
            continue
        # The event that frees the buffer may be recorded behind more than the reader.
        freed = streams.last_end(reader.stream, writer.start_ns, writer.launched_ns)
        ready = max(writer.launched_ns, writer.stream_free_ns)
        prompt = freed >= reader.end_ns and writer.start_ns - freed <= max_gap_ns
        if prompt and ready < reader.end_ns:
            yield Refill(reader, writer, *_wait(uses, place, freed, ready))


def _wait(uses: list[Use], place: int, freed: int, ready: int) -> tuple[int, int]:
    """The wait of a stream that computes: at most what a transfer could have run earlier."""
    writer = uses[place]
    if not writer.is_transfer:
        return ready, freed
    later = uses[place + 1 : place + 1 + _LOOK_BACK]
    first = next((use for use in later if use.reads and use.meets(writer)), None)
    if first is None or first.stream == writer.stream or first.start_ns < writer.end_ns:
        return writer.end_ns, writer.end_ns
    begun = max(first.launched_ns, first.stream_free_ns, writer.start_ns)
    begun = max(begun, writer.end_ns - (freed - ready))
    return min(begun, writer.end_ns), writer.end_ns


def _per_step(facts: Facts, gpu: Gpu, refills: list[Refill]) -> float:
    steps = facts.steps[gpu]
    ops = facts.trace.gpu_ops.take(np.array([one.writer.row for one in refills], np.int64))
    counts = step_rows(ops, steps) | (not steps.timed)
    begins = np.array([one.wait_begin_ns for one in refills], np.int64)
    ends = np.array([one.wait_end_ns for one in refills], np.int64)
    # One wait for several buffers is one wait.
    return union_length(begins[counts], ends[counts]) / steps.number


def _symptom(facts: Facts, gpu: Gpu, largest: int, refills: list[Refill], cost: float) -> Symptom:
    trace, share = facts.trace, facts.share_pct(cost)
    worst = max(refills, key=lambda one: one.waited_ns)
    names = [
        trace.strings[int(trace.gpu_ops["name"][use.row])] for use in (worst.writer, worst.reader)
    ]
    spans = tuple(
        Span(gpu.source, one.reader.start_ns, max(one.reader.end_ns, one.writer.end_ns))
        for one in sorted(refills, key=lambda one: -one.waited_ns)[:_MOST_SPANS]
    )
    return Symptom(
        sentence=(
            f"A buffer of {size(largest)} is all that a transfer on {who(trace, (gpu,))} has: it "
            f"is filled again as soon as its last reader has ended ({counted(len(refills), 'time')}"
            f"), and a stream waits {duration(cost)} {facts.a_step} ({percent(share)})."
        ),
        where=Where(
            gpus=(gpu,),
            streams=tuple(sorted({worst.reader.stream, worst.writer.stream})),
            spans=spans,
        ),
        evidence=(
            Evidence("wait_ns", f"waits of a stream {facts.a_step}", cost),
            Evidence("wait_pct", "share of the step", share, "min_cost_pct"),
            Evidence("num_refills", "filled right after a read", len(refills), "min_num_refills"),
            Evidence("transfer_bytes", "largest transfer through the buffer", largest),
            Evidence("writer", "what fills it", names[0]),
            Evidence("reader", "what it waits for", names[1]),
        ),
        cost=Cost(cost, "waits of a stream for the one buffer"),
        advice=(
            Fix(
                "Use two buffers in turn, each with an event of its own.",
                "buffer = buffers[step % 2]; stream.wait_event(read[step % 2])",
            ),
        ),
        caveats=(
            f"It takes {size(largest)} more memory.",
            "What else the GPU does meanwhile may hide a part of the wait.",
        ),
        subject=size(largest),
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.LAUNCHES,),
    thresholds=Limits(),
)
