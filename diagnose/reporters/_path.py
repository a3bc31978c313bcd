"""What ``diagnose critical-path`` prints: what each step's path is made of, and the slack."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from diagnose.analyzers.critical_path.search import PathClass
from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._document import about, unavailable_sentences
from diagnose.reporters._path_records import (
    collectives_of,
    cost_rows,
    names_of,
    paths_of,
    segment_rows,
    slack_rows,
    step_rows,
)
from diagnose.reporters._places import Places
from diagnose.reporters._records import encode
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, percent, scale_for
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1
CLASS_LABELS = {
    PathClass.COMPUTE: "compute",
    PathClass.COMMUNICATION: "transfer",
    PathClass.PEER_WAIT: "waiting",
    PathClass.MEMORY: "copies",
    PathClass.HOST: "host",
    PathClass.LAUNCH: "launch",
    PathClass.SWITCH: "switch",
    PathClass.UNEXPLAINED: "unclear",
    PathClass.GRAPH_PAUSE: "graph pause",
}
_MOST_STEPS = 24
_MOST_SEGMENTS = 10
_MOST_COLLECTIVES = 10
_NAME_WIDTH = 44


def write(diagnosis: Diagnosis, form: str, page: Page) -> str:
    """The tables ``path``, ``slack`` and ``cost`` as text, CSV (the segments) or JSON."""
    if form == "csv":
        return csv_text(segment_rows(diagnosis))
    if form == "json":
        return encode(
            {
                "schema_version": SCHEMA_VERSION,
                "steps": step_rows(diagnosis),
                "segments": segment_rows(diagnosis),
                "collectives": slack_rows(diagnosis),
                "communication_cost": cost_rows(diagnosis),
            }
        )
    return _text(diagnosis, page)


def _text(diagnosis: Diagnosis, page: Page) -> str:
    out = io.StringIO()
    console = console_for(out, page)
    for line in about(diagnosis, unicode=page.unicode):
        wrapped(console, line, page)
    places = Places(diagnosis.trace, unicode=page.unicode)
    steps = paths_of(diagnosis.tables["path"])
    scale = scale_for(max((total for _, total, _ in steps), default=0))
    sheets = (
        _composition(diagnosis, steps, scale, places),
        _stretches(diagnosis, scale, page),
        _cost(diagnosis, places),
        _slack(diagnosis, places, page),
    )
    for sheet in sheets:
        console.print()
        draw(console, sheet, page)
    for sentence in unavailable_sentences(diagnosis, unicode=page.unicode):
        console.print()
        wrapped(console, sentence, page)
    return out.getvalue()


def _composition(
    diagnosis: Diagnosis, steps: list[tuple[Any, int, Any]], scale: Scale, places: Places
) -> Sheet:
    table = diagnosis.tables["path"]
    shown = sorted(steps, key=lambda step: -step[1])[:_MOST_STEPS]
    shown.sort(key=lambda step: int(step[0]))
    present = [kind for kind in PathClass if any(by_class[kind] for _, _, by_class in shown)]
    rows = [
        (
            *places.cells(int(table["source"][low]), int(table["device"][low])),
            places.step(step) if (step := int(table["step_row"][low])) >= 0 else "window",
            scale.show(total),
            *(scale.show(int(by_class[kind])) for kind in present),
        )
        for low, total, by_class in shown
    ]
    headings = (
        *places.headings,
        Heading("step", left=True),
        Heading("step time", scale.unit),
        *(Heading(CLASS_LABELS[kind], scale.unit) for kind in present),
    )
    title = "What each step waited for"
    if len(shown) < len(steps):
        title += f": the {len(shown)} longest of {len(steps):,}"
    notes = (
        "The parts sum to the step time. host: the host worked towards the next launch; launch: "
        "from a launch to its start; switch: between dependent operations; unclear: no edge "
        "explains the pause.",
    )
    return Sheet(title, headings, tuple(rows), footnotes=notes)


def _stretches(diagnosis: Diagnosis, scale: Scale, page: Page) -> Sheet:
    """Where the paths spend most, those on one operation, class and rank together."""
    table, trace = diagnosis.tables["path"], diagnosis.trace
    num_paths = max(len(paths_of(table)), 1)
    total: dict[tuple[int, int, str | None], list[int]] = {}
    for kind, at, name, length in zip(
        table["path_class"].tolist(),
        table["at_source"].tolist(),
        names_of(diagnosis, table),
        table["length_ns"].tolist(),
        strict=True,
    ):
        entry = total.setdefault((kind, at, name), [0, 0, 0])
        entry[0] += length
        entry[1] += 1
        entry[2] = max(entry[2], length)
    order = sorted(total.items(), key=lambda item: (-item[1][0], str(item[0])))
    rows = [
        (
            CLASS_LABELS[PathClass(kind)],
            plain(trace.sources[at].label, 16, unicode=page.unicode),
            scale.show(round(length / num_paths)),
            f"{count / num_paths:,.1f}",
            scale.show(longest),
            plain(name or ABSENT, _NAME_WIDTH, unicode=page.unicode),
        )
        for (kind, at, name), (length, count, longest) in order[:_MOST_SEGMENTS]
    ]
    headings = (
        Heading("what", left=True),
        Heading("on", left=True),
        Heading("time", f"{scale.unit}/path"),
        Heading("count", "per path"),
        Heading("longest", scale.unit),
        Heading("operation, or the next", left=True),
    )
    title = f"Where the paths spend most: mean of {num_paths:,}"
    return Sheet(title, headings, tuple(rows))


def _cost(diagnosis: Diagnosis, places: Places) -> Sheet:
    table = diagnosis.tables["cost"]
    scale = scale_for(int(table["step_time_ns"].max(initial=0)))
    order = np.argsort(-table["blocking_ns"], kind="stable")[:_MOST_STEPS].tolist()
    rows = [
        (
            *places.cells(int(table["source"][row]), int(table["device"][row])),
            scale.show(int(table["step_time_ns"][row])),
            scale.show(int(table["communication_ns"][row])),
            scale.show(int(table["exposed_ns"][row])),
            scale.show(int(table["blocking_ns"][row])),
            scale.show(int(table["transfer_ns"][row])),
            percent(float(table["overlap_of_transfer_pct"][row])),
        )
        for row in sorted(order)
    ]
    headings = (
        *places.headings,
        Heading("steps", scale.unit),
        Heading("comm.", scale.unit),
        Heading("exposed", scale.unit),
        Heading("blocking", scale.unit),
        Heading("transfer", scale.unit),
        Heading("hidden", "% of transfer"),
    )
    notes = (
        "All of the steps that have a time. exposed: nothing computes beside it, an upper bound "
        "with waiting for late ranks in it; blocking: exposed transfer on the critical path.",
    )
    return Sheet("What communication costs", headings, tuple(rows), footnotes=notes)


def _slack(diagnosis: Diagnosis, places: Places, page: Page) -> Sheet:
    table = diagnosis.tables["slack"]
    table = table.take(table["step_row"] >= 0)
    order = np.lexsort((table["slack_ns"], -table["blocking_ns"]))[:_MOST_COLLECTIVES]
    chosen = table.take(order)

    def us(name: str, row: int) -> str:
        value = int(chosen[name][row])
        return ABSENT if value == NULL else f"{value / 1e3:,.1f}"

    columns = ("slack_ns", "wait_ns", "transfer_ns", "exposed_transfer_ns", "blocking_ns")
    rows = [
        (
            *places.cells(int(chosen["source"][row]), int(chosen["device"][row])),
            places.step(int(chosen["step_row"][row])),
            plain(name or ABSENT, 24, unicode=page.unicode),
            ABSENT if num_bytes is None else f"{num_bytes:,}",
            *(us(column, row) for column in columns),
        )
        for row, (name, num_bytes) in enumerate(collectives_of(diagnosis, chosen))
    ]
    headings = (
        *places.headings,
        Heading("step", left=True),
        Heading("collective", left=True),
        Heading("size", "bytes", spare=1),
        Heading("slack", "us"),
        Heading("wait", "us"),
        Heading("transfer", "us"),
        Heading("exposed", "us of transfer"),
        Heading("blocking", "us"),
    )
    free = int(np.count_nonzero(table["slack_ns"] > 0))
    title = f"Collectives that block most: {len(rows)} of {len(table):,}"
    notes = (
        "slack: how much later it could have ended at no cost to a step. "
        f"{free:,} of {len(table):,} have some; the largest is "
        f"{int(table['slack_ns'].max(initial=0)) / 1e3:,.1f} us.",
    )
    return Sheet(title, headings, tuple(rows), footnotes=notes)


def selected(table: Table, sources: list[int] | None, steps: list[int] | None) -> Table:
    """The rows of some sources and some rows of ``steps``; None: all."""
    keep = np.ones(len(table), bool)
    if sources is not None:
        keep &= np.isin(table["source"], sources)
    if steps is not None and "step_row" in table.columns:
        keep &= np.isin(table["step_row"], steps)
    return table.take(keep)
