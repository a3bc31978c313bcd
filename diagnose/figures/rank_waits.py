"""Who waits for whom: what the lateness of each rank costs, and how long it waits itself."""

from __future__ import annotations

import numpy as np
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

MOST_ROWS = 32
"""Of more GPUs those whose lateness costs most."""


def draw(table: Table, labels: LabelOf, unit: Unit, palette: Palette = LIGHT) -> go.Figure:
    """Two bars a row of ``ranks``, over the window: what its lateness costs, and its waiting."""
    costliest = np.argsort(-table["cost_ns"], kind="stable")[:MOST_ROWS]
    chosen = table.take(np.sort(costliest))
    gpus = zip(chosen["source"].tolist(), chosen["device"].tolist(), strict=True)
    names = [short(labels[gpu]) for gpu in gpus]
    rows = list(range(len(names)))
    drawn = figure(
        palette,
        rows_height(len(rows) * 4 // 3 + 1),
        barmode="group",
        xaxis=time_axis(unit, "over the window"),
        yaxis=row_axis(names),
    )
    for values, said, color in (
        (chosen["cost_ns"].tolist(), "costs another rank, at most", palette.exposed),
        (chosen["exposed_wait_ns"].tolist(), "waits itself, nothing computed", palette.overlapped),
    ):
        drawn.add_bar(
            orientation="h",
            name=said,
            x=[unit.of(float(value)) for value in values],
            y=rows,
            customdata=names,
            marker={"color": color},
            hovertemplate=f"%{{customdata}} {said}<br>%{{x:{unit.hover}}} {unit.name}"
            "<extra></extra>",
        )
    return drawn


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    ranks = tables["ranks"]
    if isinstance(ranks, Unavailable):
        return ranks
    longest = max(int(ranks[name].max(initial=0)) for name in ("cost_ns", "exposed_wait_ns"))
    if longest <= 0:
        return Unavailable("no GPU cost another time, and none waited")
    return draw(ranks, context.labels, unit_for(longest), context.palette)


FIGURE = FigureDefinition(
    "ranks",
    "Lateness and waiting, by GPU",
    "A rank whose lateness costs others much while it waits little holds the job up.",
    _drawn,
    {"ranks": ("ranks", {})},
)
