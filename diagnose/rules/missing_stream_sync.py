"""Nothing orders two uses of the same memory.

## Looks for
Two operations on different streams, or one of the GPU and one of the host, that use the same bytes
of a tensor, at least one of them writing, with no path of launches, events and waits between them.
On ranks without an execution trace: collectives on a stream of their own for whose end nothing
waits, while kernels launched after them already run.

## Why it costs time
It costs no time, it may cost the result: a kernel that reads a tensor before it is written whole
reads old or half-written numbers. Losses differ between runs or turn into NaN once communication
overlaps compute.

## How it decides
With an execution trace of the same steps (`diagnose attach --check-sync`) nothing is taken for
granted. What each operator reads and writes is in that trace; which event each stream and the host
waits for is noted in the profile; what must be over before what may begin follows from both. Two
uses without an order are a critical finding, however far apart they came this time. Where one of
them is a view with gaps, the bytes may differ: that is a hint. Memory that the allocator gave out
again before a use on another stream was over (no `record_stream`) counts as well.

On a rank without one, the optimizer is taken to read what collectives before it have made. After
`min_untied_pct` of the collectives of a stream or more, and before the first kernel of the next
optimizer step, no other stream that computes waits for an event (one whose stream is not recorded
counts as a wait), and the host waits for neither that stream nor the device; and at least
`min_num_early` of these collectives have not ended when that kernel starts. Where no optimizer step
is marked, the next kernel stands for it, and a wait at any later time counts. Which tensor a kernel
reads is not in a profile alone: this is a hint.

## Stays silent when
A stream or the host waits before the second use, as after each `Work.wait()`; both run on one
stream, which orders them; or they are replayed from a CUDA graph, which holds the order. Not seen
are kernels without an operator (Triton, extensions), the inside of CUDA graphs, and uses in other
steps than the recorded ones: the report counts them.

## What to do
Let the second stream wait for the first (`wait_stream`, or `wait()` on the work that a collective
returned), or tell the allocator (`record_stream`). Do not synchronise on the host: that hides it
and costs the overlap.

## Example
The next batch is copied on a side stream, and the step reads it without
`torch.cuda.current_stream().wait_stream(side)`.

## References
- PyTorch, ProcessGroupNCCL: the caller must wait for the work
- PyTorch, CUDA stream sanitizer
- PyTorch issue 60511
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards import followed
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
    duration,
    limit,
    who,
)
from diagnose.rules._event_log import UNRECORDED
from diagnose.rules._hazard_coverage import seen
from diagnose.rules._proven import symptoms
from diagnose.schema import Activity, Call
from diagnose.trace import Gpu, Table

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a missing wait is worth a hint."""

    min_untied_pct: float = limit(90.0, "of a stream's collectives; the last may be waited later")
    min_num_early: int = limit(3, "collectives that the next kernel overtakes; fewer are chance")


class Untied(NamedTuple):
    """Collectives of one stream that nothing waits for."""

    gpu: Gpu
    stream: int
    by_optimizer: bool
    number: int
    untied_pct: float
    early: Rows
    """Rows of ``gpu_ops``: collectives that their consumer overtook."""
    overtaken_ns: int
    """The longest time by which one did."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each pair of accesses that is proven; else for each GPU and stream."""
    proven = facts.find("hazards")
    if proven is None:
        return _guessed(facts, limits, facts.gpus)
    # Of processes without an execution trace the profile says what it can.
    sources = followed(facts.trace)
    others = tuple(gpu for gpu in facts.gpus if gpu.source not in sources)
    guessed = _guessed(facts, limits, others)
    hints = guessed if isinstance(guessed, tuple) else ()
    return (*symptoms(facts, proven), *hints) or Clean(
        f"nothing that was seen to use the same memory lacks an order. {seen(facts.trace)}",
        told=True,
    )


