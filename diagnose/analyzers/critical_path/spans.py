"""Which stretches of time a critical path is asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.schema import NO_ROW, NULL
from diagnose.timeline.step_times import of_source, step_times
from diagnose.trace import Gpu, Trace


def spans(trace: Trace, gpu: Gpu) -> list[tuple[int, int, int]]:
    """(row of ``steps``, begin, end) of each step of a GPU that has a time, in ns.

    Without one: the whole window of the GPU, with row -1.
    """
    times, first = step_times(trace, gpu), of_source(trace.steps, gpu.source).start
    found = [
        (first + index, int(times.begin[index]), int(times.end[index]))
        for index in np.flatnonzero(times.begin != NULL).tolist()
    ]
    if found:
        return found
    rows = trace.on(gpu)
    start, end = trace.gpu_ops["start_ns"][rows], trace.gpu_ops["end_ns"][rows]
    return [(NO_ROW, int(start.min()), int(end.max()))]


def limits(trace: Trace) -> npt.NDArray[np.int64]:
    """Per GPU operation the end of its step, or of its GPU's work if the step has no time.

    int64 ns on the clock of its source, shape (gpu_ops,).
    """
    limit = np.zeros(len(trace.gpu_ops), np.int64)
    for gpu in trace.gpus:
        rows = trace.on(gpu)
        limit[rows] = trace.gpu_ops["end_ns"][rows].max()
        for step, _begin, end in spans(trace, gpu):
            if step >= 0:
                mine = np.flatnonzero(trace.gpu_ops["step_row"][rows] == step)
                limit[rows.start + mine] = end
    return limit
