"""Records as CSV: a row each, unknown empty, times exact decimals."""

from __future__ import annotations

import csv
import io
from typing import Any

from diagnose.reporters._records import Record


def csv_text(records: list[Record]) -> str:
    """All records under the first one's keys; nothing at all for no record."""
    if not records:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(records[0])
    for record in records:
        writer.writerow("" if value is None else _cell(value) for value in record.values())
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        # A spreadsheet would run a cell that begins like a formula.
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    return bytes(value).decode()
