"""What ``diagnose power`` prints: power, energy and clocks of each GPU, then split one way."""

from __future__ import annotations

import io

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about, unavailable_sentences
from diagnose.reporters._places import Places
from diagnose.reporters._power_records import class_rows, gpu_rows, reason_rows, step_rows
from diagnose.reporters._power_sentences import sentences
from diagnose.reporters._power_sheets import class_sheet, gpu_sheet, reason_sheet, step_sheet
from diagnose.reporters._records import encode
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1
_ROWS = {"class": class_rows, "step": step_rows, "reason": reason_rows}
_SENTENCE = 600


def write(diagnosis: Diagnosis, by: str, form: str, page: Page) -> str:
    """The tables ``summary``, ``classes``, ``steps`` and ``reasons`` as text, CSV or JSON."""
    if form == "csv":
        return csv_text(_ROWS[by](diagnosis))
    if form == "json":
        rows = {name: make(diagnosis) for name, make in _ROWS.items()}
        document = {
            "schema_version": SCHEMA_VERSION,
            "gpus": gpu_rows(diagnosis),
            "classes": rows["class"],
            "steps": rows["step"],
            "reasons": rows["reason"],
        }
        return encode(document)
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    places = Places(diagnosis.trace, unicode=page.unicode)
    sheets = {"class": class_sheet, "step": step_sheet, "reason": reason_sheet}[by]
    for sheet in (gpu_sheet(diagnosis.tables["summary"], places), sheets(diagnosis, places)):
        console.print()
        draw(console, sheet, page)
    console.print()
    said = [plain(sentence, _SENTENCE, unicode=page.unicode) for sentence in sentences(diagnosis)]
    for sentence in said:
        wrapped(console, sentence, page)
    for sentence in unavailable_sentences(diagnosis, unicode=page.unicode):
        console.print()
        wrapped(console, sentence, page)
    return out.getvalue()
