"""Findings: what slows the job down, the evidence, the fix, and where to see it."""

from __future__ import annotations

from collections.abc import Iterator

from dash import dcc, html

from dashboard import text
from dashboard.places import places
from dashboard.unchecked import not_checked
from dashboard.view import Component, View, Visit
from diagnose.findings import Finding, Fix
from diagnose.wording.findings import (
    a_step,
    about,
    evidence_value,
    figure,
    gain_words,
    threshold_words,
)
from diagnose.wording.numbers import counted

_OVERLAP = "Gains overlap and are not to be added: the overview shows what changes gain together."


def draw(visit: Visit) -> Component:
    """The page."""
    found = visit.shown.diagnosis.findings
    cards = [_card(visit, one, str(number)) for number, one in enumerate(found, 1)]
    said = _OVERLAP if len(cards) > 1 else "" if cards else "No rule found anything."
    return html.Div(
        [
            html.H1("Findings"),
            *([html.P(said, className="muted")] if said else []),
            *cards,
            *not_checked(visit.shown.diagnosis),
        ],
        className="findings",
    )


def _card(visit: Visit, found: Finding, number: str) -> Component:
    saves, rest = gain_words(found.gain)
    content = [
        html.Div(
            [
                html.Span(found.severity, className=f"severity {found.severity}"),
                html.Code(found.rule),
                *(html.Span(text.shown(one)) for one in about(visit.shown.diagnosis, found)),
            ],
            className="finding-head",
        ),
        html.H2(f"{number}. {text.shown(found.title)}"),
        html.P(text.shown(found.sentence)),
        html.P([html.Strong(text.whole(saves)), text.whole(f" {rest}")], className="gain"),
        *_places(visit, found),
        *_evidence(visit, found),
        *_advice(found),
    ]
    inner = [_card(visit, one, f"{number}.{at}") for at, one in enumerate(found.folded, 1)]
    if inner:
        summary = f"It explains {counted(len(inner), 'more finding')}"
        content.append(html.Details([html.Summary(summary), *inner]))
    return html.Article(content, className=f"finding {found.severity}", id=f"finding-{number}")


def _places(visit: Visit, found: Finding) -> Iterator[Component]:
    """Where it can be seen: a link a stretch of time."""
    links = [
        dcc.Link(label, href=address.href, className="place")
        for label, address in places(visit.shown, visit.address, found)
    ]
    if links:
        yield html.P([html.Span("Open in the timeline:"), *links], className="places")


def _evidence(visit: Visit, found: Finding) -> Iterator[Component]:
    """Figures as a table, names below it: a long name would tear the columns apart."""
    rows = [
        _row(one.label, *evidence_value(one), threshold_words(found.threshold(one)))
        for one in found.evidence
        if not isinstance(one.value, str)
    ]
    if found.cost is not None:
        limit = "at most " if found.cost.is_upper_bound else ""
        label = f"cost {limit}{a_step(visit.shown.diagnosis)}: {found.cost.basis}"
        rows.append(_row(label, *figure(found.cost.per_step_ns, "ns"), ""))
    if rows:
        heads = ("evidence", "value", "", "held against")
        head = html.Tr([html.Th(one, scope="col") for one in heads])
        yield html.Div(
            html.Table([html.Thead(head), html.Tbody(rows)], className="evidence"),
            className="scroll",
        )
    for one in found.evidence:
        if isinstance(one.value, str):
            yield html.P([f"{one.label}: ", html.Code(text.shown(one.value))], className="named")


def _row(label: str, value: str, unit: str, held: str) -> Component:
    cells = [html.Td(text.whole(label), className="label"), html.Td(value, className="value")]
    return html.Tr([*cells, html.Td(unit, className="unit"), html.Td(held, className="held")])


def _advice(found: Finding) -> Iterator[Component]:
    if found.advice:
        yield html.H3("What to do")
        yield html.Ol([html.Li(_fix(step)) for step in found.advice])
    if found.caveats:
        yield html.H3("When this is wrong")
        yield html.Ul([html.Li(text.whole(one)) for one in found.caveats])


def _fix(step: Fix) -> list[Component]:
    return [text.whole(step.text), *([html.Pre(text.whole(step.code))] if step.code else [])]


VIEW = View("findings", "Findings", 60, draw)
