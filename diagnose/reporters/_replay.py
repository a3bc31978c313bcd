"""What ``diagnose whatif`` prints: a prediction, the staircase, or the changes that exist."""

from __future__ import annotations

import io
from collections.abc import Iterator

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about
from diagnose.reporters._records import Record, encode
from diagnose.reporters._replay_records import (
    flat_rows,
    prediction_rows,
    stair_rows,
    written,
)
from diagnose.reporters._replay_sheets import changes_sheet, prediction_sheet, staircase_sheet
from diagnose.reporters._sheet import Sheet
from diagnose.reporters.markdown import escaped, sheet_lines
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.trace import Table
from diagnose.wording.changes import split
from diagnose.wording.plain import plain
from diagnose.wording.replay import (
    NOTHING_SAVES,
    basis_of,
    fit_sentence,
    remarks_of,
)

SCHEMA_VERSION = 1
_SENTENCE_WIDTH = 600
_HOW = (
    "Written as `--change ID` or `--change ID:FIELD=VALUE,FIELD=VALUE`; what is left out keeps the "
    "default shown, ... has none. What each assumes: `diagnose whatif --list --format json`."
)
_MORE = "What each change does and assumes: `diagnose whatif --list --format json`."


def write(diagnosis: Diagnosis, form: str, page: Page) -> str:
    """The table ``replay`` or ``staircase`` of a diagnosis as text, Markdown, CSV or JSON."""
    stairs = diagnosis.tables.get("staircase")
    table = diagnosis.tables["replay"] if stairs is None else stairs
    predictions = [] if stairs is not None else prediction_rows(table)
    steps = [] if stairs is None else stair_rows(stairs)
    if form == "csv":
        return csv_text(flat_rows(predictions or steps))
    if form == "json":
        return encode(_document(diagnosis, predictions, steps))
    sheet = prediction_sheet(table) if stairs is None else staircase_sheet(stairs, page)
    return _page(diagnosis, table, sheet, form, page)


def write_changes(rows: list[Record], form: str, page: Page) -> str:
    """Every change that exists, as text, Markdown, CSV or JSON."""
    if form == "csv":
        return csv_text([{**row, "parameters": written(row).partition(":")[2]} for row in rows])
    if form == "json":
        return encode(_document(None, [], [], rows))
    if form == "markdown":
        return "\n".join(sheet_lines(changes_sheet(rows, page), page)) + "\n"
    out = io.StringIO()
    console = console_for(out, page)
    for row in rows:
        bound = " (a bound)" if row["is_bound"] else ""
        wrapped(console, plain(written(row) + bound, unicode=page.unicode), page, style="bold")
        wrapped(console, plain(row["does"], unicode=page.unicode), page, first="  ")
    console.print()
    wrapped(console, _HOW, page)
    return out.getvalue()


def _document(
    diagnosis: Diagnosis | None,
    predictions: list[Record],
    stairs: list[Record],
    changes: list[Record] | None = None,
) -> Record:
    return {
        "schema_version": SCHEMA_VERSION,
        "inputs": [] if diagnosis is None else [s.path for s in diagnosis.trace.sources],
        "predictions": predictions,
        "staircase": stairs,
        "changes": changes or [],
    }


def _sentences(table: Table) -> Iterator[str]:
    """What stands below the table: how well it fits and what it rests on."""
    if "place" in table.columns and not (~table["is_bound"][1:]).any():
        yield NOTHING_SAVES
    yield fit_sentence(table)
    last = len(table) - 1
    yield from basis_of(table, last)
    yield from (f"Note: {said}" for said in remarks_of(table, last))
    yield _MORE


def _asked(table: Table) -> list[str]:
    titles, changes = split(table.texts("titles")[0]), split(table.texts("changes")[0])
    return [f"{title} [{change}]" for title, change in zip(titles, changes, strict=True)]


def _page(diagnosis: Diagnosis, table: Table, sheet: Sheet, form: str, page: Page) -> str:
    head = about(diagnosis, unicode=page.unicode)
    asked = [plain(one, _SENTENCE_WIDTH, unicode=page.unicode) for one in _asked(table)]
    said = [plain(one, _SENTENCE_WIDTH, unicode=page.unicode) for one in _sentences(table)]
    if form == "markdown":
        lines = [f"{escaped(line)}  " for line in head]
        lines += ["", *(f"- {escaped(one)}" for one in asked), ""] if asked else [""]
        lines += [*sheet_lines(sheet, page), "", *(f"- {escaped(one)}" for one in said)]
        return "\n".join(lines) + "\n"
    out = io.StringIO()
    console = console_for(out, page)
    for line in head:
        wrapped(console, line, page)
    console.print()
    for one in asked:
        wrapped(console, f"What if: {one}", page)
    if asked:
        console.print()
    draw(console, sheet, page)
    console.print()
    for one in said:
        wrapped(console, one, page)
    return out.getvalue()
