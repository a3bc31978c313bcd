"""How all pages look: the palette of the figures as custom properties, and Mantine's theme."""

from __future__ import annotations

from typing import Any

from diagnose.plotting.palette import DARK, LIGHT, Palette, properties
from diagnose.plotting.style import FONT

PALETTES = {"light": LIGHT, "dark": DARK}


def palette_of(scheme: str | None) -> Palette:
    """The colours of a scheme; light for what is not known yet."""
    return PALETTES.get(scheme or "light", LIGHT)


def style_sheet() -> str:
    """Custom properties of both schemes: ``assets/dashboard.css`` uses them by name."""
    rules = []
    for name, palette in PALETTES.items():
        values = ";".join(f"{key}:{value}" for key, value in properties(palette).items())
        rules.append(f":root[data-mantine-color-scheme={name}]{{{values}}}")
    return "\n".join(rules)


def mantine() -> dict[str, Any]:
    """What Mantine's own components use."""
    return {
        "fontFamily": FONT,
        "primaryColor": "indigo",
        "defaultRadius": "sm",
        "headings": {"fontWeight": "650"},
    }
