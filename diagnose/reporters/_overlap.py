"""The table of ``diagnose overlap``: the same rows as text, CSV or JSON."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._figures import Figure, headings_of, rows_of, share, time
from diagnose.reporters._places import Places
from diagnose.reporters._records import MEASURES, Record, encode, paths, records, step_names, values
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters._timeline import IN_DOUBT, WAITING
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, scale_for
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1
_KEY_COLUMN = {"step": "step_row", "stream": "stream", "group": "group", "collective": "collective"}
_LABEL = {"group": "process group"}
_NAME_WIDTH = 32


def write(diagnosis: Diagnosis, by: str, form: str, page: Page) -> str:
    """The table ``overlap`` of a diagnosis as ``text``, ``csv`` or ``json``."""
    if form == "csv":
        return csv_text(rows(diagnosis, by))
    if form == "json":
        return encode({"schema_version": SCHEMA_VERSION, "by": by, "rows": rows(diagnosis, by)})
    return _text(diagnosis, by, page)


def rows(diagnosis: Diagnosis, by: str) -> list[Record]:
    """Each row with its place, its key (none for ``by="rank"``) and its measures."""
    table = diagnosis.tables["overlap"]
    keys: Mapping[str, str] = {c: k for c, k in MEASURES.items() if c not in _absent(by)}
    where = records(table, {"rank": "rank", "device": "device"})
    key = _key(diagnosis, table, by)
    described = zip(where, paths(diagnosis.trace, table), key, records(table, keys), strict=True)
    return [{**place, "source": path, **label, **row} for place, path, label, row in described]


def _absent(by: str) -> tuple[str, ...]:
    """Columns that have no meaning for rows of this kind."""
    if by == "rank":
        return ("step_ns",)
    if by == "step":
        return ("window_ns",)
    alone = () if by == "stream" else ("compute_ns", "memory_ns", "overlap_of_compute_pct")
    return ("window_ns", "idle_ns", "step_ns", *alone)


def _key(diagnosis: Diagnosis, table: Table, by: str) -> list[Record]:
    if by == "rank":
        return [{}] * len(table)
    labels: list[Any]
    if by == "step":
        labels = list(step_names(diagnosis.trace, table))
    else:
        labels = values(table, _KEY_COLUMN[by])
    return [{by: label} for label in labels]


def _text(diagnosis: Diagnosis, by: str, page: Page) -> str:
    from diagnose.reporters._document import about, longest_window
    from diagnose.reporters.text import console_for, draw, wrapped

    table = diagnosis.tables["overlap"]
    scale = scale_for(longest_window(diagnosis) or int(table["busy_ns"].max(initial=0)))
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    console.print()
    draw(console, _sheet(diagnosis, table, by, scale, page), page)
    quality = diagnosis.quality
    if quality.verdict != "good":
        console.print()
        codes = ", ".join(sorted({note.code for note in quality.reasons}))
        said = f"Trace quality: {quality.verdict} ({codes}). `diagnose info` says why."
        wrapped(console, said, page)
    return out.getvalue()


def _sheet(diagnosis: Diagnosis, table: Table, by: str, scale: Scale, page: Page) -> Sheet:
    places = Places(diagnosis.trace, unicode=page.unicode)
    last = {"rank": ("window_ns", "window"), "step": ("step_ns", "step time")}.get(by)
    figures: list[Figure] = [time(table, *last, scale)] if last else []
    communicates = by in ("group", "collective")
    if not communicates:
        figures.append(time(table, "compute_ns", "compute", scale))
    figures += [
        time(table, "communication_ns", "comm.", scale),
        time(table, "overlapped_ns", "hidden", scale),
        time(table, "exposed_communication_ns", "exposed*", scale),
        share(table, "overlap_pct", "hidden", "% of comm."),
    ]
    if not communicates:
        figures.append(time(table, "memory_ns", "copies", scale, spare=2))
        figures.append(time(table, "busy_ns", "busy", scale, spare=1))
    if by in ("rank", "step"):
        figures.append(time(table, "idle_ns", "idle", scale))
    footnotes: tuple[str, ...] = (*places.footnotes, WAITING)
    if (table["uncertain_ns"] > 0).any():
        footnotes += (IN_DOUBT,)
        figures.append(time(table, "uncertain_ns", "in doubt", scale))
    cells = rows_of(table, figures, list(range(len(table))), places)
    headings = list(headings_of(places, figures))
    if by != "rank":
        at = len(places.headings)
        labels = _labels(table, by, places, page)
        cells = [(*r[:at], label, *r[at:]) for r, label in zip(cells, labels, strict=True)]
        headings.insert(at, Heading(_LABEL.get(by, by), left=by != "stream"))
    title = f"Overlap by {by}" if by != "rank" else "Overlap by rank and GPU"
    return Sheet(title, tuple(headings), tuple(cells), footnotes=footnotes)


def _labels(table: Table, by: str, places: Places, page: Page) -> list[str]:
    if by == "step":
        return [places.step(row) for row in table["step_row"].tolist()]
    shown = values(table, _KEY_COLUMN[by])
    return [
        ABSENT if v is None else plain(str(v), _NAME_WIDTH, unicode=page.unicode) for v in shown
    ]
