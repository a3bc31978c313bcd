"""The host waits for the GPU, and the GPU runs dry.

## Looks for
Calls that wait for the GPU (`.item()`, `.cpu()`, `nonzero`, `torch.cuda.synchronize()`) after
which the host is late with its next launches, so that the GPU stands still.

## Why it costs time
While the host waits, it launches nothing. When the GPU is done, its queue is empty, and it idles
until the host has launched again.

## How it decides
By GPU idle time, not by how long the host waited: a host that waits with work still queued costs
nothing. It fires where idle time whose cause is a synchronisation (`stalls`) reaches `min_idle_pct`
of the step.

## Stays silent when
The queue holds enough work during the wait, as with one deliberate synchronisation a step.

## What to do
Take the wait out of the step: keep the value on the GPU, read it every N steps, or copy it
without blocking and read it a step later.

## Example
`loss.item()` in each of four layers: the host waits 168 us each time, and each time the GPU idles
47 us until the next kernel arrives.

## References
- PyTorch, torch.cuda.set_sync_debug_mode
- CUDA Runtime API, API synchronization behavior
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.rules import (
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
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
from diagnose.rules._calls import Site, waits_at
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When waiting for the GPU is worth naming."""

    min_idle_pct: float = limit(1.0, "idle share of the step; smallest effect worth naming")


def check(facts: Facts, limits: Limits) -> Iterator[Symptom]:
    """One finding for all GPUs that run dry."""
    stalls = facts.table("stall_causes")
    by_sync = stalls["cause"] == Cause.HOST_SYNC
    idle = {gpu: facts.per_step(stalls, "length_ns", gpu, by_sync) for gpu in facts.gpus}
    hit = tuple(g for g in facts.gpus if facts.share_pct(idle[g]) >= limits.min_idle_pct)
    if hit:
        worst = max(hit, key=lambda gpu: idle[gpu])
        sites = [site for site in waits_at(facts, worst) if site.idle_ns]
        yield _symptom(facts, hit, idle[worst], sites)


def _symptom(facts: Facts, hit: tuple[Gpu, ...], idle: float, sites: list[Site]) -> Symptom:
    share = facts.share_pct(idle)
    said = f"the GPU of {who(facts.trace, hit)} runs dry for {duration(idle)} {facts.a_step}"
    evidence = [
        Evidence("idle_ns", f"GPU idle {facts.a_step}, begun in a wait", idle),
        Evidence("idle_pct", "share of the step", share, "min_idle_pct"),
    ]
    called = "The host waits for the GPU"
    if sites:
        first = sites[0]
        called = f"{first.name} waits for the GPU {_times(facts, first.number)}"
        evidence += [
            Evidence("operator", "costliest waiting operator", first.name),
            Evidence("num_waits", f"its waits {facts.a_step}", first.number),
            Evidence("host_wait_ns", f"host time in them {facts.a_step}", first.wait_ns),
        ]
    more = f" ({counted(len(sites) - 1, 'more place')})" if len(sites) > 1 else ""
    return Symptom(
        sentence=f"{called}{more}, and {said} ({percent(share)}).",
        where=Where(gpus=hit),
        evidence=tuple(evidence),
        cost=Cost(idle, "GPU idle time that a synchronisation caused", is_upper_bound=False),
        advice=_advice([site.name for site in sites]),
        caveats=(
            "One deliberate wait a step, with work still queued, is harmless.",
            "A wait that limits how far the host runs ahead (FSDP's) also bounds memory.",
        ),
        subject=sites[0].name if sites else "",
    )


def _times(facts: Facts, number: float) -> str:
    shown = f"{number:.0f}" if float(number).is_integer() else f"{number:.1f}"
    return f"{shown} times {facts.a_step}"


def _advice(names: list[str]) -> tuple[Fix, ...]:
    steps = [
        Fix(
            "Find the lines: this prints a warning with a stack at each wait.",
            'torch.cuda.set_sync_debug_mode("warn")',
        )
    ]
    if any("item" in name or "scalar" in name for name in names):
        steps.append(
            Fix(
                "Keep the value on the GPU and read it only when it is logged.",
                "total += loss.detach()  # instead of loss.item()",
            )
        )
    if any("nonzero" in name or "index" in name or "masked" in name for name in names):
        steps.append(
            Fix(
                "Replace boolean indexing by a form whose size is known without the GPU.",
                "torch.where(mask, x, 0)  # instead of x[mask]",
            )
        )
    steps.append(
        Fix(
            "Where a copy to the host is needed, make it without blocking and read it later.",
            "value = tensor.to('cpu', non_blocking=True)  # read it in the next step",
        )
    )
    return tuple(steps)


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS),
    thresholds=Limits(),
    changes=("no-host-sync",),
    explains=("late-collective-launch",),
)
