"""The dialog to record this machine's job: how many steps, what is said meanwhile, the result."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import text
from dashboard.live import MOST_STEPS, Attempt
from dashboard.view import Component

_STEPS = 3
_MOST_LINES = 14
_ABOUT = (
    "Records some steps of the training job that runs on this machine, as `diagnose attach` "
    "does. The job goes on."
)


def dialog() -> dmc.Modal:
    """Closed at first; ``callbacks.live`` opens and fills it."""
    return dmc.Modal(
        [
            html.P(_ABOUT, className="muted"),
            dmc.NumberInput(
                id="record-steps", label="Steps", value=_STEPS, min=1, max=MOST_STEPS, w=140
            ),
            html.P(dmc.Button("Start", id="record-start", n_clicks=0)),
            html.Div(id="record-said", role="status"),
            dcc.Interval(id="record-watch", interval=500, disabled=True),
        ],
        id="record-dialog",
        title="Record now",
        size="lg",
        opened=False,
        closeButtonProps={"aria-label": "Close"},
    )


def said(attempt: Attempt) -> list[Component]:
    """What the command said so far, and how it ended."""
    lines = [text.shown(line) for line in list(attempt.lines)[-_MOST_LINES:]]
    shown: list[Component] = [html.Pre("\n".join(lines), className="said-by-command")]
    if attempt.status is None:
        return [dmc.Progress(value=100, animated=True, size="xs"), *shown]
    if not attempt.recorded:
        what = f"Nothing was recorded: the command ended with {attempt.status}."
        return [dmc.Alert(what, color="red", variant="light"), *shown]
    return [html.P("Recorded."), *shown]
