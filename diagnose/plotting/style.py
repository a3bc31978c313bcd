"""What all figures share: the template, axes with units, labels that cannot be markup."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import plotly.graph_objects as go

from diagnose.plotting.palette import Palette

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
Figure = go.Figure
LabelOf = Mapping[tuple[int, int], str]
"""How a GPU, given as (source, device), is called."""
_ROW_HEIGHT = 30
_SHORT = 40


class Unit(NamedTuple):
    """The unit of the times in a figure: ``Unit("ms", 1_000_000, 2)``."""

    name: str
    nanoseconds: int
    decimals: int

    def of(self, nanoseconds: float) -> float | None:
        """A time in this unit; None (no mark) where it is unknown."""
        return None if math.isnan(nanoseconds) else nanoseconds / self.nanoseconds

    @property
    def hover(self) -> str:
        """The format of a figure in hover text, as d3 writes it."""
        return f",.{self.decimals}f"


def inert(text: str) -> str:
    """A text that plotly shows as it is.

    Plotly takes ``<b>``, ``<br>``, ``<a href>`` and entities in text for markup, and
    sets what it takes for TeX between two ``$``. It decodes entities last, so these
    are safe.
    """
    return html.escape(text, quote=False).replace("$", "&#36;").replace("\n", " ")


def short(text: str, most: int = _SHORT) -> str:
    """A label for an axis: cut before it is made inert, so that no entity is cut."""
    return inert(text if len(text) <= most else text[: most - 1].rstrip() + "…")


def two_lines(text: str, width: int = 34) -> str:
    """A label of up to two lines; what is longer is cut."""
    lines = textwrap.wrap(text, width, max_lines=2, placeholder="…", break_on_hyphens=False)
    return "<br>".join(map(inert, lines))


def template(palette: Palette) -> go.layout.Template:
    """The look: no frame, hairline grid, the page's type, tabular figures."""
    axis = {
        "gridcolor": palette.grid,
        "linecolor": palette.line,
        "tickcolor": palette.line,
        "zerolinecolor": palette.line,
        "zerolinewidth": 1,
        "tickfont": {"size": 12, "color": palette.muted},
        "title": {"font": {"size": 12, "color": palette.muted}, "standoff": 8},
        "automargin": True,
        "fixedrange": True,
        "separatethousands": True,
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": palette.ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(palette.series),
            "xaxis": axis,
            "yaxis": axis,
            "margin": {"l": 8, "r": 8, "t": 6, "b": 46},
            "hoverlabel": {
                "bgcolor": palette.surface,
                "bordercolor": palette.line,
                "font": {"family": FONT, "size": 12, "color": palette.ink},
                "align": "left",
                "namelength": -1,
            },
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "traceorder": "normal",
                "font": {"size": 12, "color": palette.muted},
                "itemclick": False,
                "itemdoubleclick": False,
            },
            "hovermode": "closest",
            "dragmode": False,
            "bargap": 0.32,
            "uniformtext": {"minsize": 11, "mode": "hide"},
            "separators": ".,",
        }
    )


def figure(palette: Palette, height: int, **layout: Any) -> go.Figure:
    """An empty figure in the look of all, ``height`` pixels high."""
    return go.Figure(layout={"template": template(palette), "height": height, **layout})


def rows_height(rows: int, around: int = 58) -> int:
    """The height of a figure with a bar a row; ``around``: what the axis below needs."""
    return around + _ROW_HEIGHT * max(rows, 1)


def row_axis(labels: list[str]) -> dict[str, Any]:
    """A y axis with a row a label, the first on top; equal labels stay apart."""
    return {
        "tickmode": "array",
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [len(labels) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        # No marks, but their length keeps the labels off the bars.
        "ticks": "outside",
        "ticklen": 6,
        "tickcolor": "rgba(0,0,0,0)",
    }


def time_axis(unit: Unit, what: str) -> dict[str, Any]:
    """An axis of times with its unit."""
    return {"title": {"text": f"{what} ({unit.name})"}, "rangemode": "tozero"}


_TITLE = 34


def titled(drawn: go.Figure, title: str, palette: Palette) -> go.Figure:
    """The figure with a title and the page's colour, for where it stands alone."""
    legend = 26 if drawn.layout.showlegend is not False and _named(drawn) else 0
    margin = drawn.layout.margin
    look = drawn.layout.template.layout.margin
    top = int(look.t if margin.t is None else margin.t)
    below = drawn.layout.legend.y is not None
    more = _TITLE + (0 if below else legend)
    drawn.update_layout(
        title={
            "text": inert(title),
            "font": {"size": 15},
            "x": 0,
            "xref": "container",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 10, "l": 10},
        },
        margin_t=top + more,
        height=drawn.layout.height + more,
        paper_bgcolor=palette.page,
        plot_bgcolor=palette.page,
    )
    return drawn


def _named(drawn: go.Figure) -> bool:
    """Whether plotly shows a legend: of several series, or where it was asked for."""
    named = [one for one in drawn.data if one.name and one.showlegend is not False]
    return bool(drawn.layout.showlegend) or len(named) > 1
