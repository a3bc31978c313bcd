"""The sheets of stalls: what each GPU stood still for, by cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.trace import Strings, Table
from diagnose.wording.labels import CAUSE_LABELS, FIRST_COPY
from diagnose.wording.numbers import percent, scale_for
from diagnose.wording.plain import plain

_MOST_GPUS = 8
_MOST_CAUSES = 10
_NAME_WIDTH = 44


def cause_sheets(diagnosis: Diagnosis, page: Page) -> Iterator[Sheet]:
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
    alone, scale = int(sites["length_ns"][copies].sum()), scale_for(int(sites["length_ns"].sum()))
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
