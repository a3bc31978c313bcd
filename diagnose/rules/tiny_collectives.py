"""Many small collectives, each as slow as a larger one.

## Looks for
Messages so small that their time no longer depends on their size.

## Why it costs time
Below some size a collective costs its latency alone: a launch, and a round over all ranks. Ten
messages of 100 KiB take ten times the latency, one of 1 MiB takes it once. And each costs the host
a call of 50 to 150 us, in which it launches nothing else.

## How it decides
A message is tiny if it is no larger than `max_message_mib` and its transfer takes no more than
`max_of_fastest_ratio` times the fastest of its kind and group. It fires where `min_of_calls_pct` of
all collectives are tiny, and either their transfers take `min_transfer_pct` of the step together,
or the GPU idles for `min_issue_idle_pct` of it while the host is in the calls that issue them.

## Stays silent when
Most messages are large, or the small ones take little time. Collectives of a step whose size was
not recorded count as not tiny.

## What to do
Merge them: larger gradient buckets, larger FSDP units, coalesced calls.

## Example
A step reduces 192 tensors of 4 KiB one by one, 20 us each: 3.8 ms of latency, and no bandwidth.

## References
- PyTorch, DistributedDataParallel: bucket_cap_mb is 25 MiB, the first bucket 1 MiB
- nccl-tests, doc/PERFORMANCE.md: latency and bandwidth bound sizes
- Megatron-LM: 40 million parameters a bucket and more, growing with the data parallel size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.intervals import covered_length, union
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
    size,
    who,
)
from diagnose.rules._messages import REDUCTIONS, Mask, Messages, messages_on
from diagnose.rules._spans import spans_where
from diagnose.rules._steps import step_rows
from diagnose.trace import Gpu

_ISSUING = "c10d::"
_MOSTLY = 0.5
"""Of the transfers: exposed, below which the advice is less sure."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When messages are too small."""

    max_message_mib: float = limit(1.0, "PyTorch's smallest bucket; larger is not tiny")
    max_of_fastest_ratio: float = limit(2.0, "of the fastest of its kind; judgement")
    min_of_calls_pct: float = limit(50.0, "of all collectives of a step; judgement")
    min_transfer_pct: float = limit(3.0, "share of the step; worth a change of one line")
    min_issue_idle_pct: float = limit(3.0, "of the step, GPU idle; worth a change of one line")


