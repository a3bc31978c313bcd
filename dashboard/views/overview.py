"""The report's summary: what a step costs, where it goes, what to do first, what to trust."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from dash import dcc, html

from dashboard import text
from dashboard.plot import plot
from dashboard.unchecked import not_checked
from dashboard.view import Component, View, Visit
from diagnose.analysis import Unavailable
from diagnose.figures import staircase, step_time
from diagnose.plotting.style import Unit
from diagnose.wording.changes import split
from diagnose.wording.findings import gain_words
from diagnose.wording.numbers import counted
from diagnose.wording.replay import scale_of
from diagnose.wording.summary import summary_sentences
from diagnose.wording.tiles import Tile, tiles_of

_FIRST = 5
_VERDICTS = {"good": "good", "usable with care": "warning", "not to be trusted": "critical"}
_TITLE_WIDTH = 90
_TILE_WIDTH = 270
"""Of a tile at most, in pixels."""


def draw(visit: Visit) -> Component:
    """The page."""
    return html.Div(
        [
            html.H1(text.shown(visit.shown.label)),
            *_facts(visit),
            *_summary(visit),
            *_where_time_goes(visit),
            *_first(visit),
            *_stairs(visit),
            html.H2("Not checked"),
            *not_checked(visit.shown.diagnosis),
            *(html.P(text.whole(one), className="muted") for one in visit.shown.document.missing),
            *_notes(visit),
        ],
        className="overview",
    )


def _facts(visit: Visit) -> Iterator[Component]:
    """What was read, whether it can be believed, and why not."""
    content = visit.shown.document
    for line in content.about[1:]:
        yield html.P(text.whole(line.replace(" | ", " · ")), className="facts")
    verdict = f"Trace quality: {content.verdict}"
    yield html.P(html.Strong(verdict), className=f"verdict {_VERDICTS[content.verdict]}")
    if content.reasons:
        reasons = [html.Li(text.whole(f"{one.severity}: {one.subject}")) for one in content.reasons]
        yield html.Ul(reasons, className="reasons")


def _summary(visit: Visit) -> Iterator[Component]:
    diagnosis = visit.shown.diagnosis
    shares = visit.shown.table("step_shares")
    if not isinstance(shares, Unavailable):
        tables = {**diagnosis.tables, "step_shares": shares}
        diagnosis = dataclasses.replace(diagnosis, tables=tables)
    for number, said in enumerate(summary_sentences(diagnosis)):
        yield html.P(text.whole(said), className="said" if number else "lead")
    found = list(tiles_of(diagnosis, visit.shown.scale))
    if found:
        # Few tiles are not to be stretched over the whole page.
        widest = {"maxWidth": _TILE_WIDTH * len(found)}
        yield html.Dl([_tile(one) for one in found], className="tiles", style=widest)


def _tile(tile: Tile) -> Component:
    value: list[Component] = [tile.value, *([html.Small(tile.unit)] if tile.unit else [])]
    parts = [html.Dt(tile.label), html.Dd(value, className="value")]
    if tile.below:
        parts.append(html.Dd(text.whole(tile.below), className="below"))
    return html.Div(parts, className=f"tile {tile.state}".strip())


def _where_time_goes(visit: Visit) -> Iterator[Component]:
    shares = visit.shown.table("step_shares")
    what, title = "mean step", "Where a step's time goes"
    if isinstance(shares, Unavailable) or not len(shares):
        windows = visit.shown.table("breakdown")
        if isinstance(windows, Unavailable):
            return
        shares = windows.take(windows["step_row"] < 0)
        what, title = "window", "Where the window's time goes"
    if len(shares):
        yield html.H2(title)
        unit = visit.shown.unit
        drawn = step_time.draw(shares, visit.shown.labels, unit, visit.palette, what)
        yield plot("step-time", drawn, step_time.FIGURE.reading)


def _first(visit: Visit) -> Iterator[Component]:
    findings = visit.shown.diagnosis.findings
    yield html.H2("What to do first")
    if not findings:
        yield html.P(text.whole(_nothing(visit)), className="muted")
        return
    items = []
    for found in findings[:_FIRST]:
        figure, rest = gain_words(found.gain)
        items.append(
            html.Li(
                [
                    html.Span(found.severity, className=f"severity {found.severity}"),
                    html.Strong(f" {text.shown(found.title)}. "),
                    html.Span(text.shown(found.sentence)),
                    html.Div(text.whole(f"{figure} {rest}".strip()), className="muted"),
                ]
            )
        )
    yield html.Ol(items, className="first")
    words = f"{counted(len(findings), 'finding')} with evidence and advice"
    yield html.P(dcc.Link(words, href=visit.address.to("findings").href))


def _nothing(visit: Visit) -> str:
    checked = visit.shown.diagnosis.checked
    if checked is None or not checked.clean:
        return "No rule could look for problems: the reasons are below."
    return "No rule found anything."


def _stairs(visit: Visit) -> Iterator[Component]:
    """From today's step to the bound, where a change saves something."""
    stairs = visit.shown.diagnosis.tables.get("staircase")
    if stairs is None or len(stairs) < 2:
        return
    titles = [text.shown(", ".join(split(one)), _TITLE_WIDTH) for one in stairs.texts("title")]
    titles[0] = "now, without the profiler"
    scale = scale_of(stairs)
    unit = Unit(scale.unit, scale.nanoseconds, scale.decimals)
    yield html.H2("What changes would gain")
    yield plot(
        "staircase",
        staircase.draw(stairs, titles, unit, visit.palette),
        staircase.FIGURE.reading,
    )
    for said in visit.shown.document.gains:
        yield html.P(text.whole(said), className="muted small")


def _notes(visit: Visit) -> Iterator[Component]:
    notes = visit.shown.document.notes
    if notes:
        yield html.H2("Notes on the input")
        items = [html.Li(text.whole(f"{one.severity}: {one.text}")) for one in notes]
        yield html.Ul(items, className="notes")


VIEW = View("", "Overview", 0, draw)
