"""What ``diagnose ranks`` prints: who is late, what it costs, clocks, matching, bandwidth."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from diagnose.analyzers._lanes import Unmatched
from diagnose.analyzers.clocks import Alignment
from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about
from diagnose.reporters._figures import MOST_ROWS, Figure, headings_of, rows_of, time
from diagnose.reporters._places import Places
from diagnose.reporters._rank_records import rank_document, rank_rows
from diagnose.reporters._rank_sheets import rank_sheet
from diagnose.reporters._records import encode
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters._verdict import straggler_sentences
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, counted, percent, rate, scale_for
from diagnose.wording.plain import plain

_NAME_WIDTH = 24
_MOST_SIZES = 12


def write(diagnosis: Diagnosis, form: str, page: Page) -> str:
    """The tables across ranks as ``text``, ``csv`` (the ranks alone) or ``json``."""
    if form == "csv":
        return csv_text(rank_rows(diagnosis))
    if form == "json":
        return encode(rank_document(diagnosis))
    return _text(diagnosis, page)


def _text(diagnosis: Diagnosis, page: Page) -> str:
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    console.print()
    for sentence in straggler_sentences(diagnosis.trace, diagnosis.tables["stragglers"]):
        wrapped(console, plain(sentence, unicode=page.unicode), page)
    for sheet in _sheets(diagnosis, page):
        console.print()
        draw(console, sheet, page)
    for sentence in (*_clock_sentence(diagnosis), *_missing(diagnosis)):
        console.print()
        wrapped(console, plain(sentence, unicode=page.unicode), page)
    return out.getvalue()


def _missing(diagnosis: Diagnosis) -> Iterator[str]:
    for name, reason in diagnosis.unavailable.items():
        yield f"{name}: not available. {reason.because}. {reason.remedy}".strip()


def _sheets(diagnosis: Diagnosis, page: Page) -> Iterator[Sheet]:
    table = diagnosis.tables["ranks"]
    scale = scale_for(int(max(table["busy_ns"].max(initial=0), table["wait_ns"].max(initial=0))))
    places = Places(diagnosis.trace, unicode=page.unicode)
    yield rank_sheet(table, scale, places)
    clocks = diagnosis.tables.get("clocks")
    if clocks is not None and len(np.unique(clocks["clock"])) > 1:
        yield _clocks(diagnosis, clocks)
    unmatched = diagnosis.tables.get("unmatched")
    if unmatched is not None and len(unmatched):
        yield _unmatched(unmatched, scale, places)
    if (bandwidth := diagnosis.tables.get("transfer_bandwidth")) is not None:
        yield _bandwidth(bandwidth, page)


def _clocks(diagnosis: Diagnosis, table: Table) -> Sheet:
    names = [alignment.name.lower() for alignment in Alignment]
    worst = np.argsort(-np.nan_to_num(table["residual_p95_ns"]), kind="stable")
    chosen = sorted(worst[:MOST_ROWS].tolist())
    rows = [
        (
            diagnosis.trace.sources[int(table["source"][row])].label,
            names[int(table["alignment"][row])],
            ABSENT if table["offset_ns"][row] == NULL else f"{table['offset_ns'][row] / 1e3:,.1f}",
            f"{1e6 * table['drift'][row]:.2f}",
            f"{table['num_collectives'][row]:,}",
            _us(float(table["residual_p95_ns"][row])),
        )
        for row in chosen
    ]
    headings = (
        Heading("source", left=True),
        Heading("alignment", left=True),
        Heading("offset", "us"),
        Heading("drift", "ppm"),
        Heading("collectives"),
        Heading("residual", "us, 95 %"),
    )
    title = "Clocks" if len(table) <= MOST_ROWS else f"Clocks: the {MOST_ROWS} least certain"
    notes = (
        "residual: how far its collectives' ends are from their common end; arrivals compare as "
        "well as that."
    )
    return Sheet(title, headings, tuple(rows), footnotes=(notes,))


def _us(nanoseconds: float) -> str:
    return ABSENT if nanoseconds != nanoseconds else f"{nanoseconds / 1e3:,.1f}"


def _clock_sentence(diagnosis: Diagnosis) -> Iterator[str]:
    table = diagnosis.tables.get("clocks")
    if table is None:
        return
    bad = [a for a in (Alignment.DOUBTFUL, Alignment.IMPOSSIBLE) if (table["alignment"] == a).any()]
    for alignment in bad:
        number = int((table["alignment"] == alignment).sum())
        yield (
            f"Warning: the clocks of {counted(number, 'source')} could not be aligned"
            + (" well" if alignment is Alignment.DOUBTFUL else "")
            + "; who came last there is not to be trusted."
        )
    if len(np.unique(table["clock"])) == 1:
        worst = _us(float(np.nan_to_num(table["residual_p95_ns"]).max()))
        yield (
            "All ranks share one clock; the ends of matched collectives agree within "
            f"{worst} us (95 %)."
        )
    unmatched = diagnosis.tables.get("unmatched")
    if unmatched is not None and not len(unmatched):
        yield "Every communication kernel was matched across ranks."


def _unmatched(table: Table, scale: Scale, places: Places) -> Sheet:
    names = [reason.name.lower().replace("_", " ") for reason in Unmatched]
    figures = [
        Figure(Heading("operations"), table["num_ops"], lambda n: f"{n:,}"),
        time(table, "kernel_time_ns", "time", scale),
    ]
    order = np.argsort(-table["kernel_time_ns"], kind="stable")[:MOST_ROWS].tolist()
    cells = rows_of(table, figures, order, places)
    reasons = [names[int(table["reason"][row])] for row in order]
    rows = tuple((*row, reason) for row, reason in zip(cells, reasons, strict=True))
    headings = (*headings_of(places, figures), Heading("why", left=True))
    return Sheet("Not matched across ranks", headings, rows)


def _bandwidth(table: Table, page: Page) -> Sheet:
    linked = bool(table.known("of_link_pct").any())
    order = np.argsort(-(table["median_transfer_ns"] * table["num_collectives"]), kind="stable")
    shown = order[:_MOST_SIZES].tolist()

    def text(row: int, name: str) -> str:
        code = int(table[name][row])
        if code < 0:
            return ABSENT
        return plain(table.strings[code], _NAME_WIDTH, unicode=page.unicode)

    rows = [
        (
            text(row, "collective"),
            f"{int(table['bytes'][row]):,}",
            text(row, "group"),
            ABSENT if table["group_size"][row] == NULL else f"{int(table['group_size'][row]):,}",
            f"{int(table['num_collectives'][row]):,}",
            f"{table['median_transfer_ns'][row] / 1e3:,.1f}",
            rate(float(table["median_busbw_gb_per_s"][row])),
            rate(float(table["best_busbw_gb_per_s"][row])),
            percent(float(table["of_run_best_pct"][row])),
            *([percent(float(table["of_link_pct"][row]))] if linked else []),
        )
        for row in shown
    ]
    headings = [
        Heading("collective", left=True),
        Heading("size", "bytes"),
        Heading("group", left=True, spare=2),
        Heading("ranks", spare=1),
        Heading("count"),
        Heading("transfer", "median us"),
        Heading("busbw", "median GB/s"),
        Heading("busbw", "best GB/s"),
        Heading("median", "% of best"),
        *([Heading("median", "% of link")] if linked else []),
    ]
    title = "Bandwidth of the transfer, waiting taken out"
    if len(order) > len(shown):
        title += f": the {len(shown)} of {len(order)} kinds and sizes that took most time"
    note = "busbw as in nccl-tests; GB = 10^9 bytes; best: of any group of this run at that size."
    return Sheet(title, tuple(headings), tuple(rows), footnotes=(note,))
