"""Record now: opens the dialog, starts the command, shows what it says, opens the result.

Registered only where the server was started with ``--allow-record``: without it there is no
callback that a request could ask for.
"""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State, ctx, html, no_update

from dashboard import recording_dialog
from dashboard.address import Address, parse
from dashboard.frame import RECORD
from dashboard.library import Library
from dashboard.live import Attempt, Recorder
from diagnose.errors import DiagnoseError


def register(app: dash.Dash, library: Library, recorder: Recorder) -> None:
    """Tie the dialog's callbacks to an application."""

    @app.callback(
        Output("record-dialog", "opened"),
        Input({"type": RECORD, "place": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def show(_clicks: list[int | None]) -> Any:
        # A button that just came into the page counts as a trigger, too.
        return True if ctx.triggered and ctx.triggered[0]["value"] else no_update

    @app.callback(
        Output("record-said", "children"),
        Output("record-watch", "disabled"),
        Output("record-start", "disabled"),
        Output("record-dialog", "opened", allow_duplicate=True),
        Output("address", "href", allow_duplicate=True),
        Input("record-start", "n_clicks"),
        Input("record-watch", "n_intervals"),
        State("record-steps", "value"),
        State("record-watch", "disabled"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def record(
        clicks: int | None, _ticks: int, steps: Any, idle: bool | None, path: str, search: str
    ) -> tuple[Any, ...]:
        if ctx.triggered_id == "record-start" and clicks:
            return _started(recorder, steps)
        attempt = recorder.attempt
        if attempt is None or idle:
            return (no_update,) * 5
        return _followed(library, attempt, parse(path, search))


def _started(recorder: Recorder, steps: Any) -> tuple[Any, ...]:
    try:
        # JSON's true is the number 1 for Python, and no number of steps.
        attempt = recorder.start(steps if type(steps) is int else 0)
    except DiagnoseError as error:
        said = html.P(f"{error.message} {error.hint}".strip(), role="alert")
        return said, no_update, no_update, no_update, no_update
    return recording_dialog.said(attempt), False, True, no_update, no_update


def _followed(library: Library, attempt: Attempt, address: Address) -> tuple[Any, ...]:
    """What is said now; once it is recorded, the address of the result."""
    said = recording_dialog.said(attempt)
    if attempt.status is None:
        return said, no_update, no_update, no_update, no_update
    entry = library.at(attempt.folder) if attempt.recorded else None
    if entry is not None:
        href = Address(recording=entry.key, theme=address.theme).href
        return said, True, False, False, href
    # What was just written may not be listed yet; what failed never will be.
    return said, not attempt.recorded, attempt.recorded, no_update, no_update
