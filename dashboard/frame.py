"""What stands around every page, and in its place while there is none: drawn, not decided."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import text, theme
from dashboard.address import Address
from dashboard.library import Library, Opening
from dashboard.view import Component, aria, views
from diagnose.wording.numbers import size

BUG = "This is a bug: please report it with what `diagnose dashboard --debug` prints."
NAME = "torch-diagnose"
RECORD = "record"
"""The ``type`` of the ids of all buttons that open the dialog to record."""


def frame(dialog: Component | None) -> dmc.MantineProvider:
    """What stays while pages change. ``dialog``: to record; None: nobody may."""
    switch = dmc.ActionIcon(
        html.Span("◐"),
        id="switch-theme",
        variant="default",
        **aria(label="Switch between light and dark"),
    )
    record = [] if dialog is None else [record_button("header")]
    header = html.Div(
        [
            html.Div(html.Strong(NAME), className="brand"),
            html.Nav(id="pages", className="pages", **aria(label="Pages")),
            html.Div(
                [html.Div(id="recordings", className="recordings"), *record, switch],
                className="header-end",
            ),
        ],
        className="header",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="scheme"),
            *(dcc.Store(id=name) for name in ("drawn", "arrived", "title", "titled")),
            dcc.Interval(id="watch", interval=400, disabled=True),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(header),
                    dmc.AppShellMain(
                        [
                            html.Div(id="failure", className="failure", role="alert"),
                            html.Div(id="loading"),
                            html.Div(id="page", className="page"),
                        ]
                    ),
                ],
                header={"height": {"base": 92, "md": 52}},
            ),
            *([] if dialog is None else [dialog]),
        ],
        id="provider",
        theme=theme.mantine(),
        forceColorScheme="light",
    )


def record_button(place: str) -> Component:
    """Opens the dialog to record; ``place`` tells the buttons apart."""
    return dmc.Button(
        "Record now", id={"type": RECORD, "place": place}, size="xs", variant="default", n_clicks=0
    )


def title(library: Library, address: Address) -> str:
    """The title of the tab: the page, the recording, the program."""
    view = views().get(address.page)
    entry = library.entry(address.recording)
    parts = [view.title if view and entry else "", text.shown(entry.label, 60) if entry else ""]
    return " · ".join([*filter(None, parts), NAME])


def pages(address: Address) -> list[Component]:
    """The links to all pages, for the same recording and time."""
    return [_page_link(view.title, view.key, address) for view in views().values()]


def _page_link(name: str, key: str, address: Address) -> Component:
    current = key == address.page
    link = dcc.Link(name, href=address.to(key).href, className="current" if current else "")
    # The link itself takes no aria attributes.
    return html.Span(link, **(aria(current="page") if current else {}))


def recordings(library: Library, address: Address) -> Component:
    """The name of the recording, or what chooses another."""
    entries = library.entries()
    entry = library.entry(address.recording)
    if len(entries) == 1 and entry is not None:
        return html.Span(text.shown(entry.label), title=text.whole(entry.label))
    return dmc.Select(
        id="recording",
        data=[{"value": one.key, "label": text.shown(one.label)} for one in entries],
        value=None if entry is None else entry.key,
        placeholder="Choose a recording",
        searchable=True,
        allowDeselect=False,
        size="xs",
        **aria(label="Recording"),
    )


def listing(library: Library, address: Address, *, may_record: bool) -> Component:
    """All recordings there are, and why none is shown where one was asked for."""
    entries = library.entries()
    said: list[Component] = [html.H1("Recordings")]
    if address.recording is not None:
        sentence = "The recording of this address is not here."
        said.append(problem(sentence, "It was moved, or the address is of another server."))
    if not entries:
        how = "Record one with `diagnose attach` or `diagnose run`; it appears here by itself."
        said.append(problem("There is no recording under the folders that were given.", how))
    rows = [
        html.Li(
            [
                dcc.Link(
                    text.shown(one.label),
                    href=Address(page=address.page, recording=one.key, theme=address.theme).href,
                ),
                html.Span(one.refused or size(one.num_bytes), className="muted"),
            ]
        )
        for one in entries
    ]
    record = [html.P(record_button("list"))] if may_record else []
    return html.Div([*said, html.Ul(rows, className="recording-list"), *record])


def loading(opening: Opening) -> Component:
    """How far a recording is read."""
    return html.Div(
        [
            html.H1(text.shown(opening.entry.label)),
            dmc.Progress(
                id="loading-bar",
                value=opening.done_pct,
                animated=True,
                **aria(label="Part of the recording that is read"),
            ),
            html.P(said(opening), id="loading-said", className="muted"),
        ],
        className="loading",
    )


def said(opening: Opening) -> str:
    """The same in words."""
    if not opening.entry.num_bytes:
        return f"Reading: {size(opening.done_bytes)} so far."
    if opening.done_pct >= 100:
        return "Joining what was read."
    return f"Reading: {size(opening.done_bytes)} of {size(opening.entry.num_bytes)}."


def problem(sentence: str, remedy: str) -> Component:
    """What went wrong, and what to do."""
    return dmc.Alert(
        html.P(text.whole(remedy)) if remedy else None,
        title=text.whole(sentence),
        color="red",
        variant="light",
        className="problem",
    )
