"""Where a step's time goes: a bar a GPU, divided among five states."""

from __future__ import annotations

import plotly.graph_objects as go

from diagnose.figures.palette import LIGHT, Palette
from diagnose.figures.style import LabelOf, Unit, figure, row_axis, rows_height, short, time_axis
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
