"""A collective was ready and found no room.

## Looks for
Kernels of communication that were launched, whose stream was free and whose recorded waits were
over, and that still began much later, while kernels of compute with a block for every
multiprocessor ran one after the other.

## Why it costs time
Blocks of a later kernel of compute take the multiprocessors before those of the collective, on
this rank and so for every peer that waits for it.

## How it decides
Only time counts in which such a kernel ran that itself began after the collective was ready: what
ran already nothing can interrupt. A collective counts where that is `min_delay_us` or more and
`min_filled_pct` of its whole delay was so filled; over a step the delays are more than
`min_delay_pct` of the time of communication, and `min_step_pct` of the step.

## Stays silent when
One long kernel that already ran was the reason, communication is by copies, the variable
TORCH_NCCL_HIGH_PRIORITY is on, CUDA_DEVICE_MAX_CONNECTIONS is 1 (then the order of launches holds
it), no wait of a stream was recorded, or the number of multiprocessors is not known.

## What to do
Give the communicator's stream high priority.

## Example
An all-reduce of 500 us, ready as the third of ten GEMMs of 300 us begins, starts after the fifth:
600 us late.

## References
- PyTorch, TORCH_NCCL_HIGH_PRIORITY; issues 43796, 122830; 117973 (FSDP2's own stream priority does
  not reach NCCL's stream)
- CUDA driver, cuStreamCreateWithPriority: a hint, which never preempts and not for copies
- ROCm, workload optimization; arXiv 2606.09200
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
    Span,
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
from diagnose.schema import NULL, Kind
from diagnose.trace import Gpu, Table

_PRIORITY = ("TORCH_NCCL_HIGH_PRIORITY",)
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_OFF = ("", "0", "false", "no", "off", "n", "f")


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a late start is worth naming."""

    min_delay_us: float = limit(200.0, "of one collective; several kernels long (judgement)")
    min_filled_pct: float = limit(90.0, "of the delay, with kernels that fill the GPU (judgement)")
    min_delay_pct: float = limit(20.0, "of the time of communication (judgement)")
    min_step_pct: float = limit(1.0, "of the step; smallest effect worth naming")


class Starved(NamedTuple):
    """Collectives of one GPU that found no room."""

    queued: Queued
    rows: Array
    delay_ns: float
    """Per step."""
    of_communication_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    hit: dict[Gpu, Starved] = {}
    for gpu in facts.gpus:
        one = None if _is_settled(facts, gpu) else _starved(facts, limits, gpu)
        if (
            one is not None
            and one.of_communication_pct > limits.min_delay_pct
            and facts.share_pct(one.delay_ns) >= limits.min_step_pct
        ):
            hit[gpu] = one
    if not hit:
        return Clean("collectives that are ready begin, or something recorded holds them")
    return (_symptom(facts, hit),)


def _is_settled(facts: Facts, gpu: Gpu) -> bool:
    """Whether priority is high already, or the order of launches decides."""
    high = any(
        facts.variables(name).get(gpu.source, "").strip().lower() not in _OFF for name in _PRIORITY
    )
    return high or facts.variables(_QUEUES).get(gpu.source, "").strip() == "1"


def _starved(facts: Facts, limits: Limits, gpu: Gpu) -> Starved | None:
    big = filling(facts, gpu)
    queued = queued_on(facts, gpu)
    if big is None or not queued.waits_recorded:
        return None
    mine = queued.in_steps & queued.communicates
    kernels = np.flatnonzero(mine & (queued.ops["kind"] == Kind.KERNEL))
    ready, start = queued.ready_ns[kernels], queued.ops["start_ns"][kernels]
    full = union(big["start_ns"], big["end_ns"])
    begun = np.maximum(ready, _over(big, ready))
    delay = covered_length(full, begun, np.maximum(start, begun))
    whole = covered_length(full, ready, start)
    late = delay >= limits.min_delay_us * 1000
    late &= 100 * whole >= limits.min_filled_pct * (start - ready)
    total = int((queued.ops["end_ns"] - queued.ops["start_ns"])[mine].sum())
    lost = int(delay[late].sum())
    if not total:
        return None
    return Starved(queued, kernels[late], lost / facts.steps[gpu].number, 100 * lost / total)


def _over(big: Table, at: Array) -> Array:
    """When those of some kernels (by start) that run at each time are over; else before it.

    Of kernels on several streams the latest end of those begun counts.
    """
    ends = np.append(NULL, np.maximum.accumulate(big["end_ns"]))
    found: Array = ends[np.searchsorted(big["start_ns"], at, side="right")]
    return found


def _symptom(facts: Facts, hit: dict[Gpu, Starved]) -> Symptom:
    gpu, worst = max(hit.items(), key=lambda item: item[1].delay_ns)
    share = facts.share_pct(worst.delay_ns)
    ops = worst.queued.ops
    spans = tuple(
        Span(gpu.source, int(worst.queued.ready_ns[row]), int(ops["start_ns"][row]))
        for row in worst.rows[:3].tolist()
    )
    return Symptom(
        sentence=(
            f"{counted(int(worst.rows.size), 'collective')} on {who(facts.trace, hit)} "
            "were ready while kernel after kernel of compute took the multiprocessors: begun "
            f"{duration(worst.delay_ns)} {facts.a_step} too late "
            f"({percent(worst.of_communication_pct)} of communication)."
        ),
        where=Where(
            gpus=tuple(hit),
            streams=tuple(np.unique(ops["stream"][worst.rows]).tolist()),
            spans=spans,
        ),
        evidence=(
            Evidence("delay_ns", f"begun too late {facts.a_step}", worst.delay_ns),
            Evidence("step_pct", "share of the step", share, "min_step_pct"),
            Evidence(
                "delay_pct", "of the communication", worst.of_communication_pct, "min_delay_pct"
            ),
            Evidence("num_collectives", "collectives that began late", int(worst.rows.size)),
        ),
        cost=Cost(worst.delay_ns, "collectives that were ready and found no room", True),
        advice=(
            Fix(
                "High priority for the streams of all communicators.", "TORCH_NCCL_HIGH_PRIORITY=1"
            ),
            Fix(
                "Or of one process group.",
                "dist.new_group(pg_options=ProcessGroupNCCL.Options(is_high_priority_stream=True))",
            ),
        ),
        caveats=(
            "Priority is a hint: it never interrupts a kernel that runs.",
            "It does nothing for copies, and FSDP2's own stream priority does not reach NCCL's.",
            "A group set up with high priority in code looks the same: a trace does not say it.",
        ),
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
