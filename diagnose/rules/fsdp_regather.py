"""FSDP frees parameters and gathers them again at once.

## Looks for
The unit that the forward pass gathers last, gathered again first in the backward pass; and all
units gathered twice though there is memory to keep them.

## Why it costs time
Nothing but that unit's own compute lies between the two: the bytes are moved twice for nothing, and
the second time nothing hides them.

## How it decides
FSDP2 annotates the unit of each all-gather. It fires where the repeated transfer takes
`min_repeated_pct` of the step or more: of the last unit, in `min_of_steps_pct` of the steps or
more; or of all units, where telemetry saw memory free for all of their parameters throughout.

## Stays silent when
The last unit keeps its parameters, or it costs little. Without telemetry only the last unit is
judged.

## What to do
Keep the parameters of the last unit after the forward pass; of all units, where memory allows.

## Example
`fully_shard(head)` for a head of 500 MiB: gathered at the end of the forward pass, freed, and
gathered again 2 ms later.

## References
- PyTorch, fully_shard: reshard_after_forward (the root's default keeps its parameters)
- PyTorch, FullyShardedDataParallel: ShardingStrategy.SHARD_GRAD_OP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    NotApplicable,
    Outcome,
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
from diagnose.rules._fsdp import Gather, gathers_on, is_marked
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When gathering again is worth naming."""

    min_repeated_pct: float = limit(1.0, "share of the step; the smallest effect worth naming")
    min_of_steps_pct: float = limit(50.0, "of the steps; judgement")


class Again(NamedTuple):
    """All-gathers of one GPU that repeat one of the forward pass, per step."""

    unit: str
    """Empty: all units."""
    transfer_ns: float
    exposed_ns: float
    bytes: int
    """To keep instead."""
    of_steps_pct: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs: for all units, else for the last."""
    if not is_marked(facts):
        return NotApplicable("no unit of FSDP2 is annotated")
    gathers = {gpu: gathers_on(facts, gpu) for gpu in facts.gpus}
    every = {gpu: again for gpu in facts.gpus if (again := _all_units(facts, gpu, gathers[gpu]))}
    last = {gpu: again for gpu in facts.gpus if (again := _last_unit(facts, gpu, gathers[gpu]))}
    for found in (every, last):
        hit = {
            gpu: again
            for gpu, again in found.items()
            if facts.share_pct(again.transfer_ns) >= limits.min_repeated_pct
            and again.of_steps_pct >= limits.min_of_steps_pct
        }
        if hit:
            worst = max(hit.values(), key=lambda again: again.transfer_ns)
            return (_symptom(facts, tuple(hit), worst),)
    return Clean("little is gathered twice, or there is no memory to keep it")


def _last_unit(facts: Facts, gpu: Gpu, gathers: list[Gather]) -> Again | None:
    repeated, steps = [], facts.steps[gpu]
    for step in steps.rows:
        forward = [g for g in gathers if g.step_row == step and not g.in_backward]
        backward = [g for g in gathers if g.step_row == step and g.in_backward]
        if len(forward) > 1 and backward and forward[-1].unit == backward[0].unit:
            repeated.append(backward[0])
    if not repeated:
        return None
    return _again(repeated, steps.number, repeated[0].unit, repeated[0].bytes, len(repeated))


def _all_units(facts: Facts, gpu: Gpu, gathers: list[Gather]) -> Again | None:
    sizes = {g.unit: g.bytes for g in gathers if not g.in_backward}
    repeated = [g for g in gathers if g.in_backward and g.unit in sizes]
    free, steps = _free_bytes(facts, gpu), facts.steps[gpu].number
    if not repeated or free is None or free < sum(sizes.values()):
        return None
    hit = len({g.step_row for g in repeated})
    return _again(repeated, steps, "", sum(sizes.values()), hit)


def _again(repeated: list[Gather], steps: int, unit: str, num_bytes: int, hit: int) -> Again:
    return Again(
        unit,
        sum(g.transfer_ns for g in repeated) / steps,
        sum(g.exposed_ns for g in repeated) / steps,
        num_bytes,
        100 * hit / steps,
    )


def _free_bytes(facts: Facts, gpu: Gpu) -> float | None:
    """The least memory that was free on the GPU, in bytes; None: not known."""
    samples = facts.trace.samples
    used = samples["mem_used_bytes"][samples["source"] == gpu.source]
    used = used[~np.isnan(used)]
    noted = facts.environment(gpu.source).get("gpu")
    total = noted.get("memory_bytes") if isinstance(noted, dict) else None
    if not used.size or not isinstance(total, int):
        return None
    return total - float(used.max())


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], again: Again) -> Symptom:
    share = facts.share_pct(again.transfer_ns)
    what = f"unit {again.unit}" if again.unit else "all units"
    why = "at once" if again.unit else "though memory was free for all of them"
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: FSDP frees the parameters of {what} after "
            f"the forward pass and gathers them again {why}: {duration(again.transfer_ns)} "
            f"{facts.a_step} ({percent(share)})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("repeated_ns", f"gathered again {facts.a_step}", again.transfer_ns),
            Evidence("repeated_pct", "share of the step", share, "min_repeated_pct"),
            Evidence("exposed_ns", "of it with no compute beside it", again.exposed_ns),
            Evidence("of_steps_pct", "of the steps", again.of_steps_pct, "min_of_steps_pct"),
            Evidence("keep_bytes", "memory to keep them", again.bytes),
        ),
        cost=Cost(again.exposed_ns, "exposed transfer of what is gathered again"),
        advice=(
            Fix(
                f"Keep the parameters of {what} ({size(again.bytes)}) after the forward pass.",
                "fully_shard(module, reshard_after_forward=False)",
            ),
            Fix(
                "Between both: keep them sharded within each machine alone.",
                "fully_shard(module, reshard_after_forward=8)",
            ),
        ),
        caveats=("It takes memory from the forward to the backward pass.",),
        subject="last unit" if again.unit else "all units",
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
)
