"""On which row of its lane an operation is drawn, so that none hides another.

Row 0 is the outermost. Operations that are nested, as calls on a host thread are, lie
below what they are part of: the row is the number of operations open at the start.
Where operations overlap without being nested, those that touch each other in time are
given the lowest row that is free, in order of their starts.
"""

from __future__ import annotations

import heapq

import numpy as np

from diagnose.intervals import Array


def drawing_order(start: Array, end: Array) -> Array:
    """The order that ``depths`` expects: by start, what lasts longer first."""
    ties = start[1:] == start[:-1]
    if np.all((start[1:] > start[:-1]) | (ties & (end[1:] <= end[:-1]))):
        return np.arange(start.size)
    order: Array = np.lexsort((-end, start))
    return order


def depths(start: Array, end: Array) -> Array:
    """The row of each operation, given in ``drawing_order``. int64.

    On a row nothing overlaps. Operations without length take no place: any number of them
    may lie on one instant of a row, beside what ends or begins there.
    """
    if np.all(start[1:] >= end[:-1]):
        return np.zeros(start.size, np.int64)
    lasts = end > start
    begun: Array = np.cumsum(lasts) - lasts
    # Operations without length are counted as never open.
    ended = np.searchsorted(np.sort(end[lasts]), start, side="right")
    # Of those that begin at the same instant, `begun` counts the ones before in the order.
    depth: Array = (begun - ended).astype(np.int64)
    colliding = _colliding_rows(start, end, depth)
    if not colliding.size:
        return depth
    cluster = _clusters(start, end)
    bad = np.zeros(int(cluster[-1]) + 1, bool)
    bad[cluster[colliding]] = True
    for number in np.flatnonzero(bad).tolist():
        low, high = np.searchsorted(cluster, [number, number + 1])
        depth[low:high] = _lowest_free(start[low:high].tolist(), end[low:high].tolist())
    return depth


def _colliding_rows(start: Array, end: Array, depth: Array) -> Array:
    """Places of operations that begin before the one before them on their row has ended."""
    order = np.argsort(depth, kind="stable")
    same = depth[order][1:] == depth[order][:-1]
    late: Array = order[1:][same & (start[order][1:] < end[order][:-1])]
    return late


def _clusters(start: Array, end: Array) -> Array:
    """Number of the stretch without a gap that each operation lies in."""
    reached = np.maximum.accumulate(end)
    new = np.ones(start.size, bool)
    new[1:] = start[1:] >= reached[:-1]
    # One without length at the end of a stretch opens its own: what follows belongs to it.
    numbers: Array = np.cumsum(new) - 1
    return numbers


def _lowest_free(start: list[int], end: list[int]) -> list[int]:
    # When each row in use becomes free, and the row; the earliest first.
    taken: list[tuple[int, int]] = []
    free: list[int] = []
    num_rows = 0
    found = []
    for begins, ends in zip(start, end, strict=True):
        while taken and taken[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if not free:
            free.append(num_rows)
            num_rows += 1
        row = heapq.heappop(free)
        heapq.heappush(taken, (ends, row))
        found.append(row)
    return found
