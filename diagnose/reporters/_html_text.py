"""From text to HTML: the one place where what a trace says becomes part of a page.

Everything that the page shows passes through ``text`` or ``name``; ``element`` takes
only what they made. Nothing else writes markup from a value.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

from diagnose.wording.plain import plain

LONGEST = 300
"""Characters of a name that are shown at once; the rest opens on demand."""
_COMFORTABLE = 96
_CHUNK = 2000
"""As many characters at once as ``plain`` looks at."""
_UNIT = re.compile(r"(\d) (%|[mun]?s|W|J|MHz|GB/s|[KMG]iB)(?![\w/])")
_UNSAFE_IN_SCRIPT = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


class Html(str):
    """Markup: text that was escaped, and tags that this package wrote."""

    __slots__ = ()


def text(value: str) -> Html:
    """A text that the page shows as it is: printable, escaped, of any length."""
    chunks = [value[at : at + _CHUNK] for at in range(0, len(value), _CHUNK)]
    return Html(html.escape("".join(map(plain, chunks)), quote=True))


def prose(value: str) -> Html:
    """A sentence: what stands between backticks as code, a figure on one line with its unit."""
    parts = _UNIT.sub("\\1\u00a0\\2", text(value)).split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is a character
        return Html("`".join(parts))
    return Html("".join(f"<code>{one}</code>" if at % 2 else one for at, one in enumerate(parts)))


def name(value: str) -> Html:
    """A name from a trace: cut where it is long, whole on demand (mouse, keyboard or print)."""
    if len(value) <= _COMFORTABLE:
        return Html(f'<span class="name">{text(value)}</span>')
    first = text(plain(value[: _COMFORTABLE - 1]) + "…")
    number = f"{len(value):,} characters"
    return Html(
        f'<details class="name"><summary>{first} <span class="more">{number}</span></summary>'
        f'<span class="whole">{text(value)}</span></details>'
    )


def element(tag: str, *content: str, **attributes: str) -> Html:
    """``<tag ...>content</tag>``. Content is markup already; attributes are escaped here.

    ``class_`` and ``for_`` lose their underscore; other underscores become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{tag}{written}>{''.join(content)}</{tag}>")


def join(parts: list[Html] | tuple[Html, ...]) -> Html:
    """Parts one after the other."""
    return Html("".join(parts))


def script_data(value: Any) -> Html:
    """JSON that can stand in a script element: nothing in it ends the element or a line."""
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, written in _UNSAFE_IN_SCRIPT.items():
        encoded = encoded.replace(character, written)
    return Html(encoded)
