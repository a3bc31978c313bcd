"""Every compute kernel of a trace: which kernel it is, and what ran beside it.

The same kernel means: on the same GPU, of the same name and launch shape (grid
and block), for an operator with the same input shapes. A kernel whose operator
was not recorded is taken for the only input shapes seen with its name and
launch shape; where there are several it cannot be told which kernel it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array, Intervals, covered_length, subtract, union
from diagnose.schema import NO_ROW, Activity
from diagnose.trace import Trace

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SEVERAL = -2
"""The class of time beside collectives of more than one class at once."""


class Occurrences(NamedTuple):
    """One entry per compute kernel, in the order of ``gpu_ops``.

    ``beside[i, k]`` is how long (ns) communication of class ``classes[k]``, and of
    no other class, ran beside entry ``i``; ``crowded`` how long another compute
    kernel of the GPU did.
    """

    row: Array
    gpu: Array
    group: Array
    start: Array
    end: Array
    beside: Array
    crowded: Array
    classes: Array
    """Codes as ``class_of`` gave them, ``NO_ROW`` where unknown, ``SEVERAL`` last."""
    unclear: Mask
    """Which kernels have unknown input shapes where others of their name have several."""
    group_row: Array
    """For each group one of its rows of ``gpu_ops``: its name and launch shape."""
    group_shapes: Array
    """For each group the code of its operator's input shapes, or ``NO_ROW``."""

    @property
    def duration(self) -> Array:
        return self.end - self.start

    @property
    def num_groups(self) -> int:
        return len(self.group_row)


class Beside:
    """When communication of each class, and of that class alone, runs on each GPU."""

    def __init__(self, trace: Trace, class_of: Array) -> None:
        """``class_of`` gives each row of ``collectives`` a class."""
        rows = trace.collectives["gpu_op_row"]
        start, end = trace.gpu_ops["start_ns"][rows], trace.gpu_ops["end_ns"][rows]
        known = sorted(set(class_of.tolist()) - {NO_ROW})
        self.classes = np.array([*known, NO_ROW, SEVERAL], np.int64)
        self._times: list[list[Intervals]] = []
        for gpu in trace.gpus:
            on = trace.on(gpu)
            low, high = np.searchsorted(rows, [on.start, on.stop])
            own, begin, stop = class_of[low:high], start[low:high], end[low:high]
            times = [union(begin[own == one], stop[own == one]) for one in self.classes[:-1]]
            several = at_least_two(times)
            alone = [subtract(one, several) if several.start.size else one for one in times]
            self._times.append([*alone, several])

    def of(self, gpu: int) -> list[Intervals]:
        """For each class its times on the GPU (place in ``Trace.gpus``); they are disjoint."""
        return self._times[gpu]

    def lengths(self, gpu: Array, start: Array, end: Array) -> Array:
        """For each ``[start, end)`` on ``gpu`` its time beside each class. int64 ``(n, classes)``.

        ``gpu`` may come in any order.
        """
        found = np.zeros((len(start), len(self.classes)), np.int64)
        for number, times in enumerate(self._times):
            own = np.flatnonzero(gpu == number)
            if own.size:
                for place, one in enumerate(times):
                    found[own, place] = covered_length(one, start[own], end[own])
        return found


def at_least_two(sets: list[Intervals]) -> Intervals:
    """When two or more of these sets (each sorted and disjoint) hold at once."""
    begin = np.concatenate([one.start for one in sets])
    stop = np.concatenate([one.end for one in sets])
    return covered_twice(begin, stop)


def covered_twice(start: Array, end: Array) -> Intervals:
    """When two or more of these intervals run at once: sorted, disjoint."""
    if start.size < 2:
        return union(start[:0], end[:0])
    times = np.concatenate([start, end])
    change = np.repeat([1, -1], [start.size, end.size])
    # Ends before starts: intervals that touch do not run at once.
    order = np.lexsort((change, times))
    running, times = np.cumsum(change[order]), times[order]
    twice = running[:-1] >= 2
    return union(times[:-1][twice], times[1:][twice])


def by_collective(trace: Trace) -> Array:
    """The class of each row of ``collectives``: its kind."""
    return trace.collectives["collective"].astype(np.int64)


def occurrences(
    trace: Trace, class_of: Callable[[Trace], Array] = by_collective
) -> tuple[Occurrences, Beside]:
    """The compute kernels of all GPUs and the communication beside them."""
    beside = Beside(trace, class_of(trace))
    rows, gpus, crowded = [], [], []
    for number, gpu in enumerate(trace.gpus):
        on = trace.on(gpu)
        own = on.start + np.flatnonzero(trace.gpu_ops["activity"][on] == Activity.COMPUTE)
        start, end = trace.gpu_ops["start_ns"][own], trace.gpu_ops["end_ns"][own]
        rows.append(own)
        gpus.append(np.full(own.size, number))
        crowded.append(covered_length(covered_twice(start, end), start, end))
    nothing = np.empty(0, np.int64)
    row, gpu_of = np.concatenate([nothing, *rows]), np.concatenate([nothing, *gpus])
    start, end = trace.gpu_ops["start_ns"][row], trace.gpu_ops["end_ns"][row]
    group, first, shapes, unclear = _groups(trace, row, gpu_of)
    found = Occurrences(
        row=row,
        gpu=gpu_of,
        group=group,
        start=start,
        end=end,
        beside=beside.lengths(gpu_of, start, end),
        crowded=np.concatenate([nothing, *crowded]),
        classes=beside.classes,
        unclear=unclear,
        group_row=row[first],
        group_shapes=shapes[first],
    )
    return found, beside


def _groups(trace: Trace, row: Array, gpu: Array) -> tuple[Array, Array, Array, Mask]:
    """Group of each kernel, the first of each group, each kernel's shapes, which are unclear."""
    name = trace.gpu_ops["name"][row].astype(np.int64)
    launch = trace.gpu_ops["launch_shape"][row].astype(np.int64)
    kernel = packed(gpu, name, launch)
    shapes = _completed(kernel, trace.gpu_ops["shapes"][row].astype(np.int64))
    _, first, group = np.unique(packed(kernel, shapes), return_index=True, return_inverse=True)
    known = shapes >= 0
    told = np.bincount(kernel[known], minlength=int(kernel.max(initial=-1)) + 1) > 0
    return group.reshape(-1).astype(np.int64), first, shapes, ~known & told[kernel]


def packed(*columns: Array) -> Array:
    """One number per row, equal where all columns are equal; small, and ordered as the columns."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, code = np.unique(column, return_inverse=True)
        code = code.reshape(-1)
        _, key = np.unique(key * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
        key = key.reshape(-1).astype(np.int64)
    return key


def _completed(kernel: Array, shapes: Array) -> Array:
    """Unknown shapes become the only known ones of the same kernel, where there is one."""
    unknown = shapes < 0
    if not unknown.any() or unknown.all():
        return shapes
    num_shapes = int(shapes.max()) + 1
    pairs = np.unique(kernel[~unknown] * num_shapes + shapes[~unknown])
    only, first, count = np.unique(pairs // num_shapes, return_index=True, return_counts=True)
    filled = np.full(int(kernel.max()) + 1, NO_ROW, np.int64)
    filled[only[count == 1]] = pairs[first[count == 1]] % num_shapes
    return np.where(unknown, filled[kernel], shapes)
