"""The colours of every figure and page, for light and dark.

Data colours keep their order of lightness and differ in hue by blue, orange and
yellow, which red-green blindness leaves apart (after Okabe and Ito, "Color
Universal Design", 2008); a test measures their distance under simulated protanopia
and deuteranopia. No meaning rests on colour alone: stacks have a fixed order,
severities an icon and a word.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """Colours by what they stand for, as ``#rrggbb``."""

    page: str
    surface: str
    ink: str
    muted: str
    line: str
    grid: str
    accent: str
    compute: str
    overlapped: str
    exposed: str
    copies: str
    idle: str
    on_compute: str
    """Text upon ``compute`` and ``exposed``."""
    on_light: str
    """Text upon ``overlapped`` and ``copies``."""
    on_idle: str
    gain: str
    bound: str
    critical: str
    warning: str
    info: str
    hint: str
    good: str
    series: tuple[str, ...]
    """For lines of different GPUs, told apart by their order."""

    def state(self, column: str) -> str:
        """The colour of a state by its column in ``breakdown``."""
        return str(getattr(self, STATE_FIELDS[column]))

    def on_state(self, column: str) -> str:
        """The colour of text upon a state."""
        if column == "idle_ns":
            return self.on_idle
        return self.on_compute if column in _DEEP else self.on_light


STATE_FIELDS = {
    "compute_only_ns": "compute",
    "overlapped_ns": "overlapped",
    "exposed_communication_ns": "exposed",
    "memory_only_ns": "copies",
    "idle_ns": "idle",
}
_DEEP = frozenset({"compute_only_ns", "exposed_communication_ns"})

LIGHT = Palette(
    page="#fdfdfc",
    surface="#f5f6f7",
    ink="#171c22",
    muted="#5a646e",
    line="#dde1e5",
    grid="#eceef1",
    accent="#2456a6",
    compute="#2f5f9e",
    overlapped="#8fbfe0",
    exposed="#c8501e",
    copies="#e9b949",
    idle="#d3d8dd",
    on_compute="#fffffe",
    on_light="#1a1f25",
    on_idle="#1a1f26",
    gain="#4f7fbd",
    bound="#b9c3cd",
    critical="#a8201a",
    warning="#9a5b00",
    info="#3b6ea5",
    hint="#66707a",
    good="#2b7a4b",
    series=(
        "#2f5f9f",
        "#c8501f",
        "#3c8d80",
        "#b0873a",
        "#7a5aa6",
        "#5b9bd1",
        "#8a4a3c",
        "#6d7883",
    ),
)

DARK = Palette(
    page="#13171c",
    surface="#1b2027",
    ink="#e5e9ed",
    muted="#99a4af",
    line="#2f3740",
    grid="#262d35",
    accent="#86aeea",
    compute="#5a8dcf",
    overlapped="#a9d3ec",
    exposed="#e8743f",
    copies="#edc765",
    idle="#434d58",
    on_compute="#0d1116",
    on_light="#0e1217",
    on_idle="#e5e9ee",
    gain="#6f9fdd",
    bound="#4d5863",
    critical="#ff8a80",
    warning="#f0b055",
    info="#8ab4e8",
    hint="#9aa5b0",
    good="#6fc793",
    series=(
        "#5a8dce",
        "#e8743e",
        "#5fb9aa",
        "#d9b066",
        "#a88bd6",
        "#a9d3eb",
        "#c98a7b",
        "#a3aeb9",
    ),
)


def properties(palette: Palette) -> dict[str, str]:
    """The colours as custom properties of a page: ``--on-light``, ``--series-0``."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(palette):
        name, value = f"--{field.name.replace('_', '-')}", getattr(palette, field.name)
        if isinstance(value, tuple):
            found |= {f"{name}-{number}": color for number, color in enumerate(value)}
        else:
            found[name] = value
    return found


def recoloring(before: Palette, after: Palette) -> dict[str, str]:
    """What each colour becomes, to turn a drawn figure from light to dark."""
    return dict(zip(properties(before).values(), properties(after).values(), strict=True))
