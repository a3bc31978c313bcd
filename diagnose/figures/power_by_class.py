"""What the GPUs draw while they compute, communicate or idle, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import plotly.graph_objects as go

from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import Figure, LabelOf, figure, row_axis, rows_height, short
from diagnose.trace import Table
from diagnose.wording.labels import DOING_LABELS


def draw(
    table: Table, labels: LabelOf, doing: Mapping[int, str], palette: Palette = LIGHT
) -> go.Figure | None:
    """A bar a row of ``power_classes`` whose power is known; None if none is.

    ``doing`` names the codes of that column.
    """
    rows = [row for row in range(len(table)) if not math.isnan(float(table["mean_w"][row]))]
    if not rows:
        return None
    what = [doing[int(table["doing"][row])] for row in rows]
    gpus = [(int(table["source"][row]), int(table["device"][row])) for row in rows]
    several = len(set(gpus)) > 1
    names = [
        short(f"{labels[gpu]}: {name}" if several else name)
        for gpu, name in zip(gpus, what, strict=True)
    ]
    middle, low, high = (
        [float(table[f"mean{end}_w"][row]) for row in rows] for end in ("", "_low", "_high")
    )
    drawn = figure(
        palette,
        rows_height(len(rows)),
        xaxis={"title": {"text": "mean power (W)"}, "rangemode": "tozero"},
        yaxis=row_axis(names),
        showlegend=False,
    )
    drawn.add_bar(
        orientation="h",
        x=middle,
        y=list(range(len(rows))),
        marker={"color": palette.gain},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [_reach(value, end) for value, end in zip(middle, high, strict=True)],
            "arrayminus": [_reach(end, value) for value, end in zip(middle, low, strict=True)],
            "color": palette.ink,
            "thickness": 1.2,
            "width": 4,
        },
        customdata=[
            [name, *ends, float(table["time_pct"][row])]
            for row, name, *ends in zip(rows, names, low, high, strict=True)
        ],
        hovertemplate="%{customdata[0]}: %{x:,.0f} W (%{customdata[1]:,.0f} to "
        "%{customdata[2]:,.0f}, 95 %)<br>%{customdata[3]:.1f} % of the time<extra></extra>",
    )
    return drawn


def _reach(low: float, high: float) -> float:
    return 0.0 if math.isnan(high - low) else max(high - low, 0.0)


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    classes = tables["classes"]
    if isinstance(classes, Unavailable):
        return classes
    doing = {int(code): label for code, label in DOING_LABELS.items()}
    drawn = draw(classes, context.labels, doing, context.palette)
    return drawn or Unavailable("no power is known", "record with telemetry, for some seconds")


FIGURE = FigureDefinition(
    "power",
    "Power by what the GPU does",
    "Mean power while the GPU does one thing; lines are 95 % intervals.",
    _drawn,
    {"classes": ("power_classes", {})},
)
