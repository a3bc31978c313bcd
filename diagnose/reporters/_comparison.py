"""What ``diagnose compare`` prints: a verdict, and what changed in each area."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from diagnose.analyzers._gate import Gate, gate
from diagnose.analyzers._noise import Judgement
from diagnose.analyzers._step_figures import HIDDEN
from diagnose.analyzers.comparison import Area
from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about
from diagnose.reporters._records import Record, encode, records
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.schema import NULL
from diagnose.wording.comparison import DERIVED, Changes, verdict_sentences
from diagnose.wording.labels import cause_label
from diagnose.wording.numbers import ABSENT, percent
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1
COMPARISON_KEYS = {
    "name": "name",
    "bytes": "bytes",
    "rank": "rank",
    "before_ns": "before_us",
    "after_ns": "after_us",
    "change_ns": "change_us",
    "change_pct": "change_pct",
    "noise_ns": "noise_us",
    "before_count": "before_count",
    "after_count": "after_count",
    "before_overlap_pct": "before_overlap_pct",
    "after_overlap_pct": "after_overlap_pct",
    "before_steps": "before_steps",
    "after_steps": "after_steps",
}
_MOST_ROWS = 8
_NAME_WIDTH = 46
_SIGNS = {Judgement.BEYOND: "beyond", Judgement.WITHIN: "within", Judgement.UNKNOWN: "unknown"}
_TITLES = {
    Area.STALL: "Stalls and copies alone, by cause",
    Area.COLLECTIVE: "Collectives*",
    Area.KERNEL: "Kernels, copies and fills",
}


def write(
    before: Diagnosis, after: Diagnosis, form: str, page: Page, limit_pct: float | None
) -> str:
    """The comparison, which ``before`` holds under ``comparison``, as text, CSV or JSON."""
    changes = Changes(before.tables["comparison"])
    if form == "csv":
        return csv_text(rows(changes))
    if form == "json":
        return encode(_document(before, after, changes, limit_pct))
    return _text(before, after, changes, page, limit_pct)


def rows(changes: Changes) -> list[Record]:
    """A record a row of the comparison, in its order."""
    table = changes.table
    areas = [Area(code).name.lower() for code in table["area"].tolist()]
    judged = [Judgement(code).name.lower() for code in table["judgement"].tolist()]
    return [
        {"area": area, **row, "judgement": judgement}
        for area, row, judgement in zip(areas, records(table, COMPARISON_KEYS), judged, strict=True)
    ]


def _document(
    before: Diagnosis, after: Diagnosis, changes: Changes, limit_pct: float | None
) -> Record:
    return {
        "schema_version": SCHEMA_VERSION,
        "before": [source.path for source in before.trace.sources],
        "after": [source.path for source in after.trace.sources],
        "verdict": verdict_sentences(changes),
        "regression_limit_pct": limit_pct,
        "regression": None if limit_pct is None else gate(changes.table, limit_pct).name.lower(),
        "rows": rows(changes),
    }


def gate_sentence(changes: Changes, limit_pct: float) -> str:
    """What the limit on the step time says, as one sentence."""
    said = {
        Gate.PASSED: f"Passed: the step time grew by no more than {limit_pct:g} %.",
        Gate.WITHIN_NOISE: f"Passed, but not proven: the step time grew by more than "
        f"{limit_pct:g} %, which the noise of so few steps could explain. Record more steps.",
        Gate.REGRESSED: f"Failed: the step time grew by more than {limit_pct:g} % "
        "and by more than the noise.",
        Gate.UNKNOWN: "Not judged: the step time or its noise is not known.",
    }
    return said[gate(changes.table, limit_pct)]


def _text(
    before: Diagnosis, after: Diagnosis, changes: Changes, page: Page, limit_pct: float | None
) -> str:
    out = io.StringIO()
    console = console_for(out, page)
    for label, diagnosis in (("before", before), ("after", after)):
        for number, line in enumerate(about(diagnosis, unicode=page.unicode)[:2]):
            wrapped(console, line, page, first=f"{label + ':' if not number else '':8}")
    console.print()
    sentences = verdict_sentences(changes)
    if limit_pct is not None:
        sentences.append(gate_sentence(changes, limit_pct))
    for sentence in sentences:
        wrapped(console, plain(sentence, unicode=page.unicode), page)
    for sheet in _sheets(changes, page):
        console.print()
        draw(console, sheet, page)
    console.print()
    for footnote in _footnotes(before, after, changes):
        wrapped(console, footnote, page, style="dim")
    return out.getvalue()


def _footnotes(before: Diagnosis, after: Diagnosis, changes: Changes) -> Iterator[str]:
    yield (
        "Times are per step: the mean over GPUs, then the median over steps. noise: 95 % band of "
        "the change from the spread over steps; with two or three steps it is wide, one row in "
        "twenty lies beyond it by chance, and what differs from run to run is not in it."
    )
    yield "* a collective's kernel time includes waiting for late ranks."
    for label, diagnosis in (("before", before), ("after", after)):
        verdict = diagnosis.quality.verdict
        if verdict != "good":
            codes = ", ".join(sorted({note.code for note in diagnosis.quality.reasons}))
            yield f"{label}: trace quality: {verdict} ({codes}). `diagnose info` says why."
    if not len(changes.of(Area.STALL)):
        yield "Stalls are not compared: no step of one recording has a time."


def _headings(changes: Changes, first: Heading, *, counts: bool) -> tuple[Heading, ...]:
    unit = changes.scale.unit
    return (
        first,
        *((Heading("count", "before", spare=1), Heading("count", "after", spare=1)) * counts),
        Heading("before", unit),
        Heading("after", unit),
        Heading("change", unit),
        Heading("change", "%", spare=2),
        Heading("noise", f"+-{unit}"),
        Heading("change is", "the noise", left=True),
    )


def _sheets(changes: Changes, page: Page) -> Iterator[Sheet]:
    yield _measures(changes)
    if ranks := _rank_rows(changes):
        first = Heading("rank and measure", left=True)
        labels = [f"rank {changes.rank(row)}: {changes.label(row)}" for row in ranks]
        cells = [(label, *_cells(changes, row)) for label, row in zip(labels, ranks, strict=True)]
        title = "Ranks that changed otherwise than the mean"
        yield Sheet(title, _headings(changes, first, counts=False), tuple(cells))
    for area in (Area.STALL, Area.COLLECTIVE, Area.KERNEL):
        found = changes.of(area)
        if len(found):
            yield _parts(changes, area, found, page)


def _measures(changes: Changes) -> Sheet:
    cells = []
    for row in changes.of(Area.MEASURE):
        cells.append((changes.label(row), *_cells(changes, row)))
        if changes.name(row) == HIDDEN:
            first, second = (
                float(changes.table[f"{which}_overlap_pct"][row]) for which in ("before", "after")
            )
            shown = "" if np.isnan(second - first) else f"{second - first:+.1f}"
            label = "  hidden, % of communication"
            cells.append((label, percent(first), percent(second), shown, "", "", ""))
    headings = _headings(changes, Heading("measure", left=True), counts=False)
    return Sheet(f"Per step and GPU{_steps(changes)}", headings, tuple(cells))


def _steps(changes: Changes) -> str:
    table = changes.table
    if not len(table):
        return ""
    first, second = int(table["before_steps"][0]), int(table["after_steps"][0])
    return f" (step times: {first:,} before, {second:,} after)"


def _rank_rows(changes: Changes) -> list[int]:
    """Rows of single ranks that differ from the mean by more than the noise, largest first."""
    table, found = changes.table, []
    mean = {changes.name(row): changes.change(row) for row in changes.of(Area.MEASURE)}
    for row in changes.of_ranks():
        if changes.name(row) in DERIVED or not changes.beyond(row):
            continue
        apart = abs(changes.change(row) - mean.get(changes.name(row), 0.0))
        if apart > float(table["noise_ns"][row]):
            found.append((-apart, row))
    return [row for _, row in sorted(found)[:_MOST_ROWS]]


def _parts(changes: Changes, area: Area, found: list[int], page: Page) -> Sheet:
    shown = found[:_MOST_ROWS]
    cells = []
    for row in shown:
        name = changes.name(row)
        if area is Area.STALL:
            name = cause_label(name)
        num_bytes = int(changes.table["bytes"][row])
        if num_bytes != NULL:
            name = f"{name} {num_bytes:,} B"
        counts = [_count(float(changes.table[f"{w}_count"][row])) for w in ("before", "after")]
        shown_name = plain(name, _NAME_WIDTH, unicode=page.unicode)
        cells.append((shown_name, *counts, *_cells(changes, row)))
    label = {Area.STALL: "cause", Area.COLLECTIVE: "kind and size"}.get(area, "name")
    title = _TITLES[area]
    if len(found) > len(shown):
        title += f": the {len(shown)} of {len(found):,} that changed most"
    return Sheet(title, _headings(changes, Heading(label, left=True), counts=True), tuple(cells))


def _count(value: float) -> str:
    return ABSENT if np.isnan(value) else f"{value:,.1f}".removesuffix(".0")


def _cells(changes: Changes, row: int) -> tuple[str, ...]:
    table = changes.table

    share = float(table["change_pct"][row])
    return (
        changes.time(float(table["before_ns"][row])),
        changes.time(float(table["after_ns"][row])),
        changes.time(float(table["change_ns"][row]), signed=True),
        ABSENT if np.isnan(share) else f"{share:+.1f}",
        changes.time(float(table["noise_ns"][row])),
        _SIGNS[Judgement(int(table["judgement"][row]))],
    )
