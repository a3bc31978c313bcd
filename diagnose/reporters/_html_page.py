"""The file around the content: head, style, scripts, and a policy that lets no other script run."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from diagnose.reporters._html_text import Html, element, script_data, text

ASSETS = resources.files("diagnose.reporters") / "_assets"
PLOTLY = "plotly-basic.min.js"
_ICONS = {
    "critical": '<path d="M5 1h6l4 4v6l-4 4H5l-4-4V5z"/><path class="cut" d="M8 4v5M8 11v1"/>',
    "warning": '<path d="M8 1.2 15.4 14.5H.6z"/><path class="cut" d="M8 6v4M8 11.4v1"/>',
    "info": '<circle cx="8" cy="8" r="7"/><path class="cut" d="M8 4v1M8 7v5"/>',
    "hint": '<circle class="open" cx="8" cy="8" r="6"/><path class="stroke" d="M8 7v4M8 5v0"/>',
    "good": '<circle cx="8" cy="8" r="7"/><path class="cut" d="M4.6 8.2 7 10.6l4.4-5"/>',
}


@cache
def asset(name: str) -> str:
    """A file that ships with the package."""
    return (ASSETS / name).read_text(encoding="utf-8")


def icon(kind: str) -> Html:
    """A sign of a severity, drawn: its shape says it too, not its colour alone."""
    return Html(
        f'<svg class="icon {kind}" viewBox="0 0 16 16" aria-hidden="true">{_ICONS[kind]}</svg>'
    )


def page(title: str, body: Html, figures: dict[str, Any]) -> Html:
    """The whole file. It asks for nothing from outside, and its policy forbids it to."""
    scripts = [asset("theme.js")]
    parts = [body]
    if figures["figures"]:
        scripts += [asset(PLOTLY), asset("figures.js")]
        # Data, not a script: a browser does not run what has this type.
        data = f'<script type="application/json" id="figures">{script_data(figures)}</script>'
        parts += [Html(data), *(_script(source) for source in scripts[1:])]
    head = [
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html('<meta name="referrer" content="no-referrer">'),
        element("title", text(title)),
        Html(f"<style>{themes()}{asset('report.css')}</style>"),
        _script(scripts[0]),
    ]
    whole = element("html", element("head", *head), element("body", *parts), lang="en")
    return Html(f"<!DOCTYPE html>\n{whole}\n")


def _script(source: str) -> Html:
    return Html(f"<script>{source}</script>")


def policy(scripts: list[str]) -> str:
    """A content security policy under which exactly these scripts run, and nothing is fetched."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def themes() -> str:
    """The palettes as custom properties: by the system's setting, or as chosen; paper is light."""
    from diagnose.plotting.palette import DARK, LIGHT, properties

    light, dark = (
        "".join(f"{name}:{color};" for name, color in properties(palette).items())
        for palette in (LIGHT, DARK)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
