"""The application: the frame around all pages, the callbacks that fill it, and who may ask."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import dash
from flask import Response, request
from werkzeug.exceptions import HTTPException

from dashboard import callbacks, frame, recording_dialog, theme
from dashboard.callbacks.shell import on_error, report
from dashboard.library import Library
from dashboard.live import Recorder
from dashboard.security import Guard
from dashboard.view import views

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{%title%}</title>{%favicon%}{%css%}<style>STYLE</style></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>
"""
_MOST_BODY_BYTES = 8 * 2**20
"""Of a request: what pages send is a few kilobytes."""
_ASKED_BY_PAGES = "/_dash-update-component"
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
"""What Dash raises for a request that is none of its own."""


def create_app(library: Library, guard: Guard, *, recorder: Recorder | None = None) -> dash.Dash:
    """The dashboard of a library. Nothing in it is loaded from another server.

    ``recorder``: what "Record now" starts. None: there is no such button, and no callback
    behind it either.
    """
    # Before any request: Dash wants to know all component libraries from the start.
    views()
    app = dash.Dash(
        __name__,
        title=frame.NAME,
        update_title="",
        serve_locally=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        suppress_callback_exceptions=True,
        add_log_handler=False,
        on_error=on_error,
    )
    app.index_string = _PAGE.replace("STYLE", theme.style_sheet())
    app.layout = frame.frame(None if recorder is None else recording_dialog.dialog())
    app.server.config["MAX_CONTENT_LENGTH"] = _MOST_BODY_BYTES
    app.server.register_error_handler(Exception, _failure)
    callbacks.register(app, library, recorder)
    guard.protect(app.server, _scripts(app))
    return app


def _failure(error: Exception) -> Response | HTTPException:
    """What no callback could answer: a request that no page makes, or a bug; never a traceback."""
    if isinstance(error, HTTPException):
        return error
    if request.path == _ASKED_BY_PAGES and isinstance(error, _MALFORMED):
        return _plain(400, "No page of this dashboard asks that.")
    report(error, f"{request.method} {request.path!r}")
    return _plain(500, f"The dashboard failed: {type(error).__name__}. Its terminal says more.")


def _plain(status: int, sentence: str) -> Response:
    return Response(f"{sentence}\n", status, mimetype="text/plain")


def _scripts(app: dash.Dash) -> tuple[str, ...]:
    """The hashes of Dash's inline scripts, as a content security policy names them."""
    inline = [*app._inline_scripts, app.renderer]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline]
    return tuple(f"'sha256-{digest}'" for digest in digests)
