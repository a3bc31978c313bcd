"""Training stops to compile code again.

## Looks for
Spans of the compiler (`entire_frame_compile (dynamo_timed)` and the like) in marked steps after the
first.

## Why it costs time
Compiling takes the host seconds in which it launches nothing: the GPU runs dry, and the other ranks
wait at the next collective. It happens again whenever a guard fails: a new shape, another Python
value, a new object.

## How it decides
In the marked steps after the first, the compiler's spans last `min_compile_ms` or more in all.

## Stays silent when
Compilation ends before the second step of the window, or the profiler saw no such span (before
PyTorch 2.3 none is written).

## What to do
Print why it recompiles, then mark the dimension as dynamic, pad to few shapes, or keep changing
Python values out of the compiled region.

## Example
A last batch that is smaller: one step compiles for 4 s, and the GPU idles as long.

## References
- PyTorch, torch.compile troubleshooting, recompilation
- PyTorch, torch._dynamo.config.recompile_limit: 8 for each code object
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.intervals import Intervals, covered_length, union
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
    who,
)
from diagnose.rules._steps import step_rows
from diagnose.trace import Gpu

_SPAN = "(dynamo_timed)"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When compilation is worth naming."""

    min_compile_ms: float = limit(1.0, "in all steps after the first: steady training has none")


class Compiling(NamedTuple):
    """The compiler in one process, in the marked steps after the first."""

    time_ns: float
    num_steps: int
    num_steps_hit: int
    idle_ns: float
    """GPU idle time beside it, per timed step."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all ranks that compile."""
    hit = {}
    for gpu in facts.gpus:
        found = _compiling(facts, gpu)
        if found is not None and found.time_ns >= limits.min_compile_ms * 1e6:
            hit[gpu] = found
    return (_symptom(facts, hit),) if hit else Clean("nothing is compiled after the first step")


def _compiling(facts: Facts, gpu: Gpu) -> Compiling | None:
    """None without a second mark or without such a span."""
    trace = facts.trace
    marks = trace.steps.take(trace.steps["source"] == gpu.source)
    order = np.argsort(marks["start_ns"], kind="stable")[1:]
    hit = trace.strings.where(lambda text: text.endswith(_SPAN))
    ops = trace.host_ops
    rows = np.flatnonzero((ops["source"] == gpu.source) & hit[ops["name"]])
    if not order.size or not rows.size:
        return None
    spans = union(ops["start_ns"][rows], ops["end_ns"][rows])
    inside = covered_length(spans, marks["start_ns"][order], marks["end_ns"][order])
    idle = _idle(facts, gpu, spans)
    return Compiling(float(inside.sum()), len(order), int((inside > 0).sum()), idle)


def _idle(facts: Facts, gpu: Gpu, spans: Intervals) -> float:
    stalls = facts.find("stalls")
    if stalls is None:
        return 0.0
    steps = facts.steps[gpu]
    mine = stalls.take(facts.on(stalls, gpu) & step_rows(stalls, steps))
    return float(covered_length(spans, mine["start_ns"], mine["end_ns"]).sum()) / steps.number


def _symptom(facts: Facts, hit: dict[Gpu, Compiling]) -> Symptom:
    gpus = tuple(hit)
    worst = max(hit.values(), key=lambda one: one.time_ns)
    steps = counted(worst.num_steps, "step")
    return Symptom(
        sentence=(
            f"torch.compile compiles for {duration(worst.time_ns)} on {who(facts.trace, gpus)}, "
            f"in {worst.num_steps_hit} of {steps} after the first."
        ),
        where=Where(gpus=gpus),
        affects=facts.gpus,
        evidence=(
            Evidence("compile_ns", "compiling, in all", worst.time_ns, "min_compile_ms"),
            Evidence("num_steps_hit", "steps in which it compiles", worst.num_steps_hit),
            Evidence("num_steps", "steps after the first", worst.num_steps),
            Evidence("idle_ns", f"GPU idle beside it {facts.a_step}", worst.idle_ns),
        ),
        cost=Cost(worst.idle_ns, "GPU idle time while the compiler runs"),
        advice=(
            Fix("See which guard fails.", "TORCH_LOGS=recompiles"),
            Fix(
                "Mark the dimension that changes, or pad it to few sizes.",
                "torch._dynamo.mark_dynamic(tensor, 0)  # or torch.compile(dynamic=True)",
            ),
            Fix("Record later, if this is still warm-up."),
        ),
        caveats=("A new shape that comes once, or a window at the start of the job.",),
        no_gain="no replayed change takes the compiler out",
    )


RULE = Rule(
    check=check,
    area="host",
    confidence="high",
    needs=(Need.HOST_OPS, Need.STEPS),
    thresholds=Limits(),
)
