"""What was recorded is not steady training.

## Looks for
Signs that the window shows start-up or the profiler rather than training: kernels loaded for the
first time, buffers of the profiler allocated or flushed, a first step that is much longer, or too
few steps.

## Why it costs time
It costs the job nothing. It makes every other figure of the report doubtful: idle time, host time
and step times contain work that steady training does not do.

## How it decides
One of: the profiler's spans for loading (`Lazy Function Loading`, `Runtime Triggered Module
Loading`) and for its own buffers (`Activity Buffer Request`, `Buffer Flush`) cover
`min_overhead_pct` of the marked time; fewer than `min_num_steps` steps are marked; or the first
timed step takes `min_first_step_ratio` times the median of the others. `Command Buffer Full` does
not count: it says that the host is ahead of the GPU, which is good.

## Stays silent when
The window begins after warm-up and holds enough steps, or no step is marked and nothing was loaded.

## What to do
Let some steps pass before the window, record more of them, and leave out stacks.

## Example
A window that opens on the first step: loading kernels takes 18 % of it, and the first step is six
times as long as the next.

## References
- Kineto, activity types of overhead
- PyTorch profiler, schedule(wait, warmup, active)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.intervals import covered_length, union
from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Outcome,
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
from diagnose.trace import Gpu

_UNSTEADY = (
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
    "Activity Buffer Request",
    "Buffer Flush",
)
_HINT = "torch.profiler.schedule(wait=5, warmup=2, active=5)"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a window is not steady."""

    min_overhead_pct: float = limit(2.0, "of the marked time in loading and buffers; judgement")
    min_num_steps: int = limit(3, "marked steps: the first of them has no step time")
    min_first_step_ratio: float = limit(2.0, "first timed step over the median; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for the window; the worst rank speaks."""
    found = {}
    for gpu in facts.gpus:
        reasons = [*_overhead(facts, gpu, limits), *_few(facts, gpu, limits)]
        reasons += _first(facts, gpu, limits)
        if reasons:
            found[gpu] = reasons
    if not found:
        return Clean("the window shows steady steps")
    gpus = tuple(found)
    worst = max(gpus, key=lambda gpu: len(found[gpu]))
    said = "; ".join(text for text, _ in found[worst])
    return (
        Symptom(
            sentence=f"The window of {who(facts.trace, gpus)} shows more than training: {said}.",
            where=Where(gpus=gpus),
            evidence=tuple(one for _, evidence in found[worst] for one in evidence),
            advice=(
                Fix("Record after warm-up, and more steps.", _HINT),
                Fix("Leave out stacks: they slow the host most.", "with_stack=False"),
            ),
            caveats=("A profile of the start-up, made on purpose.",),
            no_gain="it says how far the figures can be trusted, not what is wrong",
        ),
    )


_Reason = tuple[str, tuple[Evidence, ...]]


def _overhead(facts: Facts, gpu: Gpu, limits: Limits) -> Iterator[_Reason]:
    """Loading and buffers, of the marked time; without marks of the window."""
    trace = facts.trace
    hit = trace.strings.where(lambda text: text in _UNSTEADY)
    ops = trace.host_ops
    if not len(ops) or not hit.any():
        return
    rows = np.flatnonzero((ops["source"] == gpu.source) & hit[ops["name"]])
    marks = trace.steps.take(trace.steps["source"] == gpu.source)
    if len(marks):
        begin, end = union(marks["start_ns"], marks["end_ns"])
    else:
        own = trace.gpu_ops.take(trace.on(gpu))
        begin, end = np.array([own["start_ns"].min()]), np.array([own["end_ns"].max()])
    spans = union(ops["start_ns"][rows], ops["end_ns"][rows])
    spent = int(np.sum(covered_length(spans, begin, end)))
    marked = int((end - begin).sum())
    share = 100 * spent / marked if marked else 0.0
    if share < limits.min_overhead_pct:
        return
    names = Counter(ops.strings[int(code)] for code in ops["name"][rows])
    most = ", ".join(f"{number}x {name}" for name, number in names.most_common(2))
    yield (
        f"loading and the profiler's buffers take {duration(spent)} of it "
        f"({percent(share)}; {most})",
        (
            Evidence("overhead_ns", "loading and buffers, in all", float(spent)),
            Evidence("overhead_pct", "of the marked time", share, "min_overhead_pct"),
        ),
    )


def _few(facts: Facts, gpu: Gpu, limits: Limits) -> Iterator[_Reason]:
    number = int((facts.trace.steps["source"] == gpu.source).sum())
    if 0 < number < limits.min_num_steps:
        yield (
            f"it holds {counted(number, 'step')} only",
            (Evidence("num_steps", "marked steps", number, "min_num_steps"),),
        )


def _first(facts: Facts, gpu: Gpu, limits: Limits) -> Iterator[_Reason]:
    """The first timed step, where two others say what is usual."""
    steps = facts.table("breakdown")
    own = steps.take(facts.on(steps, gpu) & steps.known("step_row"))
    length = (own["end_ns"] - own["start_ns"])[np.argsort(own["start_ns"], kind="stable")]
    if len(length) < limits.min_num_steps:
        return
    first, usual = float(length[0]), float(np.median(length[1:]))
    if usual > 0 and first >= limits.min_first_step_ratio * usual:
        yield (
            f"its first step takes {duration(first)}, the others {duration(usual)}",
            (
                Evidence("first_step_ns", "first timed step", first),
                Evidence("other_steps_ns", "median of the others", usual),
                Evidence(
                    "first_step_ratio", "first over others", first / usual, "min_first_step_ratio"
                ),
            ),
        )


RULE = Rule(
    check=check,
    area="validity",
    confidence="high",
    thresholds=Limits(),
    at_most="info",
)
