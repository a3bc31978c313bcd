"""Where a step's time goes: a bar a GPU, divided among five states."""

from __future__ import annotations

import plotly.graph_objects as go

from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables, unit_for
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import (
    Figure,
    LabelOf,
    Unit,
    figure,
    row_axis,
    rows_height,
    short,
    time_axis,
)
from diagnose.trace import Table

STATES = (
    ("compute_only_ns", "compute alone"),
    ("overlapped_ns", "compute and communication"),
    ("exposed_communication_ns", "exposed communication"),
    ("memory_only_ns", "copies only"),
    ("idle_ns", "idle"),
)
"""Columns of ``breakdown`` and ``step_shares`` from the left to the right of a bar."""


def draw(
    table: Table, labels: LabelOf, unit: Unit, palette: Palette = LIGHT, what: str = "mean step"
) -> go.Figure:
    """A bar a row of ``step_shares`` or ``breakdown``; ``what`` names the stretch of time."""
    gpus = list(zip(table["source"].tolist(), table["device"].tolist(), strict=True))
    names = [short(labels[gpu]) for gpu in gpus]
    rows = list(range(len(gpus)))
    parts = {column: table[column].astype(float).tolist() for column, _ in STATES}
    whole = [sum(values) for values in zip(*parts.values(), strict=True)]
    drawn = figure(
        palette,
        rows_height(len(rows)),
        barmode="stack",
        xaxis=time_axis(unit, what),
        yaxis=row_axis(names),
        bargap=0.28,
    )
    for column, state in STATES:
        shares = [
            100 * part / total if total else 0.0
            for part, total in zip(parts[column], whole, strict=True)
        ]
        times = [unit.of(part) for part in parts[column]]
        drawn.add_bar(
            orientation="h",
            name=state,
            x=times,
            y=rows,
            customdata=list(zip(names, shares, strict=True)),
            text=[f"{time:.{unit.decimals}f}" if time else "" for time in times],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": palette.on_state(column), "size": 11},
            marker={"color": palette.state(column), "line": {"width": 1, "color": palette.page}},
            hovertemplate=f"%{{customdata[0]}}<br>{state}: %{{x:{unit.hover}}} {unit.name}"
            "<br>%{customdata[1]:.1f} % of the time<extra></extra>",
        )
    return drawn


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    shares, whole = tables["step_shares"], tables["breakdown"]
    if not isinstance(shares, Unavailable) and len(shares):
        unit = unit_for(int(shares["step_ns"].max()))
        return draw(shares, context.labels, unit, context.palette)
    if isinstance(whole, Unavailable):
        return whole
    windows = whole.take(whole["step_row"] < 0)
    if not len(windows):
        return Unavailable("no GPU did anything", "record with the activities CPU and CUDA")
    return draw(windows, context.labels, context.unit, context.palette, what="window")


FIGURE = FigureDefinition(
    "step_time",
    "Where a step's time goes, by GPU",
    "Each bar is the mean of the timed steps of a GPU, or its window where no step has a time; "
    "the states exclude each other and fill it exactly.",
    _drawn,
    {"step_shares": ("step_shares", {}), "breakdown": ("breakdown", {})},
)
