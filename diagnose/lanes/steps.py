"""The marks of steps: when the host marked each, and when its work ended on the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.intervals import Array
from diagnose.schema import NULL
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Trace


@dataclass(frozen=True)
class StepOnGpu:
    """The step time of a step on one GPU (``diagnose.timeline.step_times``)."""

    lane: str
    """Key of the GPU's lane."""
    start_ns: int
    end_ns: int
    """The last end of the GPU work launched in the step."""


@dataclass(frozen=True)
class StepMark:
    """One step: its mark on the host, and its time on each GPU that has one."""

    source: int
    row: int
    """Row of ``Trace.steps``."""
    label: str
    start_ns: int
    end_ns: int
    on_gpu: tuple[StepOnGpu, ...]


def step_marks(
    trace: Trace, source: int, to_common: Callable[[int, Array], Array]
) -> Iterator[StepMark]:
    """The steps of one source, by the start of their marks."""
    rows = of_source(trace.steps, source)
    start = to_common(source, trace.steps["start_ns"][rows]).tolist()
    end = to_common(source, trace.steps["end_ns"][rows]).tolist()
    on_gpu: list[list[StepOnGpu]] = [[] for _ in start]
    for gpu in trace.gpus:
        if gpu.source != source:
            continue
        times = step_times(trace, gpu)
        for step in np.flatnonzero(times.end != NULL).tolist():
            ends = np.array([times.begin[step], times.end[step]], np.int64)
            low, high = to_common(source, ends).tolist()
            on_gpu[step].append(StepOnGpu(f"g{source}.{gpu.device}", low, high))
    names = trace.steps.take(rows).texts("name")
    for number, name in enumerate(names):
        label = name or f"step {number}"
        row = rows.start + number
        yield StepMark(source, row, label, start[number], end[number], tuple(on_gpu[number]))
