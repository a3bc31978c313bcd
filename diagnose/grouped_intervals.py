"""Interval algebra for many groups at once: one pass over all groups, no loop.

``key`` says to which of ``num_keys`` groups (0, 1, ...) each interval belongs.
Every group is moved to a stretch of its own on one common line, stretches one
nanosecond apart, so that a single union over that line is the union of every
group: sorted intervals never mix or touch across groups. All arithmetic stays
in int64 and is exact.

Limit: the stretches laid end to end have to fit into int64 (292 years in
nanoseconds, as 50,000 groups that span two days each). Beyond it the groups are
done in halves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.intervals import Array, Intervals, covered_length, union

_LINE = float(2**62)


class Segments(NamedTuple):
    """Disjoint, not touching intervals of each group, sorted by group and start."""

    key: Array
    start: Array
    end: Array


def sum_by(key: Array, values: Array, num_keys: int) -> Array:
    """Exact int64 sum of ``values`` in each group; ``key`` in any order."""
    total = np.zeros(num_keys, np.int64)
    np.add.at(total, key, values)
    return total


def first_and_last_by(key: Array, start: Array, end: Array, num_keys: int) -> tuple[Array, Array]:
    """First start and last end in each group; the int64 extremes where a group is empty."""
    first = np.full(num_keys, np.iinfo(np.int64).max)
    last = np.full(num_keys, np.iinfo(np.int64).min)
    np.minimum.at(first, key, start)
    np.maximum.at(last, key, end)
    return first, last


def union_by(key: Array, start: Array, end: Array, num_keys: int) -> Segments:
    """The union of the intervals of each group. Empty intervals (``end <= start``) vanish."""
    keep = end > start
    if not keep.all():
        key, start, end = key[keep], start[keep], end[keep]
    if num_keys <= 1:
        whole = union(start, end)
        return Segments(np.zeros(whole.start.size, np.int64), *whole)
    first, last = first_and_last_by(key, start, end, num_keys)
    span = np.where(last > first, last - first, 0) + 1
    if float(span.astype(np.float64).sum()) > _LINE:
        return _in_halves(key, start, end, num_keys)
    begin = np.cumsum(span) - span
    shift = np.where(last > first, begin - first, 0)
    moved = shift[key]
    line = union(start + moved, end + moved)
    group = np.searchsorted(begin, line.start, side="right") - 1
    back = shift[group]
    return Segments(group, line.start - back, line.end - back)


def _in_halves(key: Array, start: Array, end: Array, num_keys: int) -> Segments:
    middle = num_keys // 2
    low = key < middle
    left = union_by(key[low], start[low], end[low], middle)
    right = union_by(key[~low] - middle, start[~low], end[~low], num_keys - middle)
    return Segments(
        np.concatenate([left.key, right.key + middle]),
        np.concatenate([left.start, right.start]),
        np.concatenate([left.end, right.end]),
    )


def length_by(segments: Segments, num_keys: int) -> Array:
    """Length of each group's union. int64, shape ``(num_keys,)``."""
    return _sum_sorted(segments.key, segments.end - segments.start, num_keys)


def covered_length_by(segments: Segments, covered: Intervals, num_keys: int) -> Array:
    """How much of each group's union ``covered`` (sorted, disjoint) covers."""
    shared = covered_length(covered, segments.start, segments.end)
    return _sum_sorted(segments.key, shared, num_keys)


def union_length_by(key: Array, start: Array, end: Array, num_keys: int) -> Array:
    """Length of the union in each group. int64, shape ``(num_keys,)``."""
    return length_by(union_by(key, start, end, num_keys), num_keys)


def intersection_length_by(
    key: Array, start: Array, end: Array, num_keys: int, other: Intervals
) -> Array:
    """Length of (union of the group) and (``other``: sorted, disjoint), for each group."""
    return covered_length_by(union_by(key, start, end, num_keys), other, num_keys)


def _sum_sorted(key: Array, values: Array, num_keys: int) -> Array:
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    edge = np.searchsorted(key, np.arange(num_keys + 1))
    total: Array = running[edge[1:]] - running[edge[:-1]]
    return total
