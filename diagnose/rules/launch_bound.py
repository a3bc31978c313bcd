"""The GPU waits for the next launch.

## Looks for
Many short kernels that start as soon as they are launched, with idle time between them: the host
cannot issue work as fast as the GPU does it.

## Why it costs time
Each launch costs the host some microseconds, and the Python and the operator around it more. A
kernel shorter than that leaves the GPU idle until the next one arrives.

## How it decides
The idle time whose cause is a host that was busy in operators, in Python or in the launch itself
(`stalls`) reaches `min_idle_pct` of the step; the median operation starts within `max_delay_us` of
its launch, so nothing was queued; and the median kernel is shorter than `max_kernel_ratio` times
the median launch call.

## Stays silent when
The work is replayed from CUDA graphs (no launch for each kernel), the queue is full, or kernels are
long: then the host is late for another reason than the number of launches, which
`diagnose stalls PATH` names (on one rank alone, straggler-rank tells of it).

## What to do
Launch less: fuse (`torch.compile`), use fused or `foreach` optimizers, replay a CUDA graph, or make
each kernel larger with a bigger batch.

## Example
100 kernels of 3 us, one every 10 us: each is launched by an operator of 10 us, nothing ever queues,
and the GPU idles 70 % of the time.

## References
- HolisticTraceAnalysis, CUDA kernel launch statistics
- PyTorch, Accelerating PyTorch with CUDA Graphs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause
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
    duration,
    limit,
    percent,
    who,
)
from diagnose.schema import Call, Kind
from diagnose.trace import Gpu

_BUSY_HOST = (Cause.HOST_OP, Cause.PYTHON, Cause.LAUNCH_LATENCY)


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the GPU waits for launches."""

    min_idle_pct: float = limit(15.0, "idle share of the step; TraceLens' alarm level")
    max_delay_us: float = limit(15.0, "launch to start, median; HTA's limit for an empty queue")
    max_kernel_ratio: float = limit(2.0, "median kernel over median launch call; judgement")


class Launches(NamedTuple):
    """Medians over one GPU's kernels that a call of their own launched."""

    number: float
    """Per step."""
    delay_ns: float
    kernel_ns: float
    call_ns: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs that wait for launches."""
    stalls = facts.table("stall_causes")
    by_host = np.isin(stalls["cause"], _BUSY_HOST)
    idle, seen = {}, {}
    for gpu in facts.gpus:
        idle[gpu] = facts.per_step(stalls, "length_ns", gpu, by_host)
        if facts.share_pct(idle[gpu]) >= limits.min_idle_pct:
            launches = launches_of(facts, gpu)
            if launches is not None and _empty_queue(launches, limits):
                seen[gpu] = launches
    if not seen:
        return Clean("the queue holds work, or kernels are long, or launches are few")
    worst = max(seen, key=lambda gpu: idle[gpu])
    return (_symptom(facts, tuple(seen), idle[worst], seen[worst]),)


def launches_of(facts: Facts, gpu: Gpu) -> Launches | None:
    """None where half of the operations or more come from graphs, or none has its launch."""
    ops = facts.operations_per_step(gpu)
    launches = facts.trace.launches
    launched = ops.take(ops.known("launch_row"))
    call = launches["call"][launched["launch_row"]]
    own = launched.take((call == Call.LAUNCH) & (launched["kind"] == Kind.KERNEL))
    if not len(own) or 2 * int((call == Call.GRAPH_LAUNCH).sum()) >= len(launched):
        return None
    rows = own["launch_row"]
    return Launches(
        len(own) / facts.steps[gpu].number,
        float(np.median(own["start_ns"] - launches["start_ns"][rows])),
        float(np.median(own["end_ns"] - own["start_ns"])),
        float(np.median(launches["end_ns"][rows] - launches["start_ns"][rows])),
    )


def _empty_queue(launches: Launches, limits: Limits) -> bool:
    short = launches.kernel_ns < limits.max_kernel_ratio * launches.call_ns
    return short and launches.delay_ns < limits.max_delay_us * 1000


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], idle: float, launches: Launches) -> Symptom:
    share = facts.share_pct(idle)
    return Symptom(
        sentence=(
            f"The GPU of {who(facts.trace, gpus)} idles {duration(idle)} {facts.a_step} "
            f"({percent(share)}) until the next of {launches.number:,.0f} kernels is launched; "
            f"the median kernel takes {duration(launches.kernel_ns)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("idle_ns", f"idle {facts.a_step} while the host is busy", idle),
            Evidence("idle_pct", "share of the step", share, "min_idle_pct"),
            Evidence("num_kernels", f"kernels launched one by one {facts.a_step}", launches.number),
            Evidence("delay_ns", "launch to start, median", launches.delay_ns, "max_delay_us"),
            Evidence("kernel_ns", "kernel, median", launches.kernel_ns),
            Evidence("call_ns", "launch call, median", launches.call_ns),
            Evidence(
                "kernel_ratio",
                "kernel over launch call",
                launches.kernel_ns / launches.call_ns if launches.call_ns else 0.0,
                "max_kernel_ratio",
            ),
        ),
        cost=Cost(idle, "GPU idle while the host prepares the next launch", is_upper_bound=True),
        advice=(
            Fix("Fuse small kernels.", "model = torch.compile(model)"),
            Fix("Update all parameters in a few kernels.", "torch.optim.AdamW(..., fused=True)"),
            Fix(
                "Where shapes are static, capture the step and replay it as one launch.",
                'torch.compile(model, mode="reduce-overhead")  # or torch.cuda.graph',
            ),
            Fix("Give each kernel more work: a larger batch for each GPU."),
        ),
        caveats=(
            "The profiler slows launches: without it the idle time is smaller (the gain is "
            "replayed without it).",
            "Graphs need static shapes and addresses; collectives inside need one process for "
            "each GPU.",
        ),
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS),
    thresholds=Limits(),
    changes=("cuda-graph",),
    explains=("straggler-rank", "late-collective-launch"),
)