class Tiny(NamedTuple):
    """The tiny messages of one GPU, per step."""

    number: float
    of_calls_pct: float
    median_bytes: float
    median_ns: float
    transfer_ns: float
    exposed_ns: float
    issue_idle_ns: float
    """GPU idle while the host was in the calls that issue them."""
    gradients: bool
    """All of them are reductions of a backward pass."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    found = {gpu: tiny for gpu in facts.gpus if (tiny := _tiny_on(facts, limits, gpu)) is not None}
    hit = {
        gpu: tiny
        for gpu, tiny in found.items()
        if tiny.of_calls_pct >= limits.min_of_calls_pct
        and (
            facts.share_pct(tiny.transfer_ns) >= limits.min_transfer_pct
            or facts.share_pct(tiny.issue_idle_ns) >= limits.min_issue_idle_pct
        )
    }
    if not hit:
        return Clean("small messages are few, or take little time")
    return (_symptom(facts, hit),)


def _tiny_on(facts: Facts, limits: Limits, gpu: Gpu) -> Tiny | None:
    messages = messages_on(facts, gpu)
    rows = _tiny_rows(messages, limits)
    if not rows.any():
        return None
    reduces = rows & messages.is_kind(*REDUCTIONS) & messages.in_backward
    return Tiny(
        number=float(rows.sum()) / messages.steps,
        of_calls_pct=100 * float(rows.mean()),
        median_bytes=float(np.median(messages.bytes[rows])),
        median_ns=float(np.median(messages.transfer_ns[rows])),
        transfer_ns=messages.per_step(messages.transfer_ns, rows),
        exposed_ns=messages.per_step(messages.exposed_ns, rows),
        issue_idle_ns=_idle_in_calls(facts, gpu, messages, rows),
        gradients=bool((reduces == rows).all()),
    )


def _idle_in_calls(facts: Facts, gpu: Gpu, messages: Messages, rows: Mask) -> float:
    """GPU idle per step, in ns, during the operators (``c10d::...``) that launch these messages."""
    stalls, launches = facts.find("stalls"), facts.trace.launches
    calls = facts.trace.gpu_ops["launch_row"][messages.row[rows]]
    calls = calls[calls >= 0]
    if stalls is None or not calls.size:
        return 0.0
    own = spans_where(facts, lambda text: text.startswith(_ISSUING))
    own = own.take(own["source"] == gpu.source)
    issuing = np.zeros(len(own), bool)
    for thread in np.unique(launches["thread"][calls]):
        at = np.sort(launches["start_ns"][calls[launches["thread"][calls] == thread]])
        inside = np.searchsorted(at, own["start_ns"]) < np.searchsorted(at, own["end_ns"])
        issuing |= (own["thread"] == thread) & inside
    steps = facts.steps[gpu]
    mine = stalls.take(facts.on(stalls, gpu) & step_rows(stalls, steps))
    spans = union(own["start_ns"][issuing], own["end_ns"][issuing])
    return float(covered_length(spans, mine["start_ns"], mine["end_ns"]).sum()) / steps.number


def _tiny_rows(messages: Messages, limits: Limits) -> Mask:
    small = (messages.bytes > 0) & (messages.bytes <= limits.max_message_mib * 2**20)
    tiny: Mask = np.zeros(small.size, bool)
    places = np.array([f"{k} {g}" for k, g in zip(messages.kind, messages.group, strict=True)])
    for place in np.unique(places[small]):
        own = (places == place) & (messages.transfer_ns > 0)
        if own.any():
            most = limits.max_of_fastest_ratio * messages.transfer_ns[own].min()
            tiny |= own & small & (messages.transfer_ns <= most)
    return tiny


def _symptom(facts: Facts, hit: dict[Gpu, Tiny]) -> Symptom:
    gpus = tuple(hit)
    worst = max(hit.values(), key=lambda tiny: tiny.transfer_ns + tiny.issue_idle_ns)
    share, idle = facts.share_pct(worst.transfer_ns), facts.share_pct(worst.issue_idle_ns)
    lost = worst.exposed_ns + worst.issue_idle_ns
    beside = f", and the GPU idles for {duration(worst.issue_idle_ns)} while they are issued"
    beside = f"{beside} ({percent(idle)})" if worst.issue_idle_ns > 0 else ""
    evidence = (
        Evidence("num_tiny", f"tiny collectives {facts.a_step}", worst.number),
        Evidence("of_calls_pct", "of all collectives", worst.of_calls_pct, "min_of_calls_pct"),
        Evidence("message_bytes", "message, median", worst.median_bytes, "max_message_mib"),
        Evidence("each_ns", "transfer of each, median", worst.median_ns),
        Evidence("transfer_ns", f"their transfers {facts.a_step}", worst.transfer_ns),
        Evidence("transfer_pct", "share of the step", share, "min_transfer_pct"),
        Evidence("exposed_ns", "of it with no compute beside it", worst.exposed_ns),
        Evidence(
            "issue_idle_ns", f"GPU idle while they are issued {facts.a_step}", worst.issue_idle_ns
        ),
        Evidence("issue_idle_pct", "share of the step", idle, "min_issue_idle_pct"),
    )
    return Symptom(
        sentence=(
            f"{counted(round(worst.number), 'collective')} {facts.a_step} on "
            f"{who(facts.trace, gpus)} of {size(worst.median_bytes)} at the median take "
            f"{duration(worst.median_ns)} each whatever their size, {duration(worst.transfer_ns)} "
            f"together ({percent(share)} of the step){beside}."
        ),
        where=Where(gpus=gpus),
        evidence=evidence,
        cost=Cost(lost, "exposed transfer of tiny messages, and GPU idle while they are issued"),
        advice=(
            Fix(
                "DistributedDataParallel: reduce gradients in larger buckets.",
                "DistributedDataParallel(model, bucket_cap_mb=25)",
            ),
            Fix("FSDP: wrap whole blocks, or several small ones together.", "fully_shard(block)"),
            Fix(
                "Own collectives: flatten the tensors, or coalesce the calls.",
                "with torch.distributed._coalescing_manager(): ...",
            ),
        ),
        caveats=(
            "Larger buckets start later, and lengthen what is left after the backward pass.",
            "Where they are hidden beside compute, merging them gains little.",
        ),
        changes=("bucket-size:mb=25",) if worst.gradients else (),
        confidence=None if lost >= _MOSTLY * worst.transfer_ns else "medium",
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.LAUNCHES),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
