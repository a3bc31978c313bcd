"""The timeline page: the picture for an address, and the address for what a person does."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, ClientsideFunction, Input, Output, State, ctx, html, no_update

from dashboard import details, lanes, navigation, scene
from dashboard.address import Address, parse
from dashboard.kept import kept
from dashboard.lanes import Page
from dashboard.library import Library
from dashboard.shown import Shown
from dashboard.theme import palette_of
from dashboard.view import Component
from diagnose.errors import DiagnoseError
from diagnose.figures.timeline import duration
from diagnose.wording.numbers import counted

_MOST_CHARACTERS = 200


def register(app: dash.Dash, library: Library) -> None:
    """Tie the page's callbacks to an application."""
    _draw(app, library)
    _navigate(app, library)
    _describe(app, library)


def _draw(app: dash.Dash, library: Library) -> None:
    """The picture of an address."""

    @app.callback(
        Output("drawn-timeline", "data"),
        Output("lane-labels", "children"),
        Output("lane-labels", "style"),
        Output("timeline-said", "children"),
        Output("find-said", "children"),
        Output("ruler-said", "children"),
        Output("lane-pages", "children"),
        Input("address", "search"),
        Input("plot-width", "data"),
        Input("scheme", "data"),
        State("address", "pathname"),
    )
    def picture(search: str, width: int, scheme: str | None, path: str) -> tuple[Any, ...]:
        address = parse(path, search)
        shown = library.shown(address.recording)
        if shown is None or address.page != "timeline":
            return (no_update,) * 7
        try:
            return _picture(shown, address, scheme, int(width))
        except DiagnoseError as error:
            return (no_update, no_update, no_update, error.message, "", "", None)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("timeline", "show"),
        Output("timeline", "figure"),
        Output("time-axis", "figure"),
        Input("drawn-timeline", "data"),
    )


def _navigate(app: dash.Dash, library: Library) -> None:
    """The address after what a person does."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("asked", "data"),
        Input({"lane": ALL}, "n_clicks"),
        Input({"top": ALL}, "n_clicks"),
        Input("zoom-out", "n_clicks"),
        Input("unfold-all", "n_clicks"),
        Input("fold-all", "n_clicks"),
        Input("find-next", "n_clicks"),
        Input("find-previous", "n_clicks"),
        Input("find", "value"),
        Input("find", "n_submit"),
        State("plot-width", "data"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def navigate(*given: Any) -> Any:
        wanted, width, path, search = given[-5], given[-3], given[-2], given[-1]
        address = parse(path, search)
        shown = library.shown(address.recording)
        if shown is None or address.page != "timeline" or not ctx.triggered:
            return no_update
        came = ctx.triggered[0]["value"]
        wanted = (wanted or "")[:_MOST_CHARACTERS]
        try:
            now = after(shown, address, ctx.triggered_id, came, wanted, int(width))
        except DiagnoseError:
            return no_update
        return no_update if now is None or now == address else now.search


def _describe(app: dash.Dash, library: Library) -> None:
    """What is known of the selected operation."""

    @app.callback(
        Output("details", "children"),
        Input("address", "search"),
        State("address", "pathname"),
    )
    def selected(search: str, path: str) -> Any:
        address = parse(path, search)
        shown = library.shown(address.recording)
        if shown is None or address.page != "timeline" or address.selected is None:
            return None
        try:
            found = kept(shown).details(address.selected)
        except DiagnoseError as error:
            return error.message
        return details.panel(shown, address, found)

    @app.callback(
        Output("arguments", "children"),
        Input("arguments-ask", "n_clicks"),
        State("address", "pathname"),
        State("address", "search"),
    )
    def arguments(clicks: int | None, path: str, search: str) -> Any:
        address = parse(path, search)
        shown = library.shown(address.recording)
        if shown is None or address.selected is None:
            return no_update
        try:
            if not clicks and not details.reads_at_once(shown, address.selected):
                return no_update
            return details.arguments(kept(shown).arguments(address.selected))
        except DiagnoseError as error:
            return error.message


def _picture(shown: Shown, address: Address, scheme: str | None, width: int) -> tuple[Any, ...]:
    palette = palette_of(scheme)
    made = scene.scene(shown, address, palette, width)
    labels = scene.labels(made, lanes.opened(shown.timeline, address), palette)
    return (
        [made.figure, made.head],
        labels,
        {"height": made.layout.height},
        f"{duration(made.end_ns - made.start_ns)} shown",
        navigation.said_of_search(shown, address),
        navigation.said_of_ruler(address),
        _pages(made.page),
    )


def _pages(page: Page) -> list[Component]:
    """Ways to the lanes that are not drawn."""
    ways = (("▲", page.num_above, "above", page.above), ("▼", page.num_below, "below", page.below))
    return [
        html.Button(
            f"{arrow} {counted(number, 'lane')} {where}",
            id={"top": key},
            n_clicks=0,
            className="quiet",
        )
        for arrow, number, where, key in ways
        if key is not None
    ]


def after(
    shown: Shown, address: Address, trigger: Any, came: Any, wanted: str, width: int
) -> Address | None:
    """The address after an input of the page came with a value; None: nothing follows from it."""
    if trigger == "find":
        # The same text again is the Enter key, or a page that was only just drawn.
        if wanted == address.find and not _entered():
            return None
        return navigation.found_next(shown, address, wanted, 1)
    if not came:
        return None
    if trigger in ("find-next", "find-previous"):
        step = -1 if trigger == "find-previous" else 1
        return navigation.found_next(shown, address, wanted, step)
    if trigger == "asked":
        return navigation.after(shown, address, came, width)
    if trigger == "zoom-out":
        return address.at(None, None)
    if trigger == "unfold-all":
        return navigation.all_unfolded(address)
    if trigger == "fold-all":
        return navigation.all_folded(address)
    if isinstance(trigger, dict) and "lane" in trigger:
        return navigation.folded(shown, address, trigger["lane"])
    if isinstance(trigger, dict) and "top" in trigger:
        return address.replace(top=trigger["top"])
    return None


def _entered() -> bool:
    return any(one["prop_id"] == "find.n_submit" and one["value"] for one in ctx.triggered)
