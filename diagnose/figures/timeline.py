"""The timeline: lanes of operations over time, sensors below, on one axis.

A shape is a bar. An operation fills its row; what was added up because it is narrower
than a pixel stands on the row's floor, as high as the share of time that it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from diagnose.figures._timeline_alone import FIGURE
from diagnose.figures._timeline_axes import (
    HEAD,
    above,
    axes,
    head,
    ruler_shapes,
    step_ends,
)
from diagnose.figures._timeline_bars import Drawing
from diagnose.figures._timeline_sensors import MOST_LINES, Sensors, color_at, panel, sensors_of
from diagnose.figures._timeline_sheet import Sheet
from diagnose.figures._timeline_words import (
    CATEGORIES,
    MS,
    Mark,
    Marks,
    color_of,
    duration,
    operation_of,
)
from diagnose.lanes import Category, Picture
from diagnose.plotting.lane_layout import BOTTOM, Layout
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import Figure

__all__ = [
    "CATEGORIES",
    "FIGURE",
    "HEAD",
    "MOST_LINES",
    "MS",
    "Mark",
    "Marks",
    "Sensors",
    "Sheet",
    "color_at",
    "color_of",
    "draw",
    "duration",
    "head",
    "operation_of",
    "sensors_of",
    "sheet",
]
_NOTHING = Marks()


def draw(picture: Picture, layout: Layout, name_of: Callable[[int], str], **given: Any) -> Figure:
    """The figure of a picture: ``sheet`` says what may be given."""
    return sheet(picture, layout, name_of, **given).figure()


def sheet(
    picture: Picture,
    layout: Layout,
    name_of: Callable[[int], str],
    *,
    sensors: Sequence[Sensors] = (),
    gpu_names: Mapping[str, str] = MappingProxyType({}),
    marks: Marks = _NOTHING,
    palette: Palette = LIGHT,
    pixels: int = 1200,
) -> Sheet:
    """The drawing of a picture whose lanes stand as in ``layout``; ``name_of`` reads codes.

    ``sensors`` have the panels of the layout, ``gpu_names`` says what the GPUs they belong to
    are called by the keys of their lanes. ``pixels``: the width of the axis, which decides
    where a name has room. Steps are named in the margin above, if the layout has one.
    """
    drawn = Sheet(
        palette,
        layout.height,
        margin={"l": 0, "r": 0, "t": layout.head, "b": BOTTOM},
        barmode="overlay",
        dragmode="pan",
        hoverdistance=4,
        showlegend=False,
        uirevision="timeline",
    )
    drawing = Drawing(picture, layout, name_of, palette, pixels)
    drawing.states(drawn)
    for category in Category:
        drawing.bars(drawn, category)
    drawing.texts(drawn)
    step_ends(drawn, marks, picture, layout, palette, pixels)
    axes(drawn, picture, layout, palette, pixels)
    for at, read in enumerate(sensors):
        panel(drawn, at, read, layout, palette, gpu_names)
    named = above(marks, picture, palette, pixels) if layout.head else []
    drawn.update_layout(
        shapes=[*drawing.frames(marks), *ruler_shapes(marks.ruler, palette)],
        annotations=[*named, *drawing.arrows(marks)],
    )
    return drawn
