"""A figure as plain data while it is drawn: plotly checks each value, which takes longer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from diagnose.plotting.palette import Palette
from diagnose.plotting.style import Figure, template


@cache
def _look(palette: Palette) -> Any:
    return template(palette).to_plotly_json()


class Sheet:
    """Traces and layout, written as plotly's own figure is."""

    def __init__(self, palette: Palette, height: int, **layout: Any) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {"template": _look(palette), "height": height, **layout}

    def add_bar(self, **given: Any) -> None:
        self.data.append({"type": "bar", **given})

    def add_scatter(self, **given: Any) -> None:
        self.data.append({"type": "scatter", **given})

    def update_layout(self, given: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Set parts of the layout as a whole."""
        self.layout.update({**(given or {}), **more})

    def plain(self) -> dict[str, Any]:
        """What the browser's plotly reads. Not to be changed: the look is shared."""
        return {"data": self.data, "layout": self.layout}

    def figure(self) -> Figure:
        """The figure, each value checked."""
        return Figure(self.plain())
