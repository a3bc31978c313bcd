"""What ``diagnose contention`` prints: what overlap costs, what it rests on, whether it paid."""

from __future__ import annotations

import io
from collections.abc import Iterator

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._contention_records import document, rows
from diagnose.reporters._contention_sentences import sentences
from diagnose.reporters._contention_sheets import (
    balance_sheet,
    causes_sheet,
    communication_sheet,
    kernel_sheet,
    total_sheet,
)
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about
from diagnose.reporters._records import encode
from diagnose.reporters._sheet import Sheet
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1


def write(diagnosis: Diagnosis, by: str, alone: str | None, form: str, page: Page) -> str:
    """The tables of ``diagnose.contention`` as text, CSV (the rows) or JSON.

    ``alone``: the path of the recording that twins are from, if they are from another.
    """
    if form == "csv":
        return csv_text(rows(diagnosis, by))
    if form == "json":
        return encode({"schema_version": SCHEMA_VERSION, **document(diagnosis, by, alone)})
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    if alone is not None:
        wrapped(console, f"alone: {plain(alone, unicode=page.unicode)}", page)
    console.print()
    for sentence in sentences(diagnosis, by_step=by == "step" or alone is not None):
        wrapped(console, sentence, page)
    for sheet in _sheets(diagnosis, by, alone, page):
        console.print()
        draw(console, sheet, page)
    missing = diagnosis.unavailable.get("communication")
    if missing is not None:
        console.print()
        said = f"Collectives beside compute: not compared, {missing.because}. To have it: "
        wrapped(console, plain(said + missing.remedy, unicode=page.unicode), page)
    return out.getvalue()


def _sheets(diagnosis: Diagnosis, by: str, alone: str | None, page: Page) -> Iterator[Sheet]:
    if by == "kernel":
        yield kernel_sheet(diagnosis, page)
    elif by != "step":
        yield total_sheet(diagnosis, by, page)
    yield balance_sheet(diagnosis, page, steps=by == "step" or alone is not None)
    if by == "collective":
        yield causes_sheet(diagnosis, page)
    if "communication" in diagnosis.tables:
        yield communication_sheet(diagnosis, page)
