"""The axis of time, with units that suit the zoom, and where steps begin and end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from diagnose.figures._timeline_sheet import Sheet
from diagnose.figures._timeline_words import CHARACTER, MS, Marks, cut, duration
from diagnose.intervals import Array
from diagnose.lanes import Picture, StepMark
from diagnose.plotting.lane_layout import Layout
from diagnose.plotting.palette import Palette

HEAD = 46
"""Pixels of the axis that stays above the lanes: names of steps, hits, times."""
_NAMES, _TIMES = 18, 20
_MOST_STEPS = 60
_LONGEST_STEP = 24
_APART = 116
"""Pixels from one time to the next, at least."""
_LEAST_STEP = 8
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


def ticks(start_ns: int, end_ns: int, pixels: int) -> tuple[list[float], list[str]]:
    """Places (ms) and times as text: whole numbers of one unit, a window's width beyond each end.

    Beyond, so that what is dragged into sight is labelled before it is drawn anew.
    """
    width = max(end_ns - start_ns, 1)
    least = max(width * _APART / max(pixels, 1), 1)
    power = 10 ** math.floor(math.log10(least))
    step = next(int(power * one) for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))
    size, unit = next((size, unit) for size, unit in _UNITS if step >= size)
    first, last = -(-(start_ns - width) // step), (end_ns + width) // step
    places = [number * step for number in range(first, last + 1)]
    return [at / MS for at in places], [f"{at // size:,} {unit}" for at in places]


def axes(drawn: Sheet, picture: Picture, layout: Layout, palette: Palette, pixels: int) -> None:
    """Time below, pixels from the top beside."""
    places, texts = ticks(picture.start_ns, picture.end_ns, pixels)
    drawn.update_layout(
        xaxis={
            "range": [picture.start_ns / MS, picture.end_ns / MS],
            "fixedrange": False,
            "tickvals": places,
            "ticktext": texts,
            "title": {"text": "time since the first event"},
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": palette.muted,
            "spikesnap": "cursor",
            "anchor": "free",
            "position": 0,
            "zeroline": False,
            "automargin": False,
        },
        yaxis={
            "range": [layout.plot, 0],
            "domain": [max(1 - layout.plot / layout.inner, 0), 1],
            "visible": False,
            "fixedrange": True,
            "automargin": False,
        },
    )


def head(
    picture: Picture, marks: Marks, palette: Palette, pixels: int, found_ns: Array | None = None
) -> Sheet:
    """The axis by itself, to stand above lanes that scroll: steps, hits of a search, times."""
    places, texts = ticks(picture.start_ns, picture.end_ns, pixels)
    drawn = Sheet(
        palette,
        HEAD,
        margin={"l": 0, "r": 0, "t": _NAMES, "b": _TIMES},
        showlegend=False,
        annotations=above(marks, picture, palette, pixels),
        shapes=ruler_shapes(marks.ruler, palette),
        xaxis={
            "range": [picture.start_ns / MS, picture.end_ns / MS],
            "tickvals": places,
            "ticktext": texts,
            "ticks": "outside",
            "ticklen": 4,
            "showgrid": False,
            "zeroline": False,
            "showline": True,
            "automargin": False,
        },
        yaxis={"range": [0, 1], "visible": False, "automargin": False},
    )
    seen = _one_a_pixel(found_ns, picture, pixels)
    drawn.add_scatter(
        x=seen,
        y=[0.5] * len(seen),
        mode="markers",
        marker={"symbol": "line-ns", "size": 9, "line": {"width": 2, "color": palette.accent}},
        hoverinfo="skip",
    )
    return drawn


def above(marks: Marks, picture: Picture, palette: Palette, pixels: int) -> list[dict[str, Any]]:
    """What is written above the lanes: names of steps, the length of the ruler."""
    named = step_names(marks.steps, picture, palette, pixels)
    return [*named, *ruler_text(marks.ruler, palette)]


def _one_a_pixel(found_ns: Array | None, picture: Picture, pixels: int) -> list[float]:
    """Places (ms) of hits in the window, at most one a pixel and a half."""
    if found_ns is None:
        return []
    low, high = np.searchsorted(found_ns, [picture.start_ns, picture.end_ns])
    pixel = max((picture.end_ns - picture.start_ns) * 3 // (2 * max(pixels, 1)), 1)
    used = np.unique((found_ns[low:high] - picture.start_ns) // pixel)
    places: list[float] = ((picture.start_ns + used * pixel) / MS).tolist()
    return places


def ruler_shapes(ruler: Sequence[int], palette: Palette) -> list[dict[str, Any]]:
    """A line where each end is, a band between them."""
    line = {"color": palette.accent, "width": 1.5}
    common = {"yref": "paper", "y0": 0, "y1": 1}
    shapes: list[dict[str, Any]] = [
        {"type": "line", "x0": at / MS, "x1": at / MS, "line": line, **common} for at in ruler
    ]
    if len(ruler) == 2:
        band = {"fillcolor": palette.accent, "opacity": 0.12, "line": {"width": 0}}
        ends = {"x0": ruler[0] / MS, "x1": ruler[1] / MS}
        shapes.append({"type": "rect", "layer": "above", **ends, **band, **common})
    return shapes


def ruler_text(ruler: Sequence[int], palette: Palette) -> list[dict[str, Any]]:
    """How long it is, in its middle at the top."""
    if len(ruler) != 2:
        return []
    return [
        {
            "x": (ruler[0] + ruler[1]) / 2 / MS,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "text": duration(ruler[1] - ruler[0]),
            "showarrow": False,
            "bgcolor": palette.surface,
            "bordercolor": palette.accent,
            "borderpad": 2,
            "font": {"size": 12, "color": palette.ink},
        }
    ]


def step_ends(
    drawn: Sheet, marks: Marks, picture: Picture, layout: Layout, palette: Palette, pixels: int
) -> None:
    """Where the steps of a GPU end, across the lanes that belong to it, if there is room."""
    spans = {box.key: (box.top, box.top + box.height) for box in layout.lanes}
    for box in layout.lanes:
        first, last = spans.get(box.group, (box.top, 0))
        spans[box.group] = (first, max(last, box.top + box.height))
    by_lane: dict[str, list[int]] = {}
    for mark in marks.steps:
        for on in mark.on_gpu:
            if on.lane in spans and picture.start_ns <= on.end_ns <= picture.end_ns:
                by_lane.setdefault(on.lane, []).append(on.end_ns)
    most = max(map(len, by_lane.values()), default=0)
    if not most or marks.steps_left_out or most * _LEAST_STEP > pixels:
        return
    x: list[float | None] = []
    y: list[float | None] = []
    for lane, ends in by_lane.items():
        for at in ends:
            x += [at / MS, at / MS, None]
            y += [*spans[lane], None]
    drawn.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": palette.ink, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )


def step_names(
    steps: Sequence[StepMark], picture: Picture, palette: Palette, pixels: int
) -> list[dict[str, Any]]:
    """Where the host marks the steps of the first process: names above the lanes."""
    first = min((mark.source for mark in steps), default=None)
    places = sorted(
        (mark.start_ns, mark.label)
        for mark in steps
        if mark.source == first and picture.start_ns <= mark.start_ns <= picture.end_ns
    )
    pixel_ns = (picture.end_ns - picture.start_ns) / max(pixels, 1)
    named: list[dict[str, Any]] = []
    free = -math.inf
    for at, label in places:
        if at < free or len(named) == _MOST_STEPS:
            continue
        text = cut(label, _LONGEST_STEP)
        free = at + (min(len(label), _LONGEST_STEP) + 4) * CHARACTER * pixel_ns
        named.append(
            {
                "x": at / MS,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "xanchor": "left",
                "text": f"▾ {text}",
                "showarrow": False,
                "font": {"size": 11, "color": palette.muted},
            }
        )
    return named