def _guessed(
    facts: Facts, limits: Limits, gpus: Sequence[Gpu]
) -> tuple[Symptom, ...] | Clean | NotJudged:
    """What a profile alone says of some GPUs."""
    if Need.COMMUNICATION.lack(facts) is not None:
        return UNRECORDED
    lack = Need.SYNC_EVENTS.lack(facts)
    if lack is not None:
        return NotJudged(lack.because, lack.remedy)
    found = [
        one
        for gpu in gpus
        for one in _streams(facts, gpu)
        if one.untied_pct >= limits.min_untied_pct and len(one.early) >= limits.min_num_early
    ]
    if not found:
        return Clean("streams that compute wait for the collectives, or share their stream")
    return tuple(_symptom(facts, one) for one in found)


def _streams(facts: Facts, gpu: Gpu) -> Iterator[Untied]:
    """Each stream with communication, against the compute of all other streams."""
    trace = facts.trace
    ops, calls = trace.gpu_ops, trace.launches
    mine = np.flatnonzero(facts.on(ops, gpu) & ops.known("launch_row"))
    mine = mine[calls["call"][ops["launch_row"][mine]] != Call.GRAPH_LAUNCH]
    compute = mine[ops["activity"][mine] == Activity.COMPUTE]
    compute = compute[np.argsort(_launched(facts, compute), kind="stable")]
    communication = np.intersect1d(mine, trace.collectives["gpu_op_row"])
    for stream in np.unique(ops["stream"][communication]).tolist():
        rows = communication[ops["stream"][communication] == stream]
        others = compute[ops["stream"][compute] != stream]
        ties = _ties(facts, gpu, int(stream), np.unique(ops["stream"][others]))
        found = _Consumers.of(facts, gpu, rows, others)
        begun, used = _launched(facts, found.collectives), _launched(facts, found.kernels)
        if not found.by_optimizer:
            # Whether the next kernel reads the result is anybody's guess: any later wait counts.
            used = np.full(len(used), np.iinfo(np.int64).max)
        untied = np.searchsorted(ties, begun) == np.searchsorted(ties, used, side="right")
        overtaken = ops["end_ns"][found.collectives] - ops["start_ns"][found.kernels]
        early = untied & (overtaken > 0)
        if len(untied):
            yield Untied(
                gpu,
                int(stream),
                found.by_optimizer,
                len(untied),
                100 * float(untied.mean()),
                found.collectives[early],
                int(overtaken[early].max(initial=0)),
            )


def _launched(facts: Facts, rows: Rows) -> Rows:
    """When the host launched operations of the GPU."""
    found: Rows = facts.trace.launches["start_ns"][facts.trace.gpu_ops["launch_row"][rows]]
    return found


class _Consumers(NamedTuple):
    """Collectives, and for each the kernel that is taken to read its result."""

    collectives: Rows
    kernels: Rows
    by_optimizer: bool
    """Whether it is the first kernel of the next optimizer step; else the next kernel."""

    @classmethod
    def of(cls, facts: Facts, gpu: Gpu, rows: Rows, compute: Rows) -> _Consumers:
        """Of those that have one. ``compute``: rows by launch."""
        hosts = facts.trace.host_ops
        hit = facts.trace.strings.where(lambda text: text.startswith("Optimizer.step#"))
        marks = hosts.take((hosts["source"] == gpu.source) & hit[hosts["name"]])
        begun, launched = _launched(facts, rows), _launched(facts, compute)
        after = begun
        if len(marks):
            starts = np.sort(marks["start_ns"])
            at = np.searchsorted(starts, begun)
            rows, at = rows[at < len(starts)], at[at < len(starts)]
            after = starts[at]
        place = np.searchsorted(launched, after, side="right")
        exists = place < len(compute)
        return cls(rows[exists], compute[place[exists]], bool(len(marks)))


