"""The figures of the page: each with a title, how to read it, and the same as a table."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnose.analysis import Unavailable
from diagnose.reporters._html_text import Html, element, prose, text

if TYPE_CHECKING:
    from diagnose.plotting.definition import FigureContext, FigureDefinition, Tables
    from diagnose.plotting.style import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure for the page. ``reading`` says in a sentence how it is to be read."""

    key: str
    title: str
    reading: str
    figure: Figure

    def box(self) -> Html:
        """Where the script draws it, with what its colours mean: that wraps, as text does."""
        height = f"height:{int(self.figure.layout.height)}px"
        drawn = element(
            "div",
            id=f"figure-{self.key}",
            class_="plot",
            style=height,
            role="img",
            aria_label=f"{self.title}. {self.reading} The same as a table stands below.",
        )
        caption = element(
            "figcaption", element("h3", text(self.title)), element("p", prose(self.reading))
        )
        return element("figure", caption, self._legend(), drawn)

    def _legend(self) -> Html:
        """The series of the figure that have a name, if they are several."""
        named = [
            (str(one.name), _color(one))
            for one in self.figure.data
            if one.name and one.showlegend is not False
        ]
        if len(named) < 2:
            return Html("")
        keys = [
            element(
                "li",
                element("i", class_="state", style=f"background:var({color})"),
                text(html.unescape(name)),
            )
            for name, color in named
        ]
        return element("ul", *keys, class_="legend")


def _color(series: Any) -> str:
    """The custom property of the page that has the colour of a series."""
    from diagnose.plotting.palette import LIGHT, properties

    found: str = series.line.color if series.type == "scatter" else series.marker.color
    return {color: name for name, color in properties(LIGHT).items()}[found]


def data_of(drawings: list[Drawing]) -> dict[str, Any]:
    """What the script needs: the figures in light, and what each colour is in dark."""
    from diagnose.plotting.palette import DARK, LIGHT, recoloring

    for one in drawings:
        one.figure.update_layout(showlegend=False)  # the page has its own
    return {
        "figures": {one.key: json.loads(one.figure.to_json()) for one in drawings},
        "dark": recoloring(LIGHT, DARK),
    }


def drawn(definition: FigureDefinition, given: Tables, context: FigureContext) -> list[Drawing]:
    """The figure as a list of one; empty where there is nothing to draw."""
    tables = {key: given.get(key, Unavailable("not asked for")) for key in definition.needs}
    made = definition.draw(tables, context)
    if isinstance(made, Unavailable):
        return []
    key = definition.name.replace("_", "-")
    return [Drawing(key, definition.title, definition.reading, made)]


Labels = Mapping[tuple[int, int], str]
