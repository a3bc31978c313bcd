"""Predictions, stairs and changes as machines read them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.reporters._records import Record, records
from diagnose.trace import Table
from diagnose.wording.changes import default_of, split

if TYPE_CHECKING:
    from diagnose.replay.change import Change

_PREDICTION_KEYS = {
    "num_steps": "num_steps",
    "measured_step_ns": "measured_step_us",
    "replayed_step_ns": "replayed_step_us",
    "repeated_step_ns": "repeated_step_us",
    "fidelity_pct": "fidelity_pct",
    "unexplained_pct": "unexplained_pct",
    "now_low_ns": "now_low_us",
    "now_ns": "now_us",
    "now_high_ns": "now_high_us",
    "then_low_ns": "then_low_us",
    "then_ns": "then_us",
    "then_high_ns": "then_high_us",
    "gain_low_ns": "gain_low_us",
    "gain_ns": "gain_us",
    "gain_high_ns": "gain_high_us",
    "basis": "basis",
    "remarks": "remarks",
}
_STAIR_KEYS = {
    "place": "place",
    "change": "change",
    "title": "title",
    "is_bound": "is_bound",
    "added_gain_low_ns": "added_gain_low_us",
    "added_gain_ns": "added_gain_us",
    "added_gain_high_ns": "added_gain_high_us",
}
_LISTS = ("changes", "titles", "change", "title", "basis", "remarks")


def prediction_rows(table: Table) -> list[Record]:
    """A record a prediction; texts of several lines are lists."""
    keys = {"changes": "changes", "titles": "titles", **_PREDICTION_KEYS}
    return [_divided(row) for row in records(table, keys)]


def stair_rows(table: Table) -> list[Record]:
    """A record a stair."""
    keys = {**_STAIR_KEYS, "changes": "changes", **_PREDICTION_KEYS}
    return [_divided(row) for row in records(table, keys)]


def flat_rows(rows: list[Record]) -> list[Record]:
    """The same for CSV: a list is one cell."""
    return [
        {key: " | ".join(value) if isinstance(value, list) else value for key, value in row.items()}
        for row in rows
    ]


def _divided(row: Record) -> Record:
    return row | {key: split(row[key]) for key in _LISTS if key in row}


def change_rows(kinds: Mapping[str, type[Change]]) -> list[Record]:
    """A record a change that exists: how it is written, what it does and assumes."""
    return [
        {
            "id": name,
            "title": kind.title,
            "parameters": _parameters(kind),
            "does": summary(kind),
            "description": description(kind),
            "is_bound": kind.is_bound,
            "searched": kind.searched and not kind.is_bound,
        }
        for name, kind in kinds.items()
    ]


def _parameters(kind: type[Change]) -> list[Record]:
    return [
        {"name": field.name, "default": default_of(field)}
        for field in dataclasses.fields(kind)
        if field.init
    ]


def written(row: Record) -> str:
    """How a change is written with its defaults: ``id:factor=2``; ``name=...``: to be given."""
    fields = [
        f"{p['name']}={'...' if p['default'] is None else p['default']}" for p in row["parameters"]
    ]
    return f"{row['id']}:{','.join(fields)}" if fields else str(row["id"])


def summary(kind: type[Change]) -> str:
    """The first sentence of its docstring, for reading: without the marks of literals."""
    return _said(inspect.cleandoc(kind.__doc__ or "").split("\n\n", 1)[0])


def description(kind: type[Change]) -> str:
    """The rest of its docstring, a paragraph a line."""
    rest = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[1:]
    return "\n".join(map(_said, rest))


def _said(paragraph: str) -> str:
    return " ".join(paragraph.replace("``", "").split())
