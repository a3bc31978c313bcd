"""What happens when something changes. Thin: a callback asks ``Shown`` and draws with a view."""

from __future__ import annotations

import dash

from dashboard.callbacks import compare, live, shell, timeline
from dashboard.library import Library
from dashboard.live import Recorder


def register(app: dash.Dash, library: Library, recorder: Recorder | None) -> None:
    """Tie all callbacks to an application; those that record only where that is allowed."""
    shell.register(app, library, may_record=recorder is not None)
    timeline.register(app, library)
    compare.register(app)
    if recorder is not None:
        live.register(app, library, recorder)
