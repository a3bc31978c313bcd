"""Where lanes and sensors stand in a figure of the timeline, in pixels from its top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.lanes import Lane, LaneKind

TOP = 26
"""Above the first lane: the names of steps."""
BOTTOM = 44
"""Below the last sensor: the axis and its title."""
_ROW = {LaneKind.STATES: 24, LaneKind.STREAM: 22, LaneKind.THREAD: 16}
_GAP = {LaneKind.STATES: 10, LaneKind.STREAM: 3, LaneKind.THREAD: 6}
_PANEL_GAP = 12


@dataclass(frozen=True)
class Box:
    """A lane: its rows begin at ``top`` and are ``row`` pixels high each."""

    key: str
    group: str
    """The key of the GPU it belongs to; its own where it belongs to none."""
    top: int
    row: int
    num_rows: int
    stacked: bool
    """Whether its shapes exclude each other and are drawn one upon the other."""

    @property
    def height(self) -> int:
        return self.row * self.num_rows


class Panel(NamedTuple):
    """Where a sensor is drawn, below the lanes."""

    top: int
    height: int


@dataclass(frozen=True)
class Layout:
    """All boxes. ``plot`` is the height of the lanes, ``height`` that of the figure."""

    lanes: tuple[Box, ...]
    plot: int
    panels: tuple[Panel, ...] = ()
    head: int = TOP
    """Pixels above the first lane."""

    @property
    def inner(self) -> int:
        """The height of all that is drawn between the margins."""
        last = self.panels[-1] if self.panels else None
        return self.plot if last is None else last.top + last.height + _PANEL_GAP // 2

    @property
    def height(self) -> int:
        return self.head + self.inner + BOTTOM


def layout_of(
    lanes: Sequence[Lane], rows: Sequence[int], panels: Sequence[int] = (), head: int = TOP
) -> Layout:
    """The places of lanes, each with so many rows, and of panels of these heights below them."""
    boxes: list[Box] = []
    top = 0
    for lane, number in zip(lanes, rows, strict=True):
        top += _GAP[lane.kind]
        group = lane.key if lane.parent is None else lane.parent
        stacked = lane.kind == LaneKind.STATES
        boxes.append(Box(lane.key, group, top, _ROW[lane.kind], number, stacked))
        top += boxes[-1].height
    plot = top + 6
    below: list[Panel] = []
    top = plot
    for height in panels:
        below.append(Panel(top + _PANEL_GAP, height))
        top += _PANEL_GAP + height
    return Layout(tuple(boxes), plot, tuple(below), head)
