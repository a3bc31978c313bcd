"""The tables of ``diagnose whatif`` before any format draws them."""

from __future__ import annotations

import math

import numpy as np

from diagnose.reporters import Page
from diagnose.reporters._records import Record
from diagnose.reporters._replay_records import written
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.trace import Table
from diagnose.wording.changes import in_full, split
from diagnose.wording.numbers import ABSENT, Scale
from diagnose.wording.plain import plain
from diagnose.wording.replay import scale_of

_CHANGE_WIDTH = 40
_TITLE_WIDTH = 60


def prediction_sheet(table: Table) -> Sheet:
    """One prediction: a step as recorded, as replayed, now, then, and what is saved."""
    scale = scale_of(table)
    rows = [
        ("recorded, with the profiler", *_alone(scale, float(table["measured_step_ns"][0]))),
        ("the same, replayed unchanged", *_alone(scale, float(table["replayed_step_ns"][0]))),
        ("now, without the profiler", *_ends(scale, table, 0, "now"), ""),
    ]
    if table.texts("changes")[0] is not None:
        gain = _percents(table, 0, "gain", float(table["now_ns"][0]))
        rows += [
            ("after the changes", *_ends(scale, table, 0, "then"), ""),
            ("saved", *_ends(scale, table, 0, "gain"), gain),
        ]
    headings = (
        Heading("", left=True),
        Heading("likely", scale.unit),
        Heading("least", scale.unit),
        Heading("most", scale.unit),
        Heading("of now", "%"),
    )
    return Sheet("A step", headings, tuple(rows))


def staircase_sheet(table: Table, page: Page) -> Sheet:
    """The stairs in order, each with the step time after it and what it adds."""
    scale = scale_of(table)
    start = float(table["then_ns"][0])
    changes, titles = ([split(text) for text in table.texts(name)] for name in ("change", "title"))
    bounds = table["is_bound"].tolist()
    rows = []
    for row in range(len(table)):
        label = (
            "the bound"
            if bounds[row]
            else " ".join(map(in_full, changes[row]))
            if row
            else _now(table)
        )
        rows.append(
            (
                plain(label, _CHANGE_WIDTH, unicode=page.unicode),
                *_ends(scale, table, row, "then"),
                *(_ends(scale, table, row, "added_gain") if row else ("", "", "")),
                _percents(table, row, "added_gain", start) if row else "",
                plain(", ".join(titles[row]), _TITLE_WIDTH, unicode=page.unicode),
            )
        )
    headings = (
        Heading("change", left=True),
        Heading("step", scale.unit),
        Heading("least", scale.unit),
        Heading("most", scale.unit),
        Heading("saves", scale.unit),
        Heading("least", scale.unit),
        Heading("most", scale.unit),
        Heading("saves", "%", spare=2),
        Heading("which means", left=True, spare=3),
    )
    notes = [
        "Each row is the step with its change and those of all rows above applied together; "
        "saves: less than the row before, % of the first row."
    ]
    for row in np.flatnonzero(bounds).tolist():
        said = f"the bound ({' and '.join(changes[row])}): {' and '.join(titles[row])}."
        notes.append(plain(said, unicode=page.unicode))
    return Sheet("From today's step to the bound", headings, tuple(rows), footnotes=tuple(notes))


def changes_sheet(rows: list[Record], page: Page) -> Sheet:
    """Every change that exists, as it is written, and what it does."""
    shown = tuple(
        (
            plain(written(row), unicode=page.unicode),
            "bound" if row["is_bound"] else "yes" if row["searched"] else "",
            plain(row["does"], unicode=page.unicode),
        )
        for row in rows
    )
    headings = (
        Heading("change with its defaults", left=True),
        Heading("searched", left=True),
        Heading("what changes", left=True),
    )
    return Sheet("Changes", headings, shown)


def _now(table: Table) -> str:
    given = ", ".join(split(table.texts("changes")[0]))
    return f"after {given}" if given else "now, without the profiler"


def _alone(scale: Scale, value: float) -> tuple[str, str, str, str]:
    return (_shown(scale, value), "", "", "")


def _ends(scale: Scale, table: Table, row: int, name: str) -> tuple[str, str, str]:
    likely, low, high = (
        _shown(scale, float(table[f"{name}{end}"][row])) for end in ("_ns", "_low_ns", "_high_ns")
    )
    return likely, low, high


def _shown(scale: Scale, value: float) -> str:
    return ABSENT if math.isnan(value) else scale.show(round(value))


def _percents(table: Table, row: int, name: str, whole: float) -> str:
    part = float(table[f"{name}_ns"][row])
    return ABSENT if math.isnan(part) or not whole > 0 else f"{100 * part / whole:.1f}"
