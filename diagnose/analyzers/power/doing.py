"""What a physical GPU did at each moment, on the wall clock: five classes that sum to the window.

The processes that share a GPU are taken together: ``overlapped`` is time in which
anything computes on it while anything communicates, whichever rank each belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array, Intervals, union
from diagnose.schema import Activity
from diagnose.trace import Gpu, Trace

Floats = npt.NDArray[np.float64]


class Doing(IntEnum):
    """A class of time. Each moment of a window has exactly one."""

    COMPUTE = 0
    """Computes, does not communicate."""
    OVERLAPPED = 1
    """Computes and communicates."""
    COMMUNICATION = 2
    """Communicates, does not compute."""
    COPIES = 3
    """Copies or fills, and nothing else."""
    IDLE = 4


NUM_CLASSES = len(Doing)


class ClassTimes:
    """How much time of each class has passed by any moment of the window.

    ``start_ns`` and ``end_ns`` are unix time. Moments are given in seconds since
    ``start_ns``: floats are exact to a nanosecond for months.
    """

    def __init__(self, edges_ns: Array, doing: npt.NDArray[np.int8]) -> None:
        self.start_ns, self.end_ns = int(edges_ns[0]), int(edges_ns[-1])
        self._edges: Floats = (edges_ns - self.start_ns) / 1e9
        lengths = np.zeros((len(doing), NUM_CLASSES), np.int64)
        lengths[np.arange(len(doing)), doing] = np.diff(edges_ns)
        self.total_ns: Array = lengths.sum(0)
        self._doing = doing
        passed = np.concatenate([np.zeros((1, NUM_CLASSES), np.int64), np.cumsum(lengths, 0)])
        self._passed: Floats = passed / 1e9

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def seconds(self, unix_ns: Any) -> Floats:
        """Unix time as seconds since the window began."""
        moment: Floats = (np.asarray(unix_ns, np.int64) - self.start_ns) / 1e9
        return moment

    def until(self, moment: Floats) -> Floats:
        """Seconds of each class since the window began; the last axis is the class.

        Moments outside of the window count as its edge.
        """
        inside = np.clip(moment, 0.0, self._edges[-1])
        at = np.clip(np.searchsorted(self._edges, inside, "right") - 1, 0, len(self._doing) - 1)
        passed = self._passed[at]
        flat = passed.reshape(-1, NUM_CLASSES)
        into = (inside - self._edges[at]).reshape(-1)
        flat[np.arange(len(flat)), self._doing[at].reshape(-1)] += into
        return flat.reshape(passed.shape)


def class_times(trace: Trace, gpus: Sequence[Gpu]) -> ClassTimes | None:
    """The class times of GPUs that are one physical GPU, while all of them were recorded.

    None where their windows have no moment in common. Their sources must know unix time.
    """
    spans, parts = [], []
    for gpu in gpus:
        ops = trace.gpu_ops.take(trace.on(gpu))
        base = trace.sources[gpu.source].base_ns or 0
        start, end = ops["start_ns"] + base, ops["end_ns"] + base
        spans.append((int(start.min()), int(end.max())))
        parts.append((ops["activity"], start, end))
    begin, finish = max(s for s, _ in spans), min(e for _, e in spans)
    if finish <= begin:
        return None
    activity, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    start, end = np.clip(start, begin, finish), np.clip(end, begin, finish)
    unions = [union(start[activity == a], end[activity == a]) for a in Activity]
    edges = np.unique(np.concatenate([[begin, finish], *(np.concatenate(u) for u in unions)]))
    compute, communicate, copy = (_inside(u, edges[:-1]) for u in unions)
    doing = np.full(len(edges) - 1, Doing.IDLE, np.int8)
    doing[copy] = Doing.COPIES
    doing[communicate] = Doing.COMMUNICATION
    doing[compute] = Doing.COMPUTE
    doing[compute & communicate] = Doing.OVERLAPPED
    return ClassTimes(edges, doing)


def _inside(covered: Intervals, points: Array) -> npt.NDArray[np.bool_]:
    at = np.searchsorted(covered.start, points, side="right")
    return at > np.searchsorted(covered.end, points, side="right")
