"""The key figures in a row: means of the job, and below them the range over its GPUs."""

from __future__ import annotations

from diagnose.findings import Diagnosis
from diagnose.reporters._html_text import Html, element, text
from diagnose.wording.numbers import Scale
from diagnose.wording.tiles import Tile, tiles_of

_WIDEST = 270
"""Of a tile, in pixels."""


def tiles(diagnosis: Diagnosis, scale: Scale) -> Html:
    """The tiles that the recording has figures for; nothing if it has none."""
    found = list(tiles_of(diagnosis, scale))
    if not found:
        return Html("")
    # Few tiles are not to be stretched over the whole page.
    return element(
        "dl", *map(_drawn, found), class_="tiles", style=f"max-width:{_WIDEST * len(found)}px"
    )


def _drawn(tile: Tile) -> Html:
    unit = element("small", text(tile.unit)) if tile.unit else Html("")
    below = element("dd", text(tile.below), class_="below") if tile.below else Html("")
    kind = f"tile {tile.state}".strip()
    value = element("dd", text(tile.value), unit, class_="value")
    return element("div", element("dt", text(tile.label)), value, below, class_=kind)
