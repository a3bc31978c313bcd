"""The optimizer updates parameters with many small kernels.

## Looks for
An optimizer step that launches many kernels of a few microseconds, one operation after the other,
rather than one fused pass over all parameters.

## Why it costs time
Each kernel needs a launch, and each reads and writes arrays as large as the parameters again. With
a kernel for each operation and each parameter the host cannot keep up, and the GPU idles between.

## How it decides
Within PyTorch's marks of the optimizer (`Optimizer.step#AdamW.step`), at least `min_num_kernels`
kernels are launched in a step, none of them is named fused, and from the first to the last of them
the GPU spends `min_phase_pct` of the step.

## Stays silent when
The optimizer is fused, its few kernels take little of the step (`foreach` on a small model), or it
is replayed from a CUDA graph.

## What to do
Ask for the fused implementation, or at least for `foreach`; for an optimizer that has neither,
compile its step.

## Example
AdamW with `foreach=False` on 192 parameters: 1,152 kernels of 2 us and 24 ms of host time a step.
Fused, the step gets 47 % shorter.

## References
- PyTorch, torch.optim.AdamW, fused and foreach
- PyTorch, Compiled optimizers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.intervals import Intervals, union
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
    percent,
    who,
)
from diagnose.schema import Activity
from diagnose.trace import Gpu, Table

_MARK = "Optimizer.step#"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When an optimizer is worth fusing."""

    min_num_kernels: int = limit(30, "launched in a step; foreach AdamW needs about 15 a dtype")
    min_phase_pct: float = limit(3.0, "of the step, first to last kernel; worth one argument")


class Update(NamedTuple):
    """The optimizer on one GPU, per step."""

    name: str
    number: float
    phase_ns: float
    busy_ns: float
    host_ns: float


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs with a slow optimizer."""
    seen = {gpu: update for gpu in facts.gpus if (update := update_of(facts, gpu))}
    if not seen:
        return NotJudged(
            "no optimizer step with kernels of its own was recorded",
            "record with CPU activities: PyTorch marks each Optimizer.step",
        )
    hit = {
        gpu: update
        for gpu, update in seen.items()
        if update.number >= limits.min_num_kernels
        and facts.share_pct(update.phase_ns) >= limits.min_phase_pct
    }
    return (_symptom(facts, hit),) if hit else Clean("the optimizer is fused or takes little time")


def update_of(facts: Facts, gpu: Gpu) -> Update | None:
    """None where no compute kernel was launched within an optimizer step."""
    marks, names = _marks(facts, gpu)
    ops = facts.operations_per_step(gpu)
    ops = ops.take(ops.known("launch_row") & (ops["activity"] == Activity.COMPUTE))
    launched = facts.trace.launches["start_ns"][ops["launch_row"]]
    at = np.searchsorted(marks.start, launched, side="right") - 1
    inside = (at >= 0) & (launched < np.append(marks.end, 0)[at])
    if not inside.any():
        return None
    ops, at = ops.take(inside), at[inside]
    steps = facts.steps[gpu].number
    used = np.unique(at)
    host = float((marks.end - marks.start)[used].sum()) / steps
    busy = float((ops["end_ns"] - ops["start_ns"]).sum()) / steps
    # A fused kernel among them: what else runs there is its preparation.
    number = 0.0 if _any_fused(ops) else len(ops) / steps
    return Update(names, number, _phase(ops, at) / steps, busy, host)


def _marks(facts: Facts, gpu: Gpu) -> tuple[Intervals, str]:
    """The spans of optimizer steps on the host, nested ones as one, and the optimizer's name."""
    hosts, strings = facts.trace.host_ops, facts.trace.strings
    hit = strings.where(lambda text: text.startswith(_MARK))
    rows = np.flatnonzero((hosts["source"] == gpu.source) & hit[hosts["name"]])
    codes = np.unique(hosts["name"][rows]).tolist()
    names = sorted(strings[int(code)][len(_MARK) :].removesuffix(".step") for code in codes)
    return union(hosts["start_ns"][rows], hosts["end_ns"][rows]), ", ".join(names)


def _any_fused(ops: Table) -> bool:
    fused = ops.strings.where(lambda text: "fused" in text.lower())
    return bool(fused[ops["name"]].any())


def _phase(ops: Table, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """From the first kernel of each optimizer step to its last, summed."""
    return float(
        sum(ops["end_ns"][at == one].max() - ops["start_ns"][at == one].min() for one in set(at))
    )


def _symptom(facts: Facts, hit: dict[Gpu, Update]) -> Symptom:
    gpus = tuple(hit)
    update = max(hit.values(), key=lambda one: one.phase_ns)
    share = facts.share_pct(update.phase_ns)
    return Symptom(
        sentence=(
            f"{update.name} on {who(facts.trace, gpus)} launches {update.number:,.0f} kernels "
            f"{facts.a_step} and takes {duration(update.phase_ns)} of the GPU "
            f"({percent(share)}), of which it computes {duration(update.busy_ns)}."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("optimizer", "optimizer", update.name),
            Evidence(
                "num_kernels",
                f"kernels launched {facts.a_step}",
                update.number,
                "min_num_kernels",
            ),
            Evidence("phase_ns", f"first to last kernel {facts.a_step}", update.phase_ns),
            Evidence("phase_pct", "share of the step", share, "min_phase_pct"),
            Evidence("busy_ns", f"kernel time of it {facts.a_step}", update.busy_ns),
            Evidence("host_ns", f"host time in it {facts.a_step}", update.host_ns),
        ),
        cost=Cost(update.phase_ns, "the optimizer's time on the GPU"),
        advice=(
            Fix(
                "Ask for the fused implementation.",
                f"torch.optim.{update.name.split(',')[0]}(parameters, ..., fused=True)",
            ),
            Fix("Where it has none, use lists of tensors.", "foreach=True"),
            Fix(
                "Where it has neither, compile its step.",
                "step = torch.compile(optimizer.step)",
            ),
        ),
        caveats=(
            "Not every optimizer has a fused form, and fused ones may round differently.",
            "foreach needs temporary memory as large as the parameters.",
        ),
        subject=update.name,
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.LAUNCHES, Need.HOST_OPS),
    thresholds=Limits(),
    changes=("fused-optimizer",),
)
