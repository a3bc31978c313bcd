"""How late each GPU came to each collective: a heat map, GPUs by collectives.

A row that is dark throughout is a rank that holds the others up; a dark column is a
collective for which somebody was late.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables, unit_for
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import Figure, LabelOf, Unit, figure, inert, rows_height, short
from diagnose.trace import Table

MOST_COLUMNS = 1_500
"""Collectives of a picture; of more, the latest arrival of neighbours stands for them."""
MOST_ROWS = 512
_ROW = 22


def draw(table: Table, labels: LabelOf, unit: Unit, palette: Palette = LIGHT) -> go.Figure | None:
    """``late_ns`` of ``rank_waits``; None where no arrival is known. The costliest GPUs first.

    A cell is the lateness of one GPU at one collective: its arrival less the first one's.
    """
    known = table.take(table.known("late_ns"))
    if not len(known):
        return None
    matches, column = np.unique(known["match"], return_inverse=True)
    pairs = np.stack([known["source"], known["device"]], axis=1)
    gpus, row = np.unique(pairs, axis=0, return_inverse=True)
    row = row.ravel()
    per_cell = -(-len(matches) // MOST_COLUMNS)
    column = column // per_cell
    late = np.full((len(gpus), int(column.max()) + 1), np.nan)
    np.fmax.at(late, (row, column), known["late_ns"] / unit.nanoseconds)
    shown = np.sort(np.argsort(-np.nansum(late, axis=1), kind="stable")[:MOST_ROWS])
    late = late[shown]
    names = [short(labels[int(source), int(device)]) for source, device in gpus[shown].tolist()]
    what = known.texts("collective")
    kinds = [""] * late.shape[1]
    for at, kind in zip(column.tolist(), what, strict=True):
        kinds[at] = kinds[at] or inert(kind or "collective")
    height = rows_height(0, 74) + min(_ROW * max(len(names), 2), 640)
    drawn = figure(palette, height)
    cells = np.round(late, unit.decimals)
    drawn.add_heatmap(
        z=[[None if np.isnan(value) else value for value in line] for line in cells.tolist()],
        x0=0,
        dx=per_cell,
        y=list(range(len(names))),
        customdata=[[[name, kind] for kind in kinds] for name in names]
        if late.size < 4e4
        else None,
        colorscale=[[0, palette.surface], [0.25, palette.overlapped], [1, palette.exposed]],
        zmin=0,
        colorbar={
            "title": {"text": f"late ({unit.name})", "font": {"size": 12}},
            "thickness": 12,
            "outlinewidth": 0,
            "tickfont": {"size": 11, "color": palette.muted},
        },
        hovertemplate=(
            f"%{{customdata[0]}}<br>%{{customdata[1]}} %{{x}}<br>%{{z:{unit.hover}}} {unit.name} "
            "after the first<extra></extra>"
            if late.size < 4e4
            else f"%{{z:{unit.hover}}} {unit.name} after the first<extra></extra>"
        ),
        xgap=0,
        ygap=1,
    )
    drawn.update_layout(
        xaxis={"title": {"text": "collectives, in order"}, "showgrid": False},
        yaxis={
            "tickmode": "array",
            "tickvals": list(range(len(names))) if len(names) <= 40 else [],
            "ticktext": names if len(names) <= 40 else [],
            "autorange": "reversed",
            "showgrid": False,
        },
    )
    return drawn


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    waits = tables["rank_waits"]
    if isinstance(waits, Unavailable):
        return waits
    latest = int(waits["late_ns"][waits.known("late_ns")].max(initial=0))
    drawn = draw(waits, context.labels, unit_for(latest), context.palette)
    return drawn or Unavailable("the clocks of the ranks do not compare")


FIGURE = FigureDefinition(
    "arrival_skew",
    "Arrivals, by GPU and collective",
    "How long after the first each GPU came to each collective.",
    _drawn,
    {"rank_waits": ("rank_waits", {})},
)
