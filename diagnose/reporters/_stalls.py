"""What ``diagnose stalls`` prints: why each GPU stood still, and which host calls waited."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about, unavailable_sentences
from diagnose.reporters._host_waits import wait_records, wait_sheet
from diagnose.reporters._places import Places
from diagnose.reporters._records import encode
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters._stall_records import (
    cause_rows,
    gpu_rows,
    interval_rows,
    named,
    step_rows,
)
from diagnose.reporters._stall_sheets import cause_sheets
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.trace import Table
from diagnose.wording.labels import CAUSE_LABELS
from diagnose.wording.numbers import Scale, scale_for
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1
_MOST_STEPS = 40
_MOST_INTERVALS = 30
_NAME_WIDTH = 44


def write(diagnosis: Diagnosis, by: str, form: str, page: Page) -> str:
    """The tables ``stalls``, ``causes``, ``sites`` and ``host_waits`` as text, CSV or JSON."""
    rows = {"cause": cause_rows, "step": step_rows, "interval": interval_rows}[by]
    if form == "csv":
        return csv_text(rows(diagnosis))
    if form == "json":
        return encode(
            {
                "schema_version": SCHEMA_VERSION,
                "by": by,
                "gpus": gpu_rows(diagnosis),
                "rows": rows(diagnosis),
                "host_waits": wait_records(diagnosis),
            }
        )
    return _text(diagnosis, by, page)


def _text(diagnosis: Diagnosis, by: str, page: Page) -> str:
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    sheets = {"cause": cause_sheets, "step": _by_step, "interval": _by_interval}[by]
    for sheet in sheets(diagnosis, page):
        console.print()
        draw(console, sheet, page)
    waits = wait_sheet(diagnosis, page)
    if waits is not None:
        console.print()
        draw(console, waits, page)
    for sentence in unavailable_sentences(diagnosis, unicode=page.unicode):
        console.print()
        wrapped(console, sentence, page)
    return out.getvalue()


def _scale(table: Table) -> Scale:
    return scale_for(int(table["length_ns"].sum()))


def _by_step(diagnosis: Diagnosis, page: Page) -> Iterator[Sheet]:
    table, places = diagnosis.tables["causes"], Places(diagnosis.trace, unicode=page.unicode)
    scale = _scale(table)
    in_step = table["step_row"] >= 0
    order = np.lexsort(
        (-table["length_ns"], table["step_row"], table["device"], table["source"], ~in_step)
    )
    shown = [row for row in order.tolist() if table["length_ns"][row]][:_MOST_STEPS]
    rows = [
        (
            *places.cells(int(table["source"][row]), int(table["device"][row])),
            places.step(int(table["step_row"][row])),
            CAUSE_LABELS[Cause(int(table["cause"][row]))],
            scale.show(int(table["length_ns"][row])),
            f"{int(table['num_intervals'][row]):,}",
            scale.show(int(table["longest_ns"][row])),
        )
        for row in shown
    ]
    headings = (
        *places.headings,
        Heading("step", left=True),
        Heading("cause", left=True),
        Heading("time", scale.unit),
        Heading("count"),
        Heading("longest", scale.unit),
    )
    title = "Stalls by step and cause"
    if len(shown) < len(table):
        title += f": {len(shown)} of {len(table):,} rows, --format csv has all"
    note = "step none: outside of all step times."
    yield Sheet(title, headings, tuple(rows), footnotes=(note,))


def _by_interval(diagnosis: Diagnosis, page: Page) -> Iterator[Sheet]:
    table, trace = diagnosis.tables["stalls"], diagnosis.trace
    places = Places(trace, unicode=page.unicode)
    order = np.argsort(-table["length_ns"], kind="stable")[:_MOST_INTERVALS]
    chosen = table.take(order)
    evidence = zip(
        named(trace.host_ops, chosen["host_op_row"]),
        named(trace.launches, chosen["call_row"]),
        named(trace.gpu_ops, chosen["memory_row"]),
        strict=True,
    )
    first = {
        (gpu.source, gpu.device): int(trace.gpu_ops["start_ns"][trace.on(gpu)].min())
        for gpu in trace.gpus
    }
    rows = []
    for row, found in enumerate(evidence):
        gpu = int(chosen["source"][row]), int(chosen["device"][row])
        rows.append(
            (
                *places.cells(*gpu),
                places.step(int(chosen["step_row"][row])),
                f"{(int(chosen['start_ns'][row]) - first[gpu]) / 1e6:.3f}",
                f"{int(chosen['length_ns'][row]) / 1e3:,.1f}",
                CAUSE_LABELS[Cause(int(chosen["cause"][row]))],
                Confidence(int(chosen["confidence"][row])).name.lower(),
                plain(", ".join(filter(None, found)), _NAME_WIDTH, unicode=page.unicode),
            )
        )
    headings = (
        *places.headings,
        Heading("step", left=True),
        Heading("at", "ms"),
        Heading("length", "us"),
        Heading("cause", left=True),
        Heading("sure", left=True, spare=2),
        Heading("evidence", left=True),
    )
    title = f"The {len(rows):,} longest of {len(table):,} intervals"
    note = "at: since the first GPU work of that GPU."
    yield Sheet(title, headings, tuple(rows), footnotes=(note,))
