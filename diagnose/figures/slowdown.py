"""How much slower compute is beside each kind of collective, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import Figure, figure, row_axis, rows_height, short
from diagnose.trace import Table
from diagnose.wording.labels import GPU_WIDTH
from diagnose.wording.plain import plain


def draw(table: Table, titles: Sequence[str], palette: Palette = LIGHT) -> go.Figure | None:
    """A point a row of ``contention`` that has a slowdown; None if none has."""
    rows = [row for row in range(len(table)) if not math.isnan(float(table["slowdown"][row]))]
    if not rows:
        return None
    names = [short(titles[row]) for row in rows]
    middle, low, high = (
        [float(table[f"slowdown{end}"][row]) for row in rows] for end in ("", "_low", "_high")
    )
    drawn = figure(
        palette,
        rows_height(len(rows)),
        xaxis={"title": {"text": "time beside communication / time alone"}, "zeroline": False},
        yaxis=row_axis(names),
        showlegend=False,
    )
    drawn.add_vline(x=1, line={"color": palette.muted, "width": 1, "dash": "dot"})
    drawn.add_scatter(
        x=middle,
        y=list(range(len(rows))),
        mode="markers",
        marker={"color": palette.exposed, "size": 9},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [_known(end - value) for value, end in zip(middle, high, strict=True)],
            "arrayminus": [_known(value - end) for value, end in zip(middle, low, strict=True)],
            "color": palette.exposed,
            "thickness": 1.5,
            "width": 5,
        },
        customdata=[
            [
                name,
                "no interval" if math.isnan(ends[0]) else f"{ends[0]:.2f} to {ends[1]:.2f} (95 %)",
                float(table["coverage_pct"][row]),
            ]
            for row, name, *ends in zip(rows, names, low, high, strict=True)
        ],
        hovertemplate="beside %{customdata[0]}: %{x:.2f} times as long"
        "<br>%{customdata[1]}<br>seen on %{customdata[2]:.0f} % of that time<extra></extra>",
    )
    return drawn


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else max(value, 0.0)


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    beside = tables["collective"]
    if isinstance(beside, Unavailable):
        return beside
    titles = [plain(one or "unknown", GPU_WIDTH) for one in beside.texts("collective")]
    drawn = draw(beside, titles, context.palette)
    return drawn or Unavailable(
        "no kernel ran both alone and beside communication, so none can be compared",
        "record more steps, with shapes",
    )


FIGURE = FigureDefinition(
    "slowdown",
    "Compute beside each kind of collective",
    "Right of the line compute is slower beside communication; lines are 95 % intervals.",
    _drawn,
    {"collective": ("contention", {"by": "collective"})},
)
