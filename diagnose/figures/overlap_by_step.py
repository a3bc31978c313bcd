"""How much of the communication was hidden, step by step: a line a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import Figure, LabelOf, Unit, figure, short
from diagnose.trace import Table

MOST_COLORS = 8
"""Of more GPUs all lines are grey but the least and the most hidden."""
_HEIGHT = 250
_FEW_STEPS = 40


def draw(
    table: Table,
    labels: LabelOf,
    steps: Mapping[int, str],
    unit: Unit,
    palette: Palette = LIGHT,
) -> go.Figure:
    """Lines of ``overlap_pct`` of ``overlap(by="step")``; ``steps`` names the step rows."""
    gpus = sorted({*zip(table["source"].tolist(), table["device"].tolist(), strict=True)})
    drawn = figure(
        palette,
        _HEIGHT,
        xaxis={"title": {"text": "step"}, "showgrid": False, "type": "category"},
        yaxis={
            "title": {"text": "communication hidden (%)"},
            "range": [0, 104],
            "tickvals": [0, 25, 50, 75, 100],
            "zeroline": False,
        },
        showlegend=len(gpus) > 1,
    )
    means = []
    lines = []
    for gpu in gpus:
        mine = (table["source"] == gpu[0]) & (table["device"] == gpu[1]) & (table["step_row"] >= 0)
        rows = np.flatnonzero(mine)
        shares = table["overlap_pct"][rows]
        known = shares[~np.isnan(shares)]
        means.append(float(known.mean()) if known.size else np.nan)
        lines.append(_line(table, rows, short(labels[gpu]), steps, unit))
    for place, line in enumerate(lines):
        plain = len(gpus) > MOST_COLORS and place not in _extremes(means)
        color = palette.bound if plain else palette.series[_color(place, means)]
        line.update(
            line={"color": color, "width": 1.2 if plain else 2},
            marker={"color": color, "size": 4 if plain else 6},
            showlegend=not plain,
        )
        drawn.add_trace(line)
    return drawn


def _extremes(means: list[float]) -> list[int]:
    known = [place for place, mean in enumerate(means) if mean == mean]
    if not known:
        return []
    return [min(known, key=means.__getitem__), max(known, key=means.__getitem__)]


def _color(place: int, means: list[float]) -> int:
    if len(means) <= MOST_COLORS:
        return place
    return 1 if place == _extremes(means)[0] else 0


def _line(
    table: Table, rows: np.ndarray, label: str, steps: Mapping[int, str], unit: Unit
) -> go.Scatter:
    shares = table["overlap_pct"][rows].tolist()
    names = [short(steps[row], 24) for row in table["step_row"][rows].tolist()]
    hidden = [unit.of(float(ns)) for ns in table["overlapped_ns"][rows].tolist()]
    exposed = [unit.of(float(ns)) for ns in table["exposed_communication_ns"][rows].tolist()]
    return go.Scatter(
        name=label,
        x=names,
        y=[None if share != share else share for share in shares],
        mode="lines+markers" if len(names) <= _FEW_STEPS else "lines",
        customdata=list(zip(hidden, exposed, strict=True)),
        hovertemplate=f"{label.replace('%', '&#37;')}, step %{{x}}<br>%{{y:.1f}} % hidden"
        f"<br>%{{customdata[0]:{unit.hover}}} {unit.name} hidden, "
        f"%{{customdata[1]:{unit.hover}}} {unit.name} exposed<extra></extra>",
    )


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    steps = tables["steps"]
    if isinstance(steps, Unavailable):
        return steps
    if not (steps.known("overlap_pct") & (steps["step_row"] >= 0)).any():
        return Unavailable(
            "no step has communication on a GPU",
            "record steps of a job on several GPUs, with the activities CPU and CUDA",
        )
    names = {row: context.step(row) for row in set(steps["step_row"].tolist())}
    return draw(steps, context.labels, names, context.unit, context.palette)


FIGURE = FigureDefinition(
    "overlap",
    "Communication hidden, by step and GPU",
    "Share of a step's communication beside which its GPU computed.",
    _drawn,
    {"steps": ("overlap", {"by": "step"})},
)
