"""Why the GPUs stood still: a bar a cause, a part a GPU."""

from __future__ import annotations

from collections.abc import Mapping

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
from diagnose.wording.labels import CAUSE_LABELS

MOST_CAUSES = 8
MOST_GPUS = 4
"""Of more GPUs the bars show the sum of all."""


def draw(
    sites: Table, labels: LabelOf, causes: Mapping[int, str], unit: Unit, palette: Palette = LIGHT
) -> go.Figure:
    """The causes of ``stall_sites`` that took most time over all GPUs, the longest on top.

    ``causes`` names the codes of the column ``cause``.
    """
    codes = sites["cause"].astype(np.int64)
    total = np.bincount(codes, sites["length_ns"], minlength=max(causes) + 1)
    order = [code for code in np.argsort(-total, kind="stable").tolist() if total[code] > 0]
    order = order[:MOST_CAUSES]
    drawn = figure(
        palette,
        rows_height(len(order)),
        barmode="group" if _few(sites) else "stack",
        xaxis=time_axis(unit, "time over the window"),
        yaxis=row_axis([short(causes[code]) for code in order]),
    )
    for place, (label, mine) in enumerate(_parts(sites, labels)):
        length = np.bincount(codes[mine], sites["length_ns"][mine], minlength=len(total))
        count = np.bincount(codes[mine], sites["num_intervals"][mine], minlength=len(total))
        drawn.add_bar(
            orientation="h",
            name=label,
            x=[unit.of(float(length[code])) for code in order],
            y=list(range(len(order))),
            customdata=[[label, causes[code], int(count[code])] for code in order],
            marker={"color": palette.series[place]},
            hovertemplate=f"%{{customdata[0]}}<br>%{{customdata[1]}}: %{{x:{unit.hover}}} "
            f"{unit.name}<br>%{{customdata[2]:,}} intervals<extra></extra>",
        )
    parts = len(drawn.data)
    drawn.update_layout(showlegend=parts > 1, height=64 + len(order) * (14 + 10 * parts))
    return drawn


def _gpus(sites: Table) -> list[tuple[int, int]]:
    return sorted({*zip(sites["source"].tolist(), sites["device"].tolist(), strict=True)})


def _few(sites: Table) -> bool:
    return len(_gpus(sites)) <= MOST_GPUS


def _parts(sites: Table, labels: LabelOf) -> list[tuple[str, np.ndarray]]:
    gpus = _gpus(sites)
    if not _few(sites):
        return [(f"all {len(gpus):,} GPUs", np.ones(len(sites), bool))]
    return [
        (short(labels[gpu]), (sites["source"] == gpu[0]) & (sites["device"] == gpu[1]))
        for gpu in gpus
    ]


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    sites = tables["sites"]
    if isinstance(sites, Unavailable):
        return sites
    if not len(sites):
        return Unavailable("no GPU stood still")
    names = {int(cause): label for cause, label in CAUSE_LABELS.items()}
    unit = unit_for(int(sites["length_ns"].sum()))
    return draw(sites, context.labels, names, unit, context.palette)


FIGURE = FigureDefinition(
    "stalls",
    "Idle and copies alone, by cause",
    "Each interval in which a GPU neither computes nor communicates has one cause.",
    _drawn,
    {"sites": ("stall_sites", {})},
)
