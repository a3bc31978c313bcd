"""What ``diagnose info`` says of a trace: its sources, its tables, and every note in full."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._document import about, said
from diagnose.reporters._records import encode
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters.json import SCHEMA_VERSION, inputs, notes, verdict
from diagnose.reporters.text import console_for, draw, draw_verdict, wrapped
from diagnose.trace import Note, Source, Trace
from diagnose.wording.numbers import ABSENT, counted, ranges, size
from diagnose.wording.plain import plain, shorten_path

_PATH_WIDTH = 34
_MOST_SOURCES = 64
_SENTENCE_WIDTH = 2000
_MARKED = {"error": "error", "warning": "warning", "info": "note"}


def write(diagnosis: Diagnosis, form: str, page: Page) -> str:
    """The answer as ``text`` or ``json``."""
    trace = diagnosis.trace
    if form == "json":
        return encode(
            {
                "schema_version": SCHEMA_VERSION,
                "inputs": [
                    {**given, "environment": dict(source.environment), "tables": tables}
                    for given, source, tables in zip(
                        inputs(trace), trace.sources, _counts(trace), strict=True
                    )
                ],
                "quality": verdict(diagnosis),
                "notes": notes(trace),
            }
        )
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    draw_verdict(console, diagnosis.quality.verdict)
    console.print()
    draw(console, _sources(trace, page), page)
    for line in _environments(trace, page):
        wrapped(console, line, page)
    console.print()
    if not trace.notes:
        console.print("Nothing was repaired, left out or doubted.")
    for note in sorted(trace.notes, key=lambda note: list(_MARKED).index(note.severity)):
        wrapped(console, _sentence(trace, note, page), page, first=f"{_MARKED[note.severity]}: ")
    return out.getvalue()


def _counts(trace: Trace) -> list[dict[str, Any]]:
    """For each source its devices and the rows of each table."""
    tables = (
        trace.gpu_ops,
        trace.host_ops,
        trace.launches,
        trace.syncs,
        trace.steps,
        trace.samples,
    )
    per_table = {
        table.schema.name: np.bincount(table["source"], minlength=len(trace.sources)).tolist()
        for table in tables
    }
    devices: list[list[int]] = [[] for _ in trace.sources]
    for gpu in trace.gpus:
        devices[gpu.source].append(gpu.device)
    return [
        {"devices": devices[at], **{name: rows[at] for name, rows in per_table.items()}}
        for at in range(len(trace.sources))
    ]


def _sources(trace: Trace, page: Page) -> Sheet:
    rows = []
    for source, held in list(zip(trace.sources, _counts(trace), strict=True))[:_MOST_SOURCES]:
        rows.append(
            (
                shorten_path(source.path, _PATH_WIDTH, unicode=page.unicode),
                ABSENT if source.rank is None else str(source.rank),
                source.rank_origin or ABSENT,
                size(source.num_bytes),
                f"{source.num_events:,}",
                ranges(held["devices"]) or "none",
                f"{held['steps']:,}",
                f"{held['gpu_ops']:,}",
                f"{held['launches']:,}",
                f"{held['host_ops']:,}",
                "yes" if source.complete else "NO",
            )
        )
    headings = (
        Heading("file", left=True),
        Heading("rank"),
        Heading("known from", left=True, spare=1),
        Heading("text"),
        Heading("events"),
        Heading("GPUs"),
        Heading("steps"),
        Heading("GPU ops"),
        Heading("calls", spare=3),
        Heading("host ops", spare=3),
        Heading("whole"),
    )
    footnotes: tuple[str, ...] = ()
    if len(trace.sources) > _MOST_SOURCES:
        more = counted(len(trace.sources) - _MOST_SOURCES, "more file")
        footnotes = (f"and {more}: `--format json` lists them all.",)
    return Sheet("Files", headings, tuple(rows), footnotes=footnotes)


def _environments(trace: Trace, page: Page) -> Iterator[str]:
    """Variables that the processes were started with; ranks that agree share a line."""
    said: dict[str, list[Source]] = {}
    for source in trace.sources:
        variables = source.environment.get("env")
        if isinstance(variables, dict) and variables:
            line = ", ".join(f"{key}={value}" for key, value in sorted(variables.items()))
            said.setdefault(line, []).append(source)
    for line, sources in said.items():
        ranks = [source.rank for source in sources if source.rank is not None]
        who = "" if len(sources) == len(trace.sources) else f" of rank {ranges(ranks)}"
        yield plain(f"Environment{who}: {line}", _SENTENCE_WIDTH, unicode=page.unicode)


def _sentence(trace: Trace, note: Note, page: Page) -> str:
    sentence = f"{said(trace, note)} [{note.code}, {note.count:,}x]"
    return plain(sentence, _SENTENCE_WIDTH, unicode=page.unicode)
