"""Sensors below the lanes: one panel for each kind of reading, the GPUs together in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.figures._timeline_sheet import Sheet
from diagnose.figures._timeline_words import MS
from diagnose.lanes import Counter
from diagnose.plotting.lane_layout import Layout, Panel
from diagnose.plotting.palette import Palette
from diagnose.plotting.style import inert

MOST_LINES = 8
"""GPUs that have a line of their own in a panel; of more, the lowest, mean and highest."""
_HEIGHT = 54
_GRID = 240
Floats = npt.NDArray[np.float64]


class Sensors(NamedTuple):
    """What is read alike on all GPUs."""

    label: str
    unit: str
    counters: tuple[Counter, ...]

    @property
    def height(self) -> int:
        """Pixels of its panel."""
        if self.unit != "held":
            return _HEIGHT
        return 22 if len(self.counters) > MOST_LINES else max(16, 9 * len(self.counters))


def sensors_of(counters: Sequence[Counter]) -> tuple[Sensors, ...]:
    """Counters by kind, in the order in which kinds first appear; clocks held down come last."""
    kinds: dict[tuple[str, str], list[Counter]] = {}
    for one in counters:
        kinds.setdefault((one.label, one.unit), []).append(one)
    found = [Sensors(label, unit, tuple(own)) for (label, unit), own in kinds.items()]
    return tuple(sorted(found, key=lambda one: one.unit == "held"))


def color_at(palette: Palette, place: int) -> str:
    """The colour of the GPU at a place of a panel."""
    return palette.series[place % len(palette.series)]


def panel(
    drawn: Sheet,
    at: int,
    read: Sensors,
    layout: Layout,
    palette: Palette,
    names: Mapping[str, str],
) -> None:
    """Draw one kind of reading; ``names``: what the GPU of a key is called."""
    axis, place = f"y{at + 2}", layout.panels[at]
    if len(read.counters) > MOST_LINES:
        top = _all_gpus(drawn, axis, read, palette)
    elif read.unit == "held":
        top = _held(drawn, axis, read, palette, names)
    else:
        top = _lines(drawn, axis, read, palette, names)
    held = read.unit == "held"
    drawn.update_layout({f"yaxis{at + 2}": _axis(place, layout.inner, top, held, palette)})


def _axis(place: Panel, inner: int, top: float, held: bool, palette: Palette) -> dict[str, Any]:
    shown = [] if held else [0, top / 2, top]
    return {
        "domain": [max(1 - (place.top + place.height) / inner, 0), 1 - place.top / inner],
        "range": [top, 0] if held else [0, 1.08 * top],
        "fixedrange": True,
        "anchor": "x",
        "side": "right",
        "tickvals": shown,
        "ticktext": ["" if value == 0 else f"{value:,.4g}" for value in shown],
        "tickfont": {"size": 10, "color": palette.muted},
        "ticklabelposition": "inside bottom",
        "zeroline": False,
        "automargin": False,
    }


def _lines(
    drawn: Sheet, axis: str, read: Sensors, palette: Palette, names: Mapping[str, str]
) -> float:
    """A line a GPU; from lowest to highest as a band where readings were thinned."""
    for number, one in enumerate(read.counters):
        x, color = _short(one.x_ns / MS), color_at(palette, number)
        if bool((one.high > one.low).any()) and len(read.counters) <= 2:
            _band(drawn, axis, x, one.low, one.high, color)
        said = f"{inert(_whose(one, names))}<br>%{{y:,.4~g}} {inert(read.unit)}<extra></extra>"
        _line(drawn, axis, x, one.mean, color, said, read.label)
    return _rounded(max((float(one.high.max(initial=0)) for one in read.counters), default=0.0))


def _held(
    drawn: Sheet, axis: str, read: Sensors, palette: Palette, names: Mapping[str, str]
) -> float:
    """A row a GPU, filled while its clocks were held down."""
    for number, one in enumerate(read.counters):
        if one.x_ns.size < 2:
            continue
        begin, end = one.x_ns[:-1] / MS, one.x_ns[1:] / MS
        on = one.mean[:-1] > 0
        first = np.flatnonzero(on & ~np.concatenate([[False], on[:-1]]))
        last = np.flatnonzero(on & ~np.concatenate([on[1:], [False]]))
        drawn.add_bar(
            orientation="h",
            base=_short(begin[first]),
            x=_short(end[last] - begin[first]),
            y=[number + 0.5] * first.size,
            width=[0.8] * first.size,
            marker={"color": color_at(palette, number), "line": {"width": 0}},
            yaxis=axis,
            name=inert(read.label),
            hovertemplate=f"{inert(_whose(one, names))}<br>{inert(read.label)}<extra></extra>",
        )
    return float(len(read.counters))


def _all_gpus(drawn: Sheet, axis: str, read: Sensors, palette: Palette) -> float:
    """Many GPUs: from the lowest to the highest of them as a band, their mean as a line."""
    known = [one for one in read.counters if one.x_ns.size]
    if not known:
        return 1.0
    first, last = min(one.x_ns[0] for one in known), max(one.x_ns[-1] for one in known)
    grid = np.linspace(first, last, _GRID)
    outside = {"left": np.nan, "right": np.nan}
    each = np.array([np.interp(grid, one.x_ns, one.mean, **outside) for one in known])
    seen = ~np.isnan(each).all(axis=0)
    grid, each = grid[seen], each[:, seen]
    x, color = _short(grid / MS), color_at(palette, 0)
    count = len(read.counters)
    if read.unit == "held":
        share = 1 - np.nanmean(each, axis=0)
        # The axis of what is held points down, so the share hangs from 1.
        _band(drawn, axis, x, share, np.ones(len(x)), color)
        said = f"{inert(read.label)}, mean of {count} GPUs<extra></extra>"
        _line(drawn, axis, x, share, color, said, read.label)
        return 1.0
    _band(drawn, axis, x, np.nanmin(each, axis=0), np.nanmax(each, axis=0), color)
    said = f"mean of {count} GPUs<br>%{{y:,.4~g}} {inert(read.unit)}<extra></extra>"
    _line(drawn, axis, x, np.nanmean(each, axis=0), color, said, read.label)
    return _rounded(float(np.nanmax(each)))


def _band(drawn: Sheet, axis: str, x: list[float], low: Floats, high: Floats, color: str) -> None:
    both = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "yaxis": axis}
    drawn.add_scatter(x=x, y=low.round(3).tolist(), **both)
    drawn.add_scatter(x=x, y=high.round(3).tolist(), fill="tonexty", fillcolor=_pale(color), **both)


def _line(
    drawn: Sheet, axis: str, x: list[float], y: Floats, color: str, said: str, label: str
) -> None:
    drawn.add_scatter(
        x=x,
        y=y.round(3).tolist(),
        mode="lines",
        line={"color": color, "width": 1.4},
        yaxis=axis,
        name=inert(label),
        hovertemplate=said,
    )


def _whose(one: Counter, names: Mapping[str, str]) -> str:
    return names.get(one.gpu or "", f"source {one.source}")


def _short(values: Floats) -> list[float]:
    rounded: list[float] = np.round(values, 4).tolist()
    return rounded


def _rounded(highest: float) -> float:
    """The next 1, 2, 3, 4, 6, 8 or 10 of a power of ten, so that half of it is short too."""
    if not highest > 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(highest))
    return float(next(power * one for one in (1, 2, 3, 4, 6, 8, 10) if highest <= power * one))


def _pale(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"
