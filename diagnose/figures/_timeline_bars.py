"""Shapes of a picture as bars, names where they have room, frames around what is pointed at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.figures._timeline_sheet import Sheet
from diagnose.figures._timeline_states import stacked
from diagnose.figures._timeline_words import (
    CATEGORIES,
    CHARACTER,
    MS,
    Mark,
    Marks,
    color_of,
    cut,
    duration,
    key_of,
)
from diagnose.intervals import Array
from diagnose.lanes import Category, OpTable, Picture
from diagnose.plotting.lane_layout import Layout
from diagnose.plotting.palette import Palette
from diagnose.schema import NO_ROW

_LONGEST_NAME = 46
_LEAST_TEXT = 34
_MOST_MARKED = 200


class Drawing:
    """The geometry of one picture."""

    def __init__(
        self,
        picture: Picture,
        layout: Layout,
        name_of: Callable[[int], str],
        palette: Palette,
        pixels: int,
    ) -> None:
        self.picture, self.layout, self.palette = picture, layout, palette
        self.pixel_ns = max((picture.end_ns - picture.start_ns) / max(pixels, 1), 1e-3)
        # A sixteenth of a pixel is more than a screen shows, and short numbers travel faster.
        self.decimals = max(0, min(6, math.ceil(-math.log10(self.pixel_ns / 16 / MS))))
        boxes = layout.lanes
        self.top = np.array([box.top for box in boxes], np.float64)
        self.row_height = np.array([box.row for box in boxes], np.float64)
        self.stacks = np.array([box.stacked for box in boxes], bool)
        lane = picture.lane
        self.row = self.row_height[lane] if len(lane) else np.empty(0)
        self.floor = self.top[lane] + self.row * (picture.depth + 1) if len(lane) else np.empty(0)
        self.on_states = self.stacks[lane] if len(lane) else np.empty(0, bool)
        used = np.unique(picture.name[picture.name != NO_ROW]).tolist()
        self.names = {code: name_of(code) for code in used}

    def states(self, drawn: Sheet) -> None:
        """The lanes that say what a GPU was doing: a trace a category, over all of them."""
        bars: dict[Category, list[tuple[int, Any]]] = {}
        for lane in np.flatnonzero(self.stacks).tolist():
            rows = np.flatnonzero(self.picture.lane == lane)
            for category, made in stacked(self.picture, rows).items():
                bars.setdefault(category, []).append((lane, made))
        # The highest sum is drawn first, whatever the lane.
        for category in (Category.COPIES, Category.COMPUTE, Category.OVERLAPPED, Category.EXPOSED):
            found = bars.get(category)
            if found is None:
                continue
            lanes = np.repeat([at for at, _ in found], [len(made.start_ns) for _, made in found])
            start, end, share, busy = (
                np.concatenate([made[column] for _, made in found]) for column in range(4)
            )
            full = self.row_height[lanes] - 2
            height = np.maximum(np.round(full * share), 1.0)
            floor = self.top[lanes] + self.row_height[lanes]
            said = [
                f"{duration(b)} of {duration(w)}"
                for b, w in zip(busy.tolist(), (end - start).tolist(), strict=True)
            ]
            what = f"{CATEGORIES[category]}<br>"
            self._add(drawn, category, start, end, floor, height, said, None, what)

    def bars(self, drawn: Sheet, category: Category) -> None:
        """One trace with the operations of a category, and those added up."""
        picture = self.picture
        rows = np.flatnonzero((picture.category == category) & ~self.on_states)
        if not rows.size:
            return
        start, end = picture.shape_start_ns[rows], picture.shape_end_ns[rows]
        single = picture.table[rows] != OpTable.NONE
        share = np.where(single, 1.0, picture.busy_ns[rows] / np.maximum(end - start, 1))
        height = np.maximum(np.round((self.row[rows] - 2) * np.minimum(share, 1.0)), 1.0)
        said = [self._said(row, category) for row in rows.tolist()]
        keys = [
            key_of(OpTable(table), row)
            for table, row in zip(
                picture.table[rows].tolist(), picture.row[rows].tolist(), strict=True
            )
        ]
        # Exposed parts lie over the collectives they belong to, which answer for them.
        over = category == Category.EXPOSED
        self._add(
            drawn, category, start, end, self.floor[rows], height, None if over else said, keys
        )

    def _add(
        self,
        drawn: Sheet,
        category: Category,
        start: Array,
        end: Array,
        floor: npt.NDArray[np.float64],
        height: npt.NDArray[np.float64],
        said: list[str] | None,
        keys: list[str | None] | None,
        before: str = "",
    ) -> None:
        width = np.maximum(end - start, self.pixel_ns / 2)
        given: dict[str, Any] = {"hoverinfo": "skip"}
        if said is not None:
            given = {"hovertext": said, "hovertemplate": f"{before}%{{hovertext}}<extra></extra>"}
        if keys is not None and said is not None:
            given["customdata"] = keys
        drawn.add_bar(
            orientation="h",
            base=self.short(start / MS),
            x=self.short(width / MS),
            y=(floor - 1 - height / 2).round(1).tolist(),
            width=height.tolist(),
            name=CATEGORIES[category],
            marker={"color": color_of(category, self.palette), "line": {"width": 0}},
            **given,
        )

    def short(self, values: npt.NDArray[np.float64]) -> list[float]:
        """Places on the axis, as exact as a screen shows."""
        rounded: list[float] = np.round(values, self.decimals).tolist()
        return rounded

    def _said(self, row: int, category: Category) -> str:
        picture = self.picture
        busy = duration(int(picture.busy_ns[row]))
        if picture.table[row] != OpTable.NONE:
            return f"{cut(self.names[int(picture.name[row])], _LONGEST_NAME)}<br>{busy}"
        number = int(picture.num_ops[row])
        whole = max(int(picture.shape_end_ns[row] - picture.shape_start_ns[row]), 1)
        share = 100 * picture.busy_ns[row] / whole
        count = f"{number:,} x " if number > 1 else ""
        return f"{count}{CATEGORIES[category]}<br>{busy}, {share:.0f} %"

    def texts(self, drawn: Sheet) -> None:
        """Names where they have room; a trace of its own, so that they lie over all bars."""
        picture, palette = self.picture, self.palette
        room = (picture.shape_end_ns - picture.shape_start_ns) / self.pixel_ns
        rows = np.flatnonzero((room >= _LEAST_TEXT) & (picture.name != NO_ROW))
        if not rows.size:
            return
        on = {
            Category.COMPUTE: palette.on_compute,
            Category.OVERLAPPED: palette.on_light,
            Category.COPIES: palette.on_light,
            Category.HOST: palette.on_idle,
            Category.CALL: palette.on_idle,
        }
        drawn.add_scatter(
            mode="text",
            x=self.short((picture.shape_start_ns[rows] + 3 * self.pixel_ns) / MS),
            y=(self.floor[rows] - self.row[rows] / 2).tolist(),
            text=[
                cut(self.names[int(picture.name[row])], int((room[row] - 8) / CHARACTER))
                for row in rows.tolist()
            ],
            textposition="middle right",
            textfont={
                "size": 11,
                "color": [on[Category(one)] for one in picture.category[rows].tolist()],
            },
            hoverinfo="skip",
            cliponaxis=True,
        )

    def frames(self, marks: Marks) -> list[dict[str, Any]]:
        """A frame around what is pointed at."""
        palette = self.palette
        framed = [(one, palette.accent, 1.0) for one in list(marks.found)[:_MOST_MARKED]]
        framed += [(one, palette.ink, 1.5) for one in marks.linked]
        framed += [(marks.selected, palette.ink, 2.5)] if marks.selected else []
        return [self._frame(*one) for one in framed if self._seen(one[0])]

    def arrows(self, marks: Marks) -> list[dict[str, Any]]:
        """From the selection to what it is linked with."""
        if marks.selected is None:
            return []
        both = [(marks.selected, one) for one in marks.linked]
        return [self._arrow(*pair) for pair in both if all(map(self._placed, pair))]

    def _arrow(self, begin: Mark, end: Mark) -> dict[str, Any]:
        return {
            "x": round(end.start_ns / MS, self.decimals),
            "y": self._middle(end),
            "ax": round(begin.start_ns / MS, self.decimals),
            "ay": self._middle(begin),
            "xref": "x",
            "yref": "y",
            "axref": "x",
            "ayref": "y",
            "text": "",
            "showarrow": True,
            "arrowhead": 2,
            "arrowsize": 1,
            "arrowwidth": 1.4,
            "arrowcolor": self.palette.ink,
            "opacity": 0.8,
        }

    def _middle(self, mark: Mark) -> float:
        box = next(box for box in self.layout.lanes if box.key == mark.lane)
        return box.top + box.row * (mark.depth + 0.5)

    def _placed(self, mark: Mark) -> bool:
        """Whether its lane is drawn; the stretch itself may lie beside the window."""
        return any(box.key == mark.lane for box in self.layout.lanes)

    def _seen(self, mark: Mark) -> bool:
        inside = mark.end_ns >= self.picture.start_ns and mark.start_ns <= self.picture.end_ns
        return inside and self._placed(mark)

    def _frame(self, mark: Mark, color: str, width: float) -> dict[str, Any]:
        box = next(box for box in self.layout.lanes if box.key == mark.lane)
        top = box.top + box.row * mark.depth
        end = max(mark.end_ns, mark.start_ns + 3 * self.pixel_ns)
        return {
            "type": "rect",
            "x0": round(mark.start_ns / MS, self.decimals),
            "x1": round(end / MS, self.decimals),
            "y0": top,
            "y1": top + box.row,
            "line": {"color": color, "width": width},
            "layer": "above",
        }
