"""Figures and tables on a page, and the sentence where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dash import dcc, html

from dashboard import text
from dashboard.view import Component
from diagnose.analysis import Unavailable
from diagnose.plotting.style import Figure
from diagnose.trace import Table

Content = Callable[[Table], Iterator[Component]]
Section = tuple[str, Table | Unavailable, Content]
"""Its heading, the table that it needs, and what it makes of it."""
_CONFIG: Any = {"displayModeBar": False, "responsive": True}


def plot(name: str, figure: Figure, reading: str = "") -> Component:
    """A figure as high as it was drawn; ``reading`` says how it is to be read."""
    drawn = dcc.Graph(
        id=name,
        figure=figure,
        config=_CONFIG,
        style={"height": int(figure.layout.height or 300)},
    )
    said = [html.P(reading, className="muted reading")] if reading else []
    return html.Div([*said, drawn], className="figure")


def sections(*given: Section) -> Iterator[Component]:
    """The sections of a page; where all lack their table for one reason, that reason once."""
    reasons = [table for _, table, _ in given if isinstance(table, Unavailable)]
    if len(reasons) == len(given) and len({(one.because, one.remedy) for one in reasons}) == 1:
        yield missing(reasons[0])
        return
    for one in given:
        yield from section(*one)


def section(title: str, given: Table | Unavailable, content: Content) -> Iterator[Component]:
    """A heading and what a table gives; else why there is none and how to record it."""
    yield html.H2(title)
    if isinstance(given, Unavailable):
        yield missing(given)
    elif not len(given):
        yield html.P("There is none in this recording.", className="muted")
    else:
        yield from content(given)


def missing(reason: Unavailable) -> Component:
    """Why a table does not exist, and what to do about it."""
    said = [reason.because.rstrip("."), reason.remedy.rstrip(".")]
    sentences = [one[:1].upper() + one[1:] + "." for one in said if one]
    return html.P(text.whole(" ".join(sentences)), className="muted")
