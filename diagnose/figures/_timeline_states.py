"""States of a GPU that share a pixel, one upon the other.

The states exclude each other, so what they cover of a pixel adds up to at most all of it.
They are drawn as bars that stand on the row's floor, the highest sum first: each next one
hides the lower part of the one before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.lanes import Category, Picture

LEVELS = 16
"""In how many steps heights are told apart."""
UPWARDS = (Category.EXPOSED, Category.OVERLAPPED, Category.COMPUTE, Category.COPIES)
"""From the floor of a row to its top: what stands out has the steadiest base."""


class Stacked(NamedTuple):
    """Bars of one category and one lane: columns of equal length."""

    start_ns: Array
    end_ns: Array
    share: npt.NDArray[np.float64]
    """Of the height of the row, this state and those below it."""
    busy_ns: Array
    """Of this state alone."""


def stacked(picture: Picture, rows: Array) -> dict[Category, Stacked]:
    """The shapes ``rows`` of one lane as bars, in the order in which they are to be drawn."""
    start, end = picture.shape_start_ns[rows], picture.shape_end_ns[rows]
    edges = np.unique(np.concatenate([start, end]))
    if edges.size < 2:
        return {}
    width = np.diff(edges)
    below = np.zeros(width.size)
    made: dict[Category, Stacked] = {}
    for category in UPWARDS:
        own = np.flatnonzero(picture.category[rows] == category)
        if not own.size:
            continue
        length = np.maximum(end[own] - start[own], 1)
        density = picture.busy_ns[rows][own] / length
        first = np.searchsorted(edges, start[own])
        last = np.searchsorted(edges, end[own])
        # The sum of densities that begin at or before a segment, less those that ended.
        steps = np.bincount(first, density, edges.size) - np.bincount(last, density, edges.size)
        share = np.clip(np.cumsum(steps)[:-1], 0, 1)
        share[share < 1e-9] = 0
        top = np.minimum(below + share, 1)
        level = np.where(share > 0, np.maximum(np.ceil(LEVELS * top - 1e-6), 1), 0)
        made[category] = _merged(edges, level, share * width)
        below = top
    return dict(reversed(made.items()))


def _merged(edges: Array, level: npt.NDArray[np.float64], busy: npt.NDArray[np.float64]) -> Stacked:
    begin = np.flatnonzero(np.append(True, level[1:] != level[:-1]))
    end = np.append(begin[1:], level.size)
    drawn = level[begin] > 0
    total = np.add.reduceat(busy, begin)
    return Stacked(
        edges[begin][drawn],
        edges[end][drawn],
        level[begin][drawn] / LEVELS,
        np.round(total[drawn]).astype(np.int64),
    )
