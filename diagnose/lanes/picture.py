"""A window of lanes as a bounded number of shapes, with nothing lost.

An operation of at least a pixel is a shape of its own. What is narrower is added up per
pixel, per row and colour; neighbouring pixels that would be drawn alike are one shape. So
the picture grows with the pixels and not with the operations, and sums over shapes are
exact: time covered in nanoseconds, and operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.errors import UsageError
from diagnose.intervals import Array
from diagnose.lanes.index import LaneIndex
from diagnose.lanes.shapes import Shapes, joined, seen_in, shapes_in

_TRIED = 6
"""How many pixels are looked at for each shape allowed, at first: neighbours become one."""
_ENOUGH = 0.7
"""The share of the shapes allowed from which on no finer pixel is tried."""


@dataclass(frozen=True, eq=False)
class Picture:
    """What to draw of a window: columns of equal length, one entry a shape.

    Times are nanoseconds on the timeline's axis. Shapes are sorted by lane, depth, category
    and start. Shapes of one lane, depth and category do not overlap, but for an aggregate
    whose pixels an operation of its own lies partly in.

    ``busy_ns`` is the time covered within the shape, without rounding: over the shapes of a
    lane, depth and category it sums to the covered time of the window. A shape is to be
    drawn ``busy_ns / (shape_end_ns - shape_start_ns)`` high (or pale). ``num_ops`` sums to
    the operations that touch the window: an aggregate counts those that start in it, or
    that had begun when the window begins; 0 is a state. ``row`` is ``NO_ROW`` of aggregates
    and states.
    """

    start_ns: int
    end_ns: int
    pixel_ns: int
    """The width below which operations were added up. Pixels begin at its multiples."""
    lanes: tuple[str, ...]
    lane: npt.NDArray[np.int32]
    """Place in ``lanes``."""
    depth: npt.NDArray[np.int32]
    category: npt.NDArray[np.int8]
    """A ``Category``."""
    shape_start_ns: Array
    shape_end_ns: Array
    busy_ns: Array
    num_ops: Array
    table: npt.NDArray[np.int8]
    """An ``OpTable``; ``NONE`` of aggregates and states."""
    row: Array
    name: npt.NDArray[np.int32]
    """Code into ``Trace.strings``; ``NO_ROW`` of aggregates and states."""

    def __len__(self) -> int:
        return len(self.lane)


class Asked(NamedTuple):
    """One lane of a picture: its index, and the clock of its source."""

    content: LaneIndex
    to_source: Callable[[Array], Array]
    to_common: Callable[[Array], Array]


def shapes_of(
    asked: Sequence[Asked], start_ns: int, end_ns: int, pixels: int, most_shapes: int
) -> tuple[int, list[Shapes]]:
    """The width of a pixel and the shapes of each lane, at most ``most_shapes`` together.

    Where they do not fit, pixels are made wider in steps of half an octave, as little as is
    needed. Raises UsageError where even one pixel for the whole window gives more.
    """
    window = _Window(asked, start_ns, end_ns)
    narrowest = max(1, -(-(end_ns - start_ns) // pixels))
    step = window.first_step(narrowest, most_shapes)
    too_fine, fits = -1, None
    totals: dict[int, int] = {}
    while fits is None or fits[0] > too_fine + 1:
        pixel = _wider(narrowest, step)
        found = window.shapes(pixel)
        totals[step] = sum(len(shapes.depth) for shapes in found)
        if totals[step] <= most_shapes:
            fits = step, pixel, found
            if totals[step] >= _ENOUGH * most_shapes:
                break
        elif pixel < end_ns - start_ns:
            too_fine = step
        else:
            raise UsageError(
                f"The lanes asked for have rows and colours for {totals[step]} shapes, and"
                f" {most_shapes} were allowed.",
                hint="Ask for fewer lanes at once, or for more shapes.",
            )
        step = max(_next_step(totals, step, most_shapes), too_fine + 1)
        step = step if fits is None else min(step, fits[0] - 1)
    return fits[1:]


def _next_step(totals: dict[int, int], step: int, most_shapes: int) -> int:
    """Where the shapes should just fit, by how fast their number fell between the last two."""
    ratio = math.log(max(totals[step], 1) / most_shapes)
    slope = math.log(2) / 2
    if len(totals) > 1:
        other = list(totals)[-2]
        fell = math.log(max(totals[other], 1) / max(totals[step], 1)) / (step - other)
        slope = min(max(fell, slope / 3), 2 * slope)
    moved = ratio / slope
    return step + (max(1, math.ceil(moved)) if ratio > 0 else min(-1, math.ceil(moved)))


def _wider(pixel: int, step: int) -> int:
    """The pixel times 1, 1.5, 2, 3, 4, 6 and so on."""
    octave: int = 1 << (step // 2)
    return pixel * octave if step % 2 == 0 else -(-3 * pixel * octave // 2)


class _Window:
    """What of each block lies in the window, found once for all widths of a pixel."""

    def __init__(self, asked: Sequence[Asked], start_ns: int, end_ns: int) -> None:
        self.asked, self.start_ns, self.end_ns = asked, start_ns, end_ns
        ends = np.array([start_ns, end_ns], np.int64)
        self.seen = [
            [seen_in(block, one.to_source(ends)) for block in one.content.blocks] for one in asked
        ]

    def first_step(self, pixel: int, most_shapes: int) -> int:
        """Where to begin: no wider than needed, unless most of the work would be thrown away."""
        each = [seen.high - seen.low for lane in self.seen for seen in lane]
        counts = np.concatenate([np.empty(0, np.int64), *each])
        step = 0
        while True:
            pixels = (self.end_ns - self.start_ns) // _wider(pixel, step) + 1
            if int(np.minimum(counts, pixels).sum()) <= _TRIED * most_shapes or pixels == 1:
                return step
            step += 1

    def shapes(self, pixel: int) -> list[Shapes]:
        edges = edges_of(self.start_ns, self.end_ns, pixel)
        found = []
        for one, seen in zip(self.asked, self.seen, strict=True):
            own = one.to_source(edges)
            parts = []
            for block, part in zip(one.content.blocks, seen, strict=True):
                parts += shapes_in(block, part, own, edges, pixel, one.to_common)
            found.append(joined(parts))
        return found


def edges_of(start_ns: int, end_ns: int, pixel: int) -> Array:
    """Where pixels begin: the window's start, multiples of the pixel, the window's end.

    Multiples, so that a window moved sideways shows the same pixels.
    """
    if pixel >= end_ns - start_ns:
        return np.array([start_ns, end_ns], np.int64)
    inner = np.arange((start_ns // pixel + 1) * pixel, end_ns, pixel, dtype=np.int64)
    return np.concatenate([[start_ns], inner, [end_ns]]).astype(np.int64)
