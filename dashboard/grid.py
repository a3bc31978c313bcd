"""A table of an analysis as a grid to sort, filter and scroll. Numbers stay numbers.

A column's unit is the end of its name, as everywhere (``diagnose.schema``): times are
shown in the unit that the page's figures have. What is unknown is an empty cell, and a
column of which nothing is known is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_ag_grid as dag
import numpy as np
from dash import html

from dashboard import text
from dashboard.shown import Shown
from dashboard.view import Component
from diagnose.trace import Table

_MOST_ROWS = 20_000
_ROW_HEIGHT = 32
_WHOLE_ROWS = 14
"""Up to so many rows a grid is as high as they are; a longer one scrolls."""
_SCROLLED_HEIGHT = 500
_NUMBER_WIDTH = 104
_CHARACTER_WIDTH = 7.4
_FILTER_WIDTH = 24
"""Of the button in a heading."""
_MOST_WIDTH = 300
_UNITS = {
    "_pct": ("%", 1),
    "_gb_per_s": ("GB/s", 1),
    "_w": ("W", 1),
    "_j": ("J", 2),
    "_mhz": ("MHz", 0),
    "_c": ("°C", 0),
    "_hz": ("Hz", 1),
    "_ratio": ("", 3),
}


@dataclass(frozen=True)
class Column:
    """A column to show. ``value`` gives the cells where they are not the column's own.

    ``words`` say what the values of a column of choices mean; ``wide`` columns take the room
    that others leave; ``signed`` figures are changes.
    """

    name: str
    title: str
    value: Callable[[Table], Sequence[Any]] | None = None
    decimals: int | None = None
    wide: bool = False
    words: Mapping[Any, str] | None = None
    signed: bool = False


def gpu_column(shown: Shown) -> Column:
    """Which GPU a row is about."""

    def value(table: Table) -> list[str]:
        pairs = zip(table["source"].tolist(), table["device"].tolist(), strict=True)
        return [shown.labels.get(pair, "") for pair in pairs]

    return Column("gpu", "GPU", value)


def step_column(shown: Shown, none: str = "no step") -> Column:
    """Which step a row is about; ``none`` where it is about no single one."""

    def value(table: Table) -> list[str]:
        names = shown.trace.steps.texts("name")
        return [
            (names[row] or f"step {row}") if 0 <= row < len(names) else none
            for row in table["step_row"].tolist()
        ]

    return Column("step", "step", value)


def grid(shown: Shown, table: Table, columns: Sequence[Column], name: str) -> Component:
    """A grid of the rows of a table; ``name`` is its id."""
    taken = table if len(table) <= _MOST_ROWS else table.take(slice(0, _MOST_ROWS))
    made = [(column.name, *_made(shown, taken, column)) for column in columns]
    known = [one for one in made if any(value not in (None, "") for value in one[2])]
    rows: list[dict[str, Any]] = [{"row": at} for at in range(len(taken))]
    for field, _, values in known:
        for row, value in zip(rows, values, strict=True):
            row[field] = value
    scrolls = len(rows) > _WHOLE_ROWS
    drawn = dag.AgGrid(
        id=name,
        rowData=rows,
        columnDefs=[definition for _, definition, _ in known],
        defaultColDef={
            "sortable": True,
            "filter": scrolls,
            "resizable": True,
            "wrapHeaderText": True,
            "autoHeaderHeight": True,
        },
        dashGridOptions={
            "domLayout": "normal" if scrolls else "autoHeight",
            "rowHeight": _ROW_HEIGHT,
            "animateRows": False,
            "suppressCellFocus": True,
            "enableCellTextSelection": True,
            "tooltipShowDelay": 300,
        },
        dangerously_allow_code=False,
        className="ag-theme-quartz grid",
        style={"height": _SCROLLED_HEIGHT if scrolls else None},
    )
    if len(taken) == len(table):
        return drawn
    said = f"The first {_MOST_ROWS:,} of {len(table):,} rows."
    return html.Div([drawn, html.P(said, className="muted")])


def _made(shown: Shown, table: Table, column: Column) -> tuple[dict[str, Any], list[Any]]:
    """The definition of a column and its cells."""
    definition: dict[str, Any] = {"field": column.name, "headerName": column.title}
    texts = _texts(table, column)
    if texts is not None:
        return definition | _text_width(column, texts, filters=len(table) > _WHOLE_ROWS), texts
    values, unit, decimals = _numbers(shown, table, column)
    sign = "+" if column.signed else ""
    written = f"d3.format('{sign},.{decimals}f')"
    head = f"{column.title} ({unit})" if unit else column.title
    word = max(map(len, head.split()), default=0)
    definition |= {
        "headerName": head,
        "type": "rightAligned",
        "flex": 1,
        "minWidth": max(_NUMBER_WIDTH, round(_CHARACTER_WIDTH * word + 44)),
        "filter": "agNumberColumnFilter" if len(table) > _WHOLE_ROWS else False,
        "valueFormatter": {"function": f"params.value == null ? '' : {written}(params.value)"},
    }
    return definition, values


def _texts(table: Table, column: Column) -> list[Any] | None:
    """The cells of a column of texts; None: it has numbers."""
    if column.value is not None:
        return [_text(value) for value in column.value(table)]
    described = table.schema.column(column.name)
    if described.text:
        return [_text(value) for value in table.texts(column.name)]
    if described.choices is None:
        return None
    words = column.words or {
        choice.value: choice.name.lower().replace("_", " ") for choice in described.choices
    }
    return [words.get(value) for value in table[column.name].tolist()]


def _text_width(column: Column, texts: Sequence[Any], *, filters: bool) -> dict[str, Any]:
    """As wide as its longest text, so that the rest is left to numbers; a wide one takes more."""
    head = _CHARACTER_WIDTH * len(column.title) + (_FILTER_WIDTH if filters else 0)
    longest = max((len(str(text)) for text in texts if text is not None), default=0)
    width = round(min(max(_CHARACTER_WIDTH * longest, head) + 40, _MOST_WIDTH))
    shape = {"flex": 4, "minWidth": min(width, 260)} if column.wide else {"width": width}
    return {**shape, "tooltipField": column.name}


def _numbers(shown: Shown, table: Table, column: Column) -> tuple[list[Any], str, int]:
    raw = table[column.name]
    known = table.known(column.name)
    factor, unit, decimals = 1.0, "", 0 if raw.dtype.kind in "iub" else 3
    if column.name.endswith("_ns"):
        factor, unit, decimals = 1 / shown.unit.nanoseconds, shown.unit.name, shown.unit.decimals
    else:
        for suffix, (name, digits) in _UNITS.items():
            if column.name.endswith(suffix):
                unit, decimals = name, digits
    if column.decimals is not None:
        decimals = column.decimals
    scaled = np.where(known, raw.astype(np.float64) * factor, np.nan)
    # What reads as zero is zero: the page would write it with a minus.
    scaled[np.abs(scaled) < 0.5 / 10**decimals] = 0.0
    return [None if math.isnan(value) else value for value in scaled.tolist()], unit, decimals


def _text(value: Any) -> Any:
    return text.shown(value) if isinstance(value, str) else value
