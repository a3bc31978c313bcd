"""The frame: which page is drawn for an address, and what is said while a recording loads."""

from __future__ import annotations

import logging
from typing import Any

import dash
from dash import ClientsideFunction, Input, Output, State, no_update

from dashboard import frame
from dashboard.address import Address, parse
from dashboard.catalogue import Entry
from dashboard.library import Library, Opening
from dashboard.theme import palette_of
from dashboard.view import Component, Visit, views
from diagnose.errors import DiagnoseError

_log = logging.getLogger("dashboard")


def register(app: dash.Dash, library: Library, *, may_record: bool = False) -> None:
    """Tie the frame's callbacks to an application."""
    _scheme(app)

    @app.callback(
        Output("page", "children"),
        Output("pages", "children"),
        Output("recordings", "children"),
        Output("drawn", "data"),
        Output("watch", "disabled"),
        Output("title", "data"),
        Output("failure", "children"),
        Output("loading", "children"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("scheme", "data"),
        Input("arrived", "data"),
        State("drawn", "data"),
    )
    def draw(
        path: str, search: str, scheme: str | None, arrived: str | None, drawn: list[Any] | None
    ) -> tuple[Any, ...]:
        address = parse(path, search)
        page, now = _page(library, address, scheme, arrived, drawn, may_record=may_record)
        same = page is no_update
        waiting = _waiting(library, address)
        listed = not wanted_of(library, address)
        return (
            page,
            frame.pages(address),
            no_update if same else frame.recordings(library, address),
            no_update if same else now,
            not (waiting or listed),
            frame.title(library, address),
            no_update if same else None,
            frame.loading(waiting[0]) if waiting else None,
        )

    @app.callback(
        Output("arrived", "data"),
        Output("loading", "children", allow_duplicate=True),
        Input("watch", "n_intervals"),
        State("address", "pathname"),
        State("address", "search"),
        State("arrived", "data"),
        prevent_initial_call=True,
    )
    def watch(ticks: int, path: str, search: str, arrived: str | None) -> tuple[Any, ...]:
        address = parse(path, search)
        wanted = wanted_of(library, address)
        if not wanted:
            there = " ".join(f"{one.key}:{one.num_bytes}" for one in library.entries())
            return (no_update if there == arrived else there), no_update
        waiting = _waiting(library, address)
        if not waiting:
            return f"{wanted[0].key} {ticks}", no_update
        return no_update, frame.loading(waiting[0])

    @app.callback(
        Output("address", "href"),
        Input("recording", "value"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose(key: str | None, path: str, search: str) -> Any:
        address = parse(path, search)
        if key is None or key == address.recording:
            return no_update
        other = None if address.other == key else address.other
        chosen = Address(page=address.page, recording=key, other=other, theme=address.theme)
        return chosen.href


def _scheme(app: dash.Dash) -> None:
    """Light and dark, and the title of the tab: all in the browser."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("scheme", "choose"),
        Output("scheme", "data"),
        Output("address", "search", allow_duplicate=True),
        Input("switch-theme", "n_clicks"),
        Input("address", "search"),
        State("scheme", "data"),
        prevent_initial_call="initial_duplicate",
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("scheme", "apply"),
        Output("provider", "forceColorScheme"),
        Input("scheme", "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("scheme", "entitle"),
        Output("titled", "data"),
        Input("title", "data"),
    )


def wanted_of(library: Library, address: Address) -> list[Entry]:
    """The recordings that a page needs, the one shown first; none where that is not known."""
    view = views().get(address.page)
    entry = library.entry(address.recording)
    if view is None or entry is None:
        return []
    beside = (library.entry(key) for key in view.needs(address) if key != entry.key)
    return [entry, *(one for one in beside if one is not None)]


def _waiting(library: Library, address: Address) -> list[Opening]:
    """What is still read of all that a page needs."""
    openings = [library.open(one) for one in wanted_of(library, address)]
    return [one for one in openings if not one.finished.is_set()]


def _page(
    library: Library,
    address: Address,
    scheme: str | None,
    arrived: str | None,
    drawn: list[Any] | None,
    *,
    may_record: bool,
) -> tuple[Component, list[Any] | None]:
    """The content of the page, and what it was drawn for."""
    view = views().get(address.page)
    if view is None:
        return frame.problem("There is no such page.", "Choose one above."), None
    wanted = wanted_of(library, address)
    if not wanted:
        return frame.listing(library, address, may_record=may_record), None
    openings = [library.open(one) for one in wanted]
    if not all(one.finished.is_set() for one in openings):
        return None, None
    for opening in openings:
        if opening.error is not None or opening.shown is None:
            return _failed(opening), None
    keys = [one.key for one in wanted]
    now = [address.page, keys, scheme, arrived, *map(repr, view.reads(address))]
    if now == drawn:
        return no_update, None
    shown = openings[0].shown
    assert shown is not None
    try:
        page = view.draw(Visit(shown, address, palette_of(scheme), library))
    except DiagnoseError as error:
        page = frame.problem(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - a page says it; the others go on
        report(error, f"the page {address.href!r}")
        page = frame.problem(f"This page failed: {type(error).__name__}: {error}", frame.BUG)
    return page, now


def _failed(opening: Opening) -> Component:
    error = opening.error
    if error is None:
        return frame.problem("The recording is gone.", "")
    return frame.problem(error.message, error.hint)


def report(error: Exception, what: str) -> None:
    """One line on the terminal; the traceback only where it was asked for."""
    debug = _log.isEnabledFor(logging.DEBUG)
    _log.error("%s failed: %s: %s", what, type(error).__name__, error, exc_info=debug)


def on_error(error: Exception) -> None:
    """A callback failed: say so above the page, which stays as it is."""
    report(error, "a callback")
    said = frame.problem(f"That did not work: {type(error).__name__}: {error}", frame.BUG)
    dash.set_props("failure", {"children": said})
