"""When each step began and ended on the GPU.

The end of a step is the last end of the GPU work launched in it. Its time runs
from the same of the step before::

    step time of n = last end(n) - last end(n - 1)

It is absent where that difference would not be the time of one step:

- step n or n - 1 has no work on this GPU, or their numbers do not follow each
  other (a gap between two profiled windows);
- step n does not end after all steps before it, or step n - 1 did not: work
  launched early is still running, so the difference belongs to several steps.

The first step of a window has no step before it. It has a time only if the host
waited for the GPU at its start: a synchronising call on the thread of the step
marks returned no later than the step's first launch, and none of the work from
before the step ran on after that return. The step then began when the host began
it, or when the earlier work ended, whichever is later. An idle GPU alone does not
prove that (the host may have slept), nor do the profiler's "Event Sync" spans: the
watchdog of a process group makes many of them by asking for events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.grouped_intervals import first_and_last_by
from diagnose.intervals import Array
from diagnose.schema import NULL, Call
from diagnose.trace import Gpu, Table, Trace

Mask = npt.NDArray[np.bool_]

_NEVER = int(np.iinfo(np.int64).min)
_LATE = int(np.iinfo(np.int64).max)


class StepTimes(NamedTuple):
    """Per step of the GPU's process: ``[begin, end)`` of its time; both NULL where absent."""

    begin: Array
    end: Array


def of_source(table: Table, source: int) -> slice:
    """The rows of a table sorted by source that belong to one source."""
    column = table["source"]
    return slice(
        int(np.searchsorted(column, source, side="left")),
        int(np.searchsorted(column, source, side="right")),
    )


def step_times(trace: Trace, gpu: Gpu) -> StepTimes:
    """The step times of one GPU, one entry per step mark of its process."""
    ops, steps = trace.gpu_ops.take(trace.on(gpu)), of_source(trace.steps, gpu.source)
    number, num_steps = trace.steps["number"][steps], steps.stop - steps.start
    if not num_steps:
        return StepTimes(np.empty(0, np.int64), np.empty(0, np.int64))
    inside = ops["step_row"] >= 0
    key = ops["step_row"][inside] - steps.start
    first, last = first_and_last_by(key, ops["start_ns"][inside], ops["end_ns"][inside], num_steps)
    # `reached` is when all work up to and including a step had ended.
    reached = np.maximum.accumulate(last)
    before = np.concatenate([[_NEVER], reached[:-1]])
    ends_last = (last == reached) & (last > before)
    follows = np.ones(num_steps, bool)
    follows[0] = False
    known = number != NULL
    follows[1:] &= ~(known[1:] & known[:-1]) | (number[1:] == number[:-1] + 1)
    timed = follows & ends_last & np.concatenate([[False], ends_last[:-1]])
    begin = np.where(timed, before, NULL)
    opening = np.flatnonzero(~follows & ends_last)
    if opening.size:
        begin[opening] = _begin_after_wait(trace, gpu, ops, opening, first, before)
        timed[opening] = (begin[opening] != NULL) & (begin[opening] < last[opening])
    return StepTimes(np.where(timed, begin, NULL), np.where(timed, last, NULL))


def _begin_after_wait(
    trace: Trace, gpu: Gpu, ops: Table, opening: Array, first: Array, before: Array
) -> Array:
    """For the first steps of windows: when they began, or NULL if the host did not wait."""
    steps = of_source(trace.steps, gpu.source)
    mark = trace.steps["start_ns"][steps][opening]
    waits = _host_waits(trace, gpu)
    launched = ops["launch_row"] >= 0
    launch_start = np.full(len(ops), _LATE)
    launch_start[launched] = trace.launches["start_ns"][ops["launch_row"][launched]]
    inside = ops["step_row"] >= 0
    first_launch = np.full(steps.stop - steps.start, _LATE)
    np.minimum.at(first_launch, ops["step_row"][inside] - steps.start, launch_start[inside])
    index = np.searchsorted(waits, first_launch[opening], side="right")
    waited = np.concatenate([[_NEVER], waits])[index]

    outside, end = ~inside, ops["end_ns"]
    earlier = np.maximum.reduce(
        [
            before[opening],
            _last_end_before(launch_start, end, outside & launched, mark),
            # Launched before the window opened, as far as anyone can tell.
            _last_end_before(ops["start_ns"], end, outside & ~launched, first[opening]),
        ]
    )
    drained = (waited != _NEVER) & (earlier <= waited)
    begin: Array = np.where(drained, np.maximum(earlier, mark), NULL)
    return begin


def _host_waits(trace: Trace, gpu: Gpu) -> Array:
    """Sorted times at which a thread with step marks came back from waiting for the GPU."""
    calls = trace.launches.take(of_source(trace.launches, gpu.source))
    threads = np.unique(trace.steps["thread"][of_source(trace.steps, gpu.source)])
    waits = (calls["call"] == Call.SYNCHRONIZE) & np.isin(calls["thread"], threads)
    return np.sort(calls["end_ns"][waits])


def _last_end_before(point: Array, end: Array, chosen: Mask, limit: Array) -> Array:
    """For each limit: the last end among the chosen ops whose point lies before it."""
    order = np.argsort(point[chosen], kind="stable")
    reached = np.concatenate([[_NEVER], np.maximum.accumulate(end[chosen][order])])
    last: Array = reached[np.searchsorted(point[chosen][order], limit, side="left")]
    return last
