"""The arrays a lane is drawn from: made once, asked at any level of detail.

A *sub-row* is what one colour shows on one row of a lane: disjoint intervals, by start. All
sub-rows of a lane are laid end to end on one line of integers, so that a question to all
of them is one binary search:

- ``start`` (on the line) and ``covered``, the length of all intervals before each one, give
  how much lies before any point: ``covered[i] - max(0, end[i - 1] - point)``, where ``i``
  intervals begin before it. Exact in int64; the difference of two points is the coverage
  of a pixel.
- ``longest``: the longest interval of every 16, of every 256 and so on. Those of at least
  a pixel are found by going down from the top, without looking at the others.

Times are those of the source, never converted, so that lengths stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array, Intervals
from diagnose.lanes.lane import Category, OpTable
from diagnose.schema import NO_ROW

_FANOUT = 16
_LINE = 2**62

Mask = npt.NDArray[np.bool_]


class SubRow(NamedTuple):
    """Disjoint intervals of one colour on one row, by start; ``row`` says which operations."""

    depth: int
    category: Category
    table: OpTable
    start: Array
    end: Array
    row: Array
    """Rows of the table; of states: all ``NO_ROW``."""


@dataclass(frozen=True, eq=False)
class Block:
    """Sub-rows on one line. ``origin[k]`` is where sub-row k begins on it.

    A time t of the source is the point ``origin[k] + t - first`` of the line.
    """

    depth: npt.NDArray[np.int32]
    category: npt.NDArray[np.int8]
    table: npt.NDArray[np.int8]
    first: int
    span: int
    start: Array
    covered: Array
    row: npt.NDArray[np.integer]
    edges: Array
    """Where each sub-row begins among the intervals; one more than there are sub-rows."""

    @property
    def num_sub_rows(self) -> int:
        return len(self.depth)

    @property
    def origin(self) -> Array:
        return np.arange(self.num_sub_rows, dtype=np.int64) * self.span

    @property
    def num_bytes(self) -> int:
        """What it holds, in bytes."""
        arrays = (self.start, self.covered, self.row, *self.longest)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def longest(self) -> tuple[Array, ...]:
        """Longest interval of each group of 16, of each group of those groups, and so on."""
        level = np.diff(self.covered)
        found = []
        while level.size > _FANOUT:
            level = np.maximum.reduceat(level, np.arange(0, level.size, _FANOUT))
            found.append(level)
        return tuple(found)

    def length(self, index: Array) -> Array:
        """How long intervals last, in nanoseconds."""
        lasts: Array = self.covered[index + 1] - self.covered[index]
        return lasts

    def points(self, times: Array, sub_rows: Array) -> Array:
        """Times on the line: shape ``(sub-rows, times)``."""
        inside = np.clip(times, self.first, self.first + self.span - 1) - self.first
        on_line: Array = (sub_rows * self.span)[:, None] + inside
        return on_line

    def at_least(self, length: int, low: Array, high: Array) -> Array:
        """Which intervals among ``[low, high)`` (sorted, disjoint ranges) last that long."""
        levels = self.longest
        step = _FANOUT ** len(levels)
        found = spread(low // step, -(-high // step))
        for level in reversed(levels):
            found = found[level[found] >= length]
            step //= _FANOUT
            found = (found[:, None] * _FANOUT + np.arange(_FANOUT)).ravel()
            found = _within(found, low, high, step)
        kept: Array = found[self.length(found) >= length]
        return kept


def spread(low: Array, high: Array) -> Array:
    """The numbers of all ranges, each once."""
    low = np.maximum(low, np.concatenate([[0], high[:-1]])) if low.size else low
    count = np.maximum(high - low, 0)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    found: Array = np.repeat(low, count) + within
    return found


def _within(found: Array, low: Array, high: Array, step: int) -> Array:
    """Those of ``found`` whose group of ``step`` intervals touches one of the ranges."""
    begins = found * step
    place = np.searchsorted(high, begins, side="right")
    inside = place < high.size
    inside[inside] = low[place[inside]] < begins[inside] + step
    return found[inside]


def block_of(sub_rows: Sequence[SubRow], first: int, span: int) -> Block:
    """Lay sub-rows end to end; their times must lie within ``[first, first + span)``."""
    sizes = [part.start.size for part in sub_rows]
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    start, covered = np.empty(edges[-1], np.int64), np.empty(edges[-1] + 1, np.int64)
    largest = max((int(part.row.max(initial=NO_ROW)) for part in sub_rows), default=NO_ROW)
    row = np.empty(edges[-1], np.int32 if largest < 2**31 else np.int64)
    covered[0] = 0
    for number, part in enumerate(sub_rows):
        at = slice(int(edges[number]), int(edges[number + 1]))
        np.add(part.start, number * span - first, out=start[at])
        np.subtract(part.end, part.start, out=covered[at.start + 1 : at.stop + 1])
        row[at] = part.row
    np.cumsum(covered, out=covered)
    return Block(
        np.array([part.depth for part in sub_rows], np.int32),
        np.array([part.category for part in sub_rows], np.int8),
        np.array([part.table for part in sub_rows], np.int8),
        first,
        span,
        start,
        covered,
        row,
        edges,
    )


@dataclass(frozen=True, eq=False)
class LaneIndex:
    """A lane's blocks: one, unless its times are too far apart for one line."""

    blocks: tuple[Block, ...]
    num_rows: int
    """Rows it needs when drawn; at least 1."""

    @property
    def num_bytes(self) -> int:
        """What it holds, in bytes."""
        return sum(block.num_bytes for block in self.blocks)

    def row_of(self, table: OpTable, row: int) -> int | None:
        """On which row of the lane an operation lies; None if it is not on this lane."""
        for block in self.blocks:
            for place in np.flatnonzero(block.row == row).tolist():
                number = int(np.searchsorted(block.edges, place, side="right")) - 1
                if block.table[number] == table:
                    return int(block.depth[number])
        return None


def index_of(sub_rows: Sequence[SubRow]) -> LaneIndex:
    """The index of a lane."""
    filled = [part for part in sub_rows if part.start.size]
    if not filled:
        return LaneIndex((), 1)
    first = min(int(part.start[0]) for part in filled)
    # Two more than the distance: an interval without length at the end lies before it.
    span = max(int(part.end[-1]) for part in filled) - first + 2
    most = max(_LINE // span, 1)
    blocks = [block_of(filled[at : at + most], first, span) for at in range(0, len(filled), most)]
    return LaneIndex(tuple(blocks), 1 + max(part.depth for part in filled))


def state_row(category: Category, depth: int, covered: Intervals) -> SubRow:
    """A sub-row of a state: intervals that are no operations."""
    row = np.full(covered.start.size, NO_ROW, np.int64)
    return SubRow(depth, category, OpTable.NONE, covered.start, covered.end, row)