def _ties(facts: Facts, gpu: Gpu, stream: int, computing: Rows) -> Rows:
    """When the host asked for a wait that may be for the stream; unknown events count."""
    syncs = facts.trace.syncs
    own = syncs.take((syncs["source"] == gpu.source) & (syncs["device"] == gpu.device))
    kinds = own.strings
    of_stream = kinds.where(lambda text: text == "Stream Wait Event")[own["sync_kind"]]
    of_event = kinds.where(lambda text: text == "Event Sync")[own["sync_kind"]]
    may_be = ~own.known("event_stream") | (own["event_stream"] == stream)
    waits = of_stream & np.isin(own["stream"], computing) & may_be
    # A thread that launches nothing (NCCL's watchdog) orders nothing.
    at, launching = _calls_of(facts, gpu, own)
    host = ~of_stream & launching & np.where(of_event, may_be, _is_for(own, stream))
    found: Rows = np.sort(at[waits | host])
    return found


def _is_for(syncs: Table, stream: int) -> npt.NDArray[np.bool_]:
    named: npt.NDArray[np.bool_] = ~syncs.known("stream") | (syncs["stream"] == stream)
    return named


def _calls_of(facts: Facts, gpu: Gpu, syncs: Table) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """When the host called for each wait, and whether by a thread that also launches kernels."""
    calls = facts.trace.launches
    own = calls.take(calls["source"] == gpu.source)
    busy = np.unique(own["thread"][own["call"] == Call.LAUNCH])
    order = np.argsort(own["correlation"], kind="stable")
    sorted_ = own["correlation"][order]
    place = np.minimum(np.searchsorted(sorted_, syncs["correlation"]), max(len(order) - 1, 0))
    if not len(order):
        return syncs["start_ns"].astype(np.int64), np.ones(len(syncs), bool)
    row = order[place]
    known = own["correlation"][row] == syncs["correlation"]
    at = np.where(known, own["start_ns"][row], syncs["start_ns"])
    return at.astype(np.int64), ~known | np.isin(own["thread"][row], busy)


def _symptom(facts: Facts, untied: Untied) -> Symptom:
    ops, gpu = facts.trace.gpu_ops, untied.gpu
    consumer = "the optimizer" if untied.by_optimizer else "the next kernel"
    spans = tuple(
        Span(gpu.source, int(ops["start_ns"][row]), int(ops["end_ns"][row]))
        for row in untied.early[:3].tolist()
    )
    return Symptom(
        sentence=(
            f"Nothing waits for the collectives on stream {untied.stream} of "
            f"{who(facts.trace, (gpu,))} before {consumer} starts, up to "
            f"{duration(untied.overtaken_ns)} before {len(untied.early)} of {untied.number} have "
            "ended: if it reads their results, it reads too early."
        ),
        where=Where(gpus=(gpu,), streams=(untied.stream,), spans=spans),
        evidence=(
            Evidence("num_collectives", "collectives on the stream", untied.number),
            Evidence("untied_pct", "that nothing waits for", untied.untied_pct, "min_untied_pct"),
            Evidence("num_early", "not ended when it is read", len(untied.early), "min_num_early"),
            Evidence("overtaken_ns", "by at most", untied.overtaken_ns),
        ),
        advice=(
            Fix(
                "Be sure first: this records what each operator reads and writes.",
                "diagnose attach --check-sync",
            ),
            Fix(
                "Wait before the result is used: this makes the stream wait, not the host.",
                "work = dist.all_reduce(tensor, async_op=True); ...; work.wait()",
            ),
            Fix(
                "Between streams of your own, let the consumer's wait.",
                "torch.cuda.current_stream().wait_stream(side); tensor.record_stream(side)",
            ),
        ),
        caveats=(
            "A trace does not say which tensor a kernel reads: results that nobody reads, or that "
            "are read after the window, look the same.",
            "Do not use torch.cuda.synchronize() for this: it hides the race and costs overlap.",
        ),
        no_gain="it is about right results, not about time",
        confidence="low",
        subject=f"stream {untied.stream}",
    )


RULE = Rule(
    check=check,
    area="correctness",
    confidence="high",
    needs=(Need.LAUNCHES,),
    thresholds=Limits(),
)
