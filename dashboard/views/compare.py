"""Compare: what changed from one recording to another, beyond the noise of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dash_mantine_components as dmc
import numpy as np
from dash import html

from dashboard import text
from dashboard.address import Address
from dashboard.grid import Column, grid
from dashboard.plot import missing
from dashboard.view import Component, View, Visit
from diagnose.analysis import Unavailable
from diagnose.analyzers._noise import Judgement
from diagnose.analyzers.comparison import Area
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.comparison import MEASURE_LABELS, Changes, verdict_sentences
from diagnose.wording.labels import cause_label

_JUDGEMENTS = {
    Judgement.BEYOND: "beyond the noise",
    Judgement.WITHIN: "within the noise",
    Judgement.UNKNOWN: "unknown: too few steps",
}
_AREAS = (
    (Area.STALL, "Stalls and copies alone, by cause", "cause", cause_label),
    (Area.COLLECTIVE, "Collectives", "collective", str),
    (Area.KERNEL, "Kernels, copies and fills", "name", str),
)
_NOISE = (
    "Times are per step: the mean over GPUs, then the median over steps. Noise: 95 % band of the "
    "change from the spread over steps; with two or three steps it is wide, and what differs from "
    "run to run is not in it. A collective's time includes waiting for late ranks."
)


def draw(visit: Visit) -> Component:
    """The page."""
    return html.Div([html.H1("Compare"), _choosers(visit), *_content(visit)])


def _choosers(visit: Visit) -> Component:
    entries = visit.library.entries()
    options = [{"value": one.key, "label": text.shown(one.label)} for one in entries]
    others = [one for one in options if one["value"] != visit.shown.key]
    known = visit.address.other in {one["value"] for one in others}
    return html.Div(
        [
            dmc.Select(
                id="first",
                label="Before",
                data=options,
                value=visit.shown.key,
                allowDeselect=False,
                searchable=True,
                className="chooser",
            ),
            dmc.Select(
                id="other",
                label="After",
                data=others,
                value=visit.address.other if known else None,
                placeholder="Choose a recording" if others else "There is no other recording",
                searchable=True,
                clearable=True,
                className="chooser",
            ),
        ],
        className="choosers",
    )


def _content(visit: Visit) -> Iterator[Component]:
    key = visit.address.other
    if key is None:
        yield html.P("Choose the recording to compare with.", className="muted")
        return
    other = visit.library.shown(key)
    if other is None:
        yield html.P("There is no such recording any more.", className="muted")
        return
    made = visit.shown.against(other)
    if isinstance(made, Unavailable):
        yield missing(made)
        return
    changes = Changes(made)
    for number, said in enumerate(verdict_sentences(changes)):
        yield html.P(text.whole(said), className="said" if number else "lead")
    yield from _areas(visit, changes)
    yield html.P(_NOISE, className="muted small")


def _areas(visit: Visit, changes: Changes) -> Iterator[Component]:
    table = changes.table
    measures = table.take(np.array(changes.of(Area.MEASURE), np.int64))
    measure = _named("measure", lambda name: MEASURE_LABELS.get(name, name))
    yield html.H2("Per step and GPU")
    yield grid(visit.shown, measures, [measure, *_CHANGE], "compare-measures")
    ranks = table.take(np.array(changes.of_ranks(), np.int64))
    if len(ranks):
        yield html.H2("By rank")
        yield grid(visit.shown, ranks, [_RANK, measure, *_CHANGE], "compare-ranks")
    for area, title, heading, label in _AREAS:
        rows = table.take(np.array(changes.of(area), np.int64))
        if not len(rows):
            continue
        yield html.H2(title)
        first = [_named(heading, label, wide=area == Area.KERNEL), Column("bytes", "bytes")]
        counts = [
            Column("before_count", "number before", decimals=1),
            Column("after_count", "number after", decimals=1),
        ]
        each = [*first, *_CHANGE, *counts]
        yield grid(visit.shown, rows, each, f"compare-{area.name.lower()}")


def _ranks(table: Table) -> list[str]:
    return [f"rank {rank}" if rank != NULL else "" for rank in table["rank"].tolist()]


_RANK = Column("rank", "rank", _ranks)


def _named(heading: str, label: Callable[[str], str], *, wide: bool = False) -> Column:
    def value(table: Table) -> list[str]:
        return [label(name or "") for name in table.texts("name")]

    return Column("name", heading, value, wide=wide)


_CHANGE = (
    Column("before_ns", "before"),
    Column("after_ns", "after"),
    Column("change_ns", "change", signed=True),
    Column("change_pct", "change", signed=True),
    Column("noise_ns", "noise, ±"),
    Column("judgement", "the change is", words=_JUDGEMENTS),
)


def _needs(address: Address) -> tuple[str, ...]:
    return () if address.other is None else (address.other,)


VIEW = View("compare", "Compare", 70, draw, reads=_needs, needs=_needs)
