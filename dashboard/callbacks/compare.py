"""The compare page: two recordings, chosen into the address."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, State, no_update

from dashboard.address import parse


def register(app: dash.Dash) -> None:
    """Tie the page's callbacks to an application."""

    @app.callback(
        Output("address", "href", allow_duplicate=True),
        Input("first", "value"),
        Input("other", "value"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose(first: str | None, other: str | None, path: str, search: str) -> Any:
        now = parse(path, search)
        if now.page != "compare" or first is None:
            return no_update
        chosen = now.replace(recording=first, other=None if other == first else other)
        if chosen.recording != now.recording:
            # Another recording: times and rows of the former mean nothing there.
            chosen = chosen.at(None, None).replace(open=None, selected=None)
        return no_update if chosen == now else chosen.href
