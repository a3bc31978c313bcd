"""From today's step to the bound: what is left of a step after each further change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import plotly.graph_objects as go

from diagnose.analysis import Unavailable
from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables, unit_of
from diagnose.plotting.palette import LIGHT, Palette
from diagnose.plotting.style import (
    Figure,
    Unit,
    figure,
    row_axis,
    rows_height,
    short,
    time_axis,
    two_lines,
)
from diagnose.trace import Table
from diagnose.wording.changes import split
from diagnose.wording.plain import plain
from diagnose.wording.replay import scale_of

_LONGEST = 90


def draw(table: Table, titles: Sequence[str], unit: Unit, palette: Palette = LIGHT) -> go.Figure:
    """A bar a row of ``staircase``; ``titles`` names them, the first is today's step.

    The solid part is what is left of the step, the pale one what this row's change
    took off; the line at the end is the range of the step time.
    """
    names = [short(title, _LONGEST) for title in titles]
    left = [float(value) for value in table["then_ns"]]
    low = [float(value) for value in table["then_low_ns"]]
    high = [float(value) for value in table["then_high_ns"]]
    bounds = [bool(value) for value in table["is_bound"]]
    saved = [0.0] + [max(before - after, 0.0) for before, after in itertools.pairwise(left)]
    rows = list(range(len(names)))
    drawn = figure(
        palette,
        rows_height(len(rows)),
        barmode="stack",
        xaxis=time_axis(unit, "step time"),
        yaxis=row_axis([two_lines(title) for title in titles]),
        showlegend=False,
        bargap=0.36,
    )
    solid = [palette.bound if bound else palette.compute for bound in bounds]
    drawn.add_bar(
        orientation="h",
        x=[unit.of(value) for value in left],
        y=rows,
        marker={"color": solid},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [_reach(unit, value, end) for value, end in zip(left, high, strict=True)],
            "arrayminus": [_reach(unit, end, value) for value, end in zip(left, low, strict=True)],
            "color": palette.ink,
            "thickness": 1.2,
            "width": 4,
        },
        customdata=[
            [name, *(unit.of(value) for value in ends)]
            for name, *ends in zip(names, low, high, strict=True)
        ],
        text=[f"{unit.of(value):.{unit.decimals}f}" for value in left],
        textposition="inside",
        insidetextanchor="start",
        insidetextfont={
            "color": [palette.on_idle if bound else palette.on_compute for bound in bounds],
            "size": 11,
        },
        hovertemplate=f"%{{customdata[0]}}<br>step: %{{x:{unit.hover}}} {unit.name} "
        f"(%{{customdata[1]:{unit.hover}}} to %{{customdata[2]:{unit.hover}}})<extra></extra>",
    )
    drawn.add_bar(
        orientation="h",
        x=[unit.of(value) for value in saved],
        y=rows,
        customdata=names,
        marker={
            "color": palette.overlapped,
            "pattern": {"shape": "/", "size": 5, "solidity": 0.25, "fgcolor": palette.gain},
        },
        hovertemplate=f"%{{customdata}}<br>saves %{{x:{unit.hover}}} {unit.name} a step"
        "<extra></extra>",
    )
    return drawn


def _reach(unit: Unit, low: float, high: float) -> float:
    reach = high - low
    return 0.0 if math.isnan(reach) else max(reach, 0.0) / unit.nanoseconds


def _drawn(tables: Tables, context: FigureContext) -> Figure | Unavailable:
    stairs = tables["staircase"]
    if isinstance(stairs, Unavailable):
        return stairs
    titles = [plain(", ".join(split(title)), _LONGEST) for title in stairs.texts("title")]
    titles[0] = "now, without the profiler"
    return draw(stairs, titles, unit_of(scale_of(stairs)), context.palette)


FIGURE = FigureDefinition(
    "staircase",
    "From today's step to the bound",
    "Each row applies its change and all above it together. Hatched: what its change takes "
    "off. Lines: the range of the step. Grey: bounds that no change reaches.",
    _drawn,
    {"staircase": ("staircase", {"most": 4, "quick": True})},
)
