"""Gradients are reduced after every micro-batch.

## Looks for
Several backward passes before one optimizer step, each of which reduces the same gradients.

## Why it costs time
Gradients that are accumulated need one reduction, before the optimizer step. The others move the
same bytes for nothing.

## How it decides
Between two optimizer steps, as the annotations `Optimizer.step#...` mark them, reductions are
counted by backward pass: work of the step's own thread between two of them tells passes apart. It
fires where the bytes reduced are more than `min_reductions_ratio` times those of the last pass, and
the passes reduce the same messages.

## Stays silent when
Each optimizer step has one backward pass, passes reduce different gradients, or only the last one
reduces. Without an optimizer's annotations it is not checked.

## What to do
Switch the reduction off for all micro-batches but the last, around forward and backward.

## Example
Four micro-batches reduce 500 MiB each before one optimizer step: 1500 MiB of 2000 are not needed.

## References
- PyTorch, DistributedDataParallel.no_sync
- PyTorch, FSDPModule.set_requires_gradient_sync
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
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    size,
    who,
)
from diagnose.rules._messages import REDUCTIONS, Array, Mask, Messages, messages_on
from diagnose.schema import Activity
from diagnose.trace import Gpu

_OPTIMIZER_STEP = "Optimizer.step#"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When gradients are reduced too often."""

    min_reductions_ratio: float = limit(
        1.5, "bytes reduced per optimizer step over those of its last pass; judgement"
    )


class Repeated(NamedTuple):
    """Reductions of one GPU that a later pass repeats, per optimizer step."""

    passes: int
    ratio: float
    bytes: float
    spare_exposed_ns: float
    """Exposed transfer of all passes but the last, per step."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    if not len(_optimizer_starts(facts, facts.gpus[0].source)):
        return NotJudged(
            "no optimizer step is marked", "torch.optim marks them where operators are recorded"
        )
    found = {gpu: one for gpu in facts.gpus if (one := _repeated(facts, limits, gpu)) is not None}
    return (_symptom(facts, found),) if found else Clean("gradients are reduced once")


def _optimizer_starts(facts: Facts, source: int) -> Array:
    ops = facts.trace.host_ops
    marks = np.append(ops.strings.where(lambda text: text.startswith(_OPTIMIZER_STEP)), False)
    return np.sort(ops["start_ns"][marks[ops["name"]] & (ops["source"] == source)])


def _repeated(facts: Facts, limits: Limits, gpu: Gpu) -> Repeated | None:
    messages = messages_on(facts, gpu)
    reduces = messages.is_kind(*REDUCTIONS) & messages.in_backward & (messages.bytes > 0)
    if not reduces.any():
        return None
    optimizer = np.searchsorted(_optimizer_starts(facts, gpu.source), messages.launch_ns)
    number = np.searchsorted(_own_compute(facts, gpu), messages.launch_ns)
    spare: Mask = np.zeros(reduces.size, bool)
    ratios, passes, last_bytes = [], [], []
    for one in np.unique(optimizer[reduces]):
        rows = reduces & (optimizer == one)
        parts = [rows & (number == p) for p in np.unique(number[rows])]
        # Passes reduce the same where the messages of each are those of the last.
        last = _content(messages, parts[-1])
        same = [part for part in parts if _content(messages, part) == last]
        total = float(messages.bytes[parts[-1]].sum())
        ratios.append(sum(float(messages.bytes[part].sum()) for part in same) / total)
        passes.append(len(same))
        last_bytes.append(total)
        for part in same[:-1]:
            spare |= part
    ratio = float(np.median(ratios))
    if ratio <= limits.min_reductions_ratio:
        return None
    exposed = messages.per_step(messages.exposed_ns, spare)
    return Repeated(int(np.median(passes)), ratio, float(np.median(last_bytes)), exposed)


def _own_compute(facts: Facts, gpu: Gpu) -> Array:
    """When the threads that mark steps launched compute: forward passes. Sorted, ns."""
    trace, ops = facts.trace, facts.trace.gpu_ops.take(facts.trace.on(gpu))
    ops = ops.take((ops["launch_row"] >= 0) & (ops["activity"] == Activity.COMPUTE))
    calls = trace.launches.take(ops["launch_row"])
    marking = trace.steps["thread"][trace.steps["source"] == gpu.source]
    return np.sort(calls["start_ns"][np.isin(calls["thread"], marking)])


def _content(messages: Messages, rows: Mask) -> list[tuple[str, str, int]]:
    columns = (messages.kind[rows], messages.group[rows], messages.bytes[rows].tolist())
    return sorted((str(k), str(g), b) for k, g, b in zip(*columns, strict=True))


def _symptom(facts: Facts, found: dict[Gpu, Repeated]) -> Symptom:
    gpus = tuple(found)
    worst = max(found.values(), key=lambda one: one.spare_exposed_ns)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: {worst.passes} backward passes before each "
            f"optimizer step reduce the same {size(worst.bytes)} of gradients; all but the last "
            f"are for nothing ({duration(worst.spare_exposed_ns)} exposed {facts.a_step})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_passes", "passes that reduce, per optimizer step", worst.passes),
            Evidence(
                "reductions_ratio", "bytes reduced over needed", worst.ratio, "min_reductions_ratio"
            ),
            Evidence("gradient_bytes", "gradients reduced by the last pass", worst.bytes),
            Evidence("exposed_ns", "exposed transfer of the others", worst.spare_exposed_ns),
        ),
        cost=Cost(worst.spare_exposed_ns, "exposed transfer of all passes but the last"),
        advice=(
            Fix(
                "DistributedDataParallel: forward and backward of all micro-batches but the last "
                "inside of no_sync().",
                "with model.no_sync(): loss = model(x); loss.backward()",
            ),
            Fix(
                "FSDP2: reduce with the last micro-batch only.",
                "model.set_requires_gradient_sync(is_last_micro_batch)",
            ),
        ),
        caveats=(
            "FSDP then keeps whole gradients between micro-batches: that needs memory.",
            "Pipeline schedules do it by themselves.",
        ),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="high",
    needs=(Need.COMMUNICATION, Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
    changes=("accumulate-without-sync",),
    explains=("exposed-communication",),
)
