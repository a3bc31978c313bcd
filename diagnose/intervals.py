"""Exact algebra of half-open integer intervals ``[start, end)``.

Every function takes int64 arrays of equal length, any order, overlaps allowed;
intervals with ``end <= start`` are empty and count for nothing. Lengths are
exact: nothing here is a float, so nothing is rounded.

The lengths use two independent sorts and no pairing. Write ``S`` for the sorted
starts and ``E`` for the sorted ends. There is a gap before ``S[i+1]`` exactly if
``i + 1`` intervals have ended by then, that is if ``E[i] < S[i+1]``, so::

    |union| = E[-1] - S[0] - sum(max(0, S[i+1] - E[i]))

and ``|A and B| = |A| + |B| - |A or B|``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Starts and ends; where a function returns it: sorted, disjoint and not touching."""

    start: Array
    end: Array


def _non_empty(start: Array, end: Array) -> Intervals:
    keep = end > start
    if keep.all():
        return Intervals(start, end)
    return Intervals(start[keep], end[keep])


def _sorted(values: Array) -> Array:
    # Columns of a trace are sorted, or a few sorted runs, which the stable sort merges in one
    # pass; on anything else numpy's default, vectorised sort is several times faster.
    falls = np.count_nonzero(values[1:] < values[:-1])
    if not falls:
        return values
    return np.sort(values, kind="stable" if falls * 32 < values.size else None)


def _gap_length(start: Array, end: Array) -> tuple[Array, Array, int]:
    starts, ends = _sorted(start), _sorted(end)
    gaps = starts[1:] - ends[:-1]
    return starts, ends, int(gaps[gaps > 0].sum())


def union_length(start: Array, end: Array) -> int:
    """Length of the union."""
    start, end = _non_empty(start, end)
    if not start.size:
        return 0
    starts, ends, gaps = _gap_length(start, end)
    return int(ends[-1] - starts[0]) - gaps


def intersection_length(first: Intervals, second: Intervals) -> int:
    """Length of (union of ``first``) and (union of ``second``)."""
    either = union_length(
        np.concatenate([first.start, second.start]), np.concatenate([first.end, second.end])
    )
    return union_length(*first) + union_length(*second) - either


def union(start: Array, end: Array) -> Intervals:
    """The union as sorted, disjoint, not touching intervals.

    A boundary of the union lies where as many intervals have ended as begun.
    """
    start, end = _non_empty(start, end)
    if not start.size:
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    starts, ends = _sorted(start), _sorted(end)
    gap = np.flatnonzero(starts[1:] > ends[:-1])
    return Intervals(
        np.concatenate([starts[:1], starts[gap + 1]]), np.concatenate([ends[gap], ends[-1:]])
    )


def gaps(covered: Intervals, start: int, end: int) -> Intervals:
    """What a union (sorted, disjoint) leaves free of ``[start, end)``."""
    edges_start = np.concatenate([np.asarray([start], np.int64), covered.end])
    edges_end = np.concatenate([covered.start, np.asarray([end], np.int64)])
    edges_start, edges_end = np.clip(edges_start, start, end), np.clip(edges_end, start, end)
    return _non_empty(edges_start, edges_end)


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Intersection of two unions (each sorted and disjoint)."""
    if not first.start.size or not second.start.size:
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    low = np.searchsorted(second.end, first.start, side="right")
    high = np.searchsorted(second.start, first.end, side="left")
    count = np.maximum(high - low, 0)
    left = np.repeat(np.arange(first.start.size), count)
    within = np.arange(left.size) - np.repeat(np.cumsum(count) - count, count)
    right = np.repeat(low, count) + within
    return _non_empty(
        np.maximum(first.start[left], second.start[right]),
        np.minimum(first.end[left], second.end[right]),
    )


def subtract(first: Intervals, second: Intervals) -> Intervals:
    """What ``second`` leaves of ``first`` (two unions, each sorted and disjoint)."""
    if not first.start.size:
        return first
    free = gaps(second, int(first.start[0]), int(first.end[-1]))
    return intersect(first, free)


def covered_length(covered: Intervals, start: Array, end: Array) -> Array:
    """For each ``[start, end)``: how much of it a union (sorted, disjoint) covers. int64."""
    if not covered.start.size:
        return np.zeros(start.shape, np.int64)
    before = np.concatenate([[0], np.cumsum(covered.end - covered.start)])

    def until(points: Array) -> Array:
        index = np.searchsorted(covered.start, points, side="right")
        inside = np.minimum(points, covered.end[np.maximum(index - 1, 0)])
        partial = np.where(index > 0, inside - covered.start[np.maximum(index - 1, 0)], 0)
        done: Array = before[np.maximum(index - 1, 0)] + partial
        return done

    length: Array = np.where(end > start, until(end) - until(start), 0)
    return length
