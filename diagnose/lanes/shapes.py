"""From a lane's index to shapes, for one width of a pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.lanes.index import Block, spread
from diagnose.lanes.lane import OpTable
from diagnose.schema import NO_ROW

LEVELS = 16
"""In how many steps the drawn height of an aggregate is told apart."""


class Shapes(NamedTuple):
    """Columns of a picture, before they are sorted and names are known."""

    depth: npt.NDArray[np.int32]
    category: npt.NDArray[np.int8]
    start: Array
    end: Array
    busy: Array
    num_ops: Array
    table: npt.NDArray[np.int8]
    row: Array

    def in_order(self, order: Array) -> Shapes:
        """The same, sorted or chosen by an index array."""
        columns: Any = (column[order] for column in self)
        return Shapes(*columns)


def joined(parts: Sequence[Shapes]) -> Shapes:
    """Shapes one after the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty: Any = np.empty(0, np.int64)
        small = empty.astype(np.int8)
        return Shapes(empty.astype(np.int32), small, empty, empty, empty, empty, small, empty)
    return Shapes(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class Seen(NamedTuple):
    """What of a block lies in the window: the sub-rows, and the intervals of each."""

    sub_rows: Array
    low: Array
    high: Array
    begun: npt.NDArray[np.bool_]
    """Whether the first of them began before the window."""

    def only(self, which: Array) -> Seen:
        """Some of the sub-rows."""
        columns: Any = (column[which] for column in self)
        return Seen(*columns)


def seen_in(block: Block, window: Array) -> Seen:
    """``window`` is its start and its end, on the clock of the source."""
    ends = block.points(window, np.arange(block.num_sub_rows))
    place = np.searchsorted(block.start, ends)
    low, high = place[:, 0], place[:, 1]
    before = np.maximum(low - 1, 0)
    begun = (low > 0) & (block.start[before] + block.length(before) > ends[:, 0])
    low = low - begun
    some = np.flatnonzero(high > low)
    return Seen(some, low[some], high[some], begun[some])


def shapes_in(
    block: Block,
    seen: Seen,
    own: Array,
    edges: Array,
    pixel: int,
    to_common: Callable[[Array], Array],
) -> list[Shapes]:
    """The shapes of a block; ``own`` are the edges of the pixels on the clock of the source."""
    if not seen.sub_rows.size:
        return []
    wide = block.at_least(pixel, seen.low, seen.high)
    parts = [_single(block, wide, own, edges, to_common)] if wide.size else []
    num_wide = np.searchsorted(wide, seen.high) - np.searchsorted(wide, seen.low)
    rest = np.flatnonzero(num_wide < seen.high - seen.low)
    if rest.size:
        parts.append(_added_up(block, seen.only(rest), wide, own, edges, pixel))
    return parts


def _single(
    block: Block, wide: Array, own: Array, edges: Array, to_common: Callable[[Array], Array]
) -> Shapes:
    """A shape for each of these intervals, cut to the window."""
    sub_row = np.searchsorted(block.edges, wide, side="right") - 1
    start = block.start[wide] - sub_row * block.span + block.first
    end = start + block.length(wide)
    table = block.table[sub_row]
    return Shapes(
        block.depth[sub_row],
        block.category[sub_row],
        np.where(start <= own[0], edges[0], np.clip(to_common(start), edges[0], edges[-1])),
        np.where(end >= own[-1], edges[-1], np.clip(to_common(end), edges[0], edges[-1])),
        np.minimum(end, own[-1]) - np.maximum(start, own[0]),
        (table != OpTable.NONE).astype(np.int64),
        table,
        block.row[wide].astype(np.int64),
    )


class _Pixels(NamedTuple):
    """What lies in the pixels that are not empty; ``key`` rises: sub-row, then pixel."""

    key: Array
    busy: Array
    num_ops: Array


def _added_up(
    block: Block, seen: Seen, wide: Array, own: Array, edges: Array, pixel: int
) -> Shapes:
    """What lies in the window but for the wide ones, per pixel, equal neighbours as one."""
    num_pixels = edges.size - 1
    # Few intervals are looked at one by one, many by what lies before each pixel.
    if 2 * int((seen.high - seen.low).sum()) < num_pixels * seen.sub_rows.size:
        pixels = _one_by_one(block, seen, own, pixel)
    else:
        pixels = _by_pixel(block, seen, wide, own)
    return _merged(block, seen, pixels, edges)


def _one_by_one(block: Block, seen: Seen, own: Array, pixel: int) -> _Pixels:
    index = spread(seen.low, seen.high)
    place = np.repeat(np.arange(seen.sub_rows.size), seen.high - seen.low)
    length = block.length(index)
    narrow = length < pixel
    index, place, length = index[narrow], place[narrow], length[narrow]
    sub_row = seen.sub_rows[place]
    start = block.start[index] - sub_row * block.span + block.first
    end = np.minimum(start + length, own[-1])
    start = np.maximum(start, own[0])
    first = np.searchsorted(own, start, side="right") - 1
    last = np.maximum(np.searchsorted(own, end, side="left") - 1, first)
    # Shorter than a pixel, it lies in one or two.
    border = own[first + 1]
    before, after = np.minimum(end, border) - start, np.maximum(end - border, 0)
    key = np.stack([first, last], 1) + (place * (own.size - 1))[:, None]
    count = np.stack([block.table[sub_row] != OpTable.NONE, np.zeros(index.size, bool)], 1)
    key = key.ravel()
    distinct = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return _Pixels(
        key[distinct],
        np.add.reduceat(np.stack([before, after], 1).ravel(), distinct),
        np.add.reduceat(count.ravel().astype(np.int64), distinct),
    )


def _by_pixel(block: Block, seen: Seen, wide: Array, own: Array) -> _Pixels:
    points = block.points(own, seen.sub_rows)
    begun, covered = _before(points, block.start, block.covered)
    busy, count = np.diff(covered), np.diff(begun)
    count[:, 0] += seen.begun
    if wide.size:
        length = block.length(wide)
        start, sums = block.start[wide], np.concatenate([[0], np.cumsum(length)])
        begun, covered = _before(points, start, sums)
        busy -= np.diff(covered)
        count -= np.diff(begun)
        count[:, 0] -= seen.begun & np.isin(seen.low, wide)
    count[block.table[seen.sub_rows] == OpTable.NONE] = 0
    key = np.flatnonzero((busy > 0) | (count > 0))
    return _Pixels(key, busy.ravel()[key], count.ravel()[key])


def _before(points: Array, start: Array, covered: Array) -> tuple[Array, Array]:
    """How many intervals begin before each point, and how much they cover before it."""
    begun = np.searchsorted(start, points)
    last = np.maximum(begun - 1, 0)
    beyond = start[last] + (covered[last + 1] - covered[last]) - points
    beyond[(begun == 0) | (beyond < 0)] = 0
    return begun, covered[begun] - beyond


def _merged(block: Block, seen: Seen, pixels: _Pixels, edges: Array) -> Shapes:
    """One shape of neighbouring pixels that are drawn alike."""
    key, busy, count = pixels
    place, pixel = np.divmod(key, edges.size - 1)
    sub_row = seen.sub_rows[place]
    height = -(-LEVELS * busy // np.diff(edges)[pixel])
    follows = (key[1:] == key[:-1] + 1) & (pixel[1:] > 0)
    # The rest of an operation that began in the pixel before is no shape of its own.
    rest = follows & (count[1:] == 0) & (block.table[sub_row[1:]] != OpTable.NONE)
    height[1:][rest] = height[:-1][rest]
    begin = np.flatnonzero(np.append(True, ~follows | (height[1:] != height[:-1])))
    end = np.append(begin[1:], key.size) - 1
    return Shapes(
        block.depth[sub_row[begin]],
        block.category[sub_row[begin]],
        edges[pixel[begin]],
        edges[pixel[end] + 1],
        np.add.reduceat(busy, begin),
        np.add.reduceat(count, begin),
        np.full(begin.size, OpTable.NONE, np.int8),
        np.full(begin.size, NO_ROW, np.int64),
    )
