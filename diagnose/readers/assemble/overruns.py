"""Ends that cannot be true: on one stream work is serial.

Profilers sometimes stamp a completion late, so that a kernel seems to run on
while its successors on the same stream start and end. Such an end is cut at the
next start on the stream. Left as they are: partial overlaps (programmatic
dependent launch lets a kernel start before its predecessor has ended, by about a
microsecond) and nodes of CUDA graphs, which may truly run at once though they
are shown on one stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.readers.raw import Columns
from diagnose.schema import NULL
from diagnose.trace import Note

TOLERANCE_NS = 1_000
"""An overrun of up to this much is left: time stamps are no better."""


class Overrun(NamedTuple):
    """How many ends were cut, the longest time that was cut off, and how many starts coincide."""

    num_cut: int = 0
    longest_ns: int = 0
    num_same_start: int = 0


def cut(gpu: Columns) -> tuple[npt.NDArray[np.int64], Overrun]:
    """The corrected ends of operations in the schema's order (device, start).

    An operation overruns if a later one on its stream both starts and ends before
    it ends, and the next start lies more than ``TOLERANCE_NS`` before its end.
    """
    ends: npt.NDArray[np.int64] = gpu["end_ns"]
    rows = np.flatnonzero((gpu["stream"] != NULL) & ~_graph_nodes(gpu))
    order = np.lexsort(
        (ends[rows], gpu["start_ns"][rows], gpu["stream"][rows], gpu["device"][rows])
    )
    rows = rows[order]
    if len(rows) < 2:
        return ends, Overrun()
    same = (gpu["device"][rows][1:] == gpu["device"][rows][:-1]) & (
        gpu["stream"][rows][1:] == gpu["stream"][rows][:-1]
    )
    start, end = gpu["start_ns"][rows], ends[rows]
    num_same_start = int((same & (start[1:] == start[:-1]) & (end[:-1] > start[:-1])).sum())
    if not (same & (end[:-1] > end[1:])).any():
        return ends, Overrun(num_same_start=num_same_start)
    changed = ends.copy()
    bounds = np.flatnonzero(np.concatenate([[True], ~same, [True]]))
    count = longest = 0
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        on_stream = slice(first, last)
        cut_end = _cut_stream(start[on_stream], end[on_stream])
        off = end[on_stream] - cut_end
        changed[rows[on_stream]] = cut_end
        count += int((off > 0).sum())
        longest = max(longest, int(off.max(initial=0)))
    return changed, Overrun(count, longest, num_same_start)


def notes(overrun: Overrun, path: str) -> list[Note]:
    """What was cut, for people."""
    said = []
    if overrun.num_same_start:
        sentence = (
            f"{path}: GPU operations that start at the same instant as another one on the same "
            f"stream: {overrun.num_same_start}; one of the two is not true, so sums of durations "
            "and counts are too high (time that anything runs is not)"
        )
        said.append(Note("same-stream-start", "warning", sentence, overrun.num_same_start))
    if not overrun.num_cut:
        return said
    sentence = (
        f"{path}: GPU operations that seem to run on while later ones on the same stream start "
        f"and end: {overrun.num_cut}, by up to {overrun.longest_ns / 1000:,.3f} us; their ends "
        "were cut at the next start on the stream, so their durations are upper bounds"
    )
    return [*said, Note("same-stream-overlap", "warning", sentence, overrun.num_cut)]


def _graph_nodes(gpu: Columns) -> npt.NDArray[np.bool_]:
    """Nodes of a CUDA graph: marked so, or sharing one launch with others."""
    correlation = gpu["correlation"]
    ids, inverse, counts = np.unique(correlation, return_inverse=True, return_counts=True)
    shared = (counts > 1) & (ids > 0)
    nodes: npt.NDArray[np.bool_] = (gpu["graph_node"] != NULL) | shared[inverse]
    return nodes


def _cut_stream(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Cut one stream's ends; sorted by start, then end."""
    earliest_later_end = np.full(len(end), np.iinfo(np.int64).max)
    earliest_later_end[:-1] = np.minimum.accumulate(end[::-1])[::-1][1:]
    following = np.searchsorted(start, start, side="right")
    next_start = start[np.minimum(following, len(start) - 1)]
    overruns = (
        (following < len(start)) & (end > earliest_later_end) & (end - next_start > TOLERANCE_NS)
    )
    return np.where(overruns, next_start, end)
