"""The timeline: all ranks over the whole window, down to single kernels."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import lanes, scene
from dashboard.view import Component, View, Visit
from diagnose.figures.timeline import CATEGORIES, HEAD
from diagnose.lanes import Category

_KEYS = (
    ("w s", "zoom in and out; so does the wheel"),
    ("a d", "move; so does dragging"),
    ("Shift + drag", "zoom into a box"),
    ("double click, 0", "the whole recording"),
    ("click", "select an operation"),
    ("f", "fit the selection"),
    ("r", "ruler: click twice or drag"),
    ("Esc", "clear the ruler, then the selection"),
    ("/", "search; Enter or n next, N previous"),
    ("Shift + wheel", "scroll the page over the lanes"),
    ("?", "show these keys"),
)
_SWATCHES = {
    Category.COMPUTE: "compute",
    Category.OVERLAPPED: "overlapped",
    Category.EXPOSED: "exposed",
    Category.COPIES: "copies",
    Category.HOST: "bound",
    Category.CALL: "idle",
}


def draw(visit: Visit) -> Component:
    """The frame of the page; callbacks fill it for the address."""
    timeline = visit.shown.timeline
    return html.Div(
        [
            html.Div(
                [_tools(visit), html.Div(id="timeline-said", className="muted said")],
                className="toolbar",
            ),
            html.Div([*_legend(), _keys()], className="legend"),
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(_axis(), className="time-head"),
                            html.Div(
                                [
                                    html.Div(id="lane-labels", className="lane-labels"),
                                    dcc.Graph(
                                        id="timeline", config=scene.CONFIG, className="lanes"
                                    ),
                                ],
                                className="stage",
                            ),
                            html.Div(id="lane-pages", className="lane-pages"),
                        ],
                        className="stages",
                    ),
                    html.Aside(id="details", className="details"),
                ],
                className="timeline",
            ),
            html.P(timeline.clock, className="muted reading"),
            dcc.Store(id="plot-width", data=lanes.WIDTH),
            dcc.Store(id="drawn-timeline"),
            dcc.Store(id="asked"),
        ]
    )


def _axis() -> list[Component]:
    return [
        html.Div(className="lane-labels"),
        dcc.Graph(
            id="time-axis", config=scene.HEAD_CONFIG, className="lanes", style={"height": HEAD}
        ),
    ]


def _tools(visit: Visit) -> Component:
    button = {"size": "xs", "variant": "default"}
    return dmc.Group(
        [
            dmc.TextInput(
                id="find",
                value=visit.address.find,
                placeholder="Find by name",
                debounce=400,
                size="xs",
                w=220,
                **{"aria-label": "Find operations by name"},
            ),
            dmc.Button("Previous", id="find-previous", **button),
            dmc.Button("Next", id="find-next", **button),
            html.Span(id="find-said", className="muted said", role="status"),
            dmc.Button("Whole recording", id="zoom-out", **button),
            dmc.Button("Unfold all", id="unfold-all", **button),
            dmc.Button("Fold all", id="fold-all", **button),
            dmc.Button("Ruler", id="ruler-switch", **button, **{"aria-pressed": "false"}),
            html.Span(id="ruler-said", className="said measured", role="status"),
        ],
        gap="xs",
    )


def _keys() -> Component:
    rows = [html.Tr([html.Th(key), html.Td(what)]) for key, what in _KEYS]
    short = "Keys: w a s d, f, r, / and ?"
    return html.Details(
        [html.Summary(short), html.Table(html.Tbody(rows))], id="keys", className="keys"
    )


def _legend() -> list[Component]:
    return [
        html.Span([html.I(style={"background": f"var(--{_SWATCHES[one]})"}), CATEGORIES[one]])
        for one in Category
    ]


VIEW = View("timeline", "Timeline", 10, draw, reads=lambda _: ())
