"""What ``diagnose stalls`` prints: why each GPU stood still, and which host calls waited."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._causes import CAUSE_LABELS, FIRST_COPY
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about, unavailable_sentences
from diagnose.reporters._format import Scale, percent, scale_for
from diagnose.reporters._host_waits import wait_records, wait_sheet
from diagnose.reporters._places import Places
from diagnose.reporters._plain import plain
from diagnose.reporters._records import encode
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters._stall_records import (
    cause_rows,
    gpu_rows,
    interval_rows,
    named,
    step_rows,
)
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.trace import Strings, Table

SCHEMA_VERSION = 1
_MOST_GPUS = 8
_MOST_CAUSES = 10
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
    sheets = {"cause": _by_cause, "step": _by_step, "interval": _by_interval}[by]
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


def _by_cause(diagnosis: Diagnosis, page: Page) -> Iterator[Sheet]:
    """A sheet a GPU; of many GPUs one sheet of their sum."""
    gpus, sites = diagnosis.trace.gpus, diagnosis.tables["sites"]
    if len(gpus) > _MOST_GPUS:
        everything = np.ones(len(sites), bool)
        yield _cause_sheet(sites, everything, f"All {len(gpus):,} GPUs together", page)
        return
    for gpu in gpus:
        own = (sites["source"] == gpu.source) & (sites["device"] == gpu.device)
        label = f"{diagnosis.trace.sources[gpu.source].label}, GPU {gpu.device}"
        yield _cause_sheet(sites, own, plain(label, unicode=page.unicode), page)


def _cause_sheet(sites: Table, own: Any, label: str, page: Page) -> Sheet:
    total = int(sites["length_ns"][own].sum())
    copies = own & (sites["cause"] >= FIRST_COPY)
    alone, scale = int(sites["length_ns"][copies].sum()), _scale(sites)
    length = np.bincount(sites["cause"][own], sites["length_ns"][own], minlength=len(Cause))
    notable = np.bincount(sites["cause"][own], sites["notable_ns"][own], minlength=len(Cause))
    order = [code for code in np.lexsort((-length, -notable)).tolist() if length[code]]
    rows = []
    for code in order[:_MOST_CAUSES]:
        mine = np.flatnonzero(own & (sites["cause"] == code))
        rows.append(
            (
                CAUSE_LABELS[Cause(code)],
                scale.show(int(length[code])),
                percent(100 * length[code] / total),
                scale.show(int(notable[code])),
                f"{int(sites['num_intervals'][mine].sum()):,}",
                scale.show(int(sites["longest_ns"][mine].max())),
                Confidence(int(sites["confidence"][mine].min())).name.lower(),
                _evidence(sites, mine, page),
            )
        )
    headings = (
        Heading("cause", left=True),
        Heading("time", scale.unit),
        Heading("share", "%"),
        Heading("> 20 us*", scale.unit),
        Heading("count"),
        Heading("longest", scale.unit),
        Heading("sure", left=True, spare=2),
        Heading("mostly", left=True),
    )
    title = f"Stalls of {label}: {scale.show(total - alone)} {scale.unit} idle"
    title += f" + {scale.show(alone)} {scale.unit} copies alone"
    notes = [
        "* in intervals longer than 20 us, which are no launch latency and no switch: by these the "
        "rows are ordered. mostly: where most of it comes from, and its share."
    ]
    if len(order) > _MOST_CAUSES:
        notes.append(f"and {len(order) - _MOST_CAUSES} more causes: --format csv has all.")
    return Sheet(title, headings, tuple(rows), footnotes=tuple(notes))


def _evidence(sites: Table, rows: Any, page: Page) -> str:
    """The operator and call (or the copy) that most of a cause's time goes to."""
    columns = ("host_op", "call", "operation")
    total: dict[tuple[int, ...], int] = {}
    for row in rows.tolist():
        key = tuple(int(sites[name][row]) for name in columns)
        total[key] = total.get(key, 0) + int(sites["length_ns"][row])
    best = max(total, key=lambda key: total[key])
    shown = _joined(sites.strings, best)
    share = total[best] / max(sum(total.values()), 1)
    if shown and len(total) > 1:
        shown = f"{shown} ({percent(100 * share)} %)"
    return plain(shown, _NAME_WIDTH, unicode=page.unicode)


def _joined(strings: Strings, codes: Sequence[int]) -> str:
    return ", ".join(strings[code] for code in codes if code >= 0)


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
