"""What the parts of the timeline's figure share: colours, words, lengths, the axis' unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diagnose.lanes import Category, OpTable, StepMark
from diagnose.plotting.palette import Palette
from diagnose.plotting.style import inert

MS = 1_000_000
"""Nanoseconds of a unit of the axis."""
CATEGORIES = {
    Category.COMPUTE: "compute",
    Category.OVERLAPPED: "communication",
    Category.EXPOSED: "exposed communication",
    Category.COPIES: "copies",
    Category.HOST: "host operator",
    Category.CALL: "call into the runtime",
}
"""What each colour is called in a legend."""
CHARACTER = 6.6
"""Pixels of a character of the figure's small type, nearly always less."""
_PREFIX = {OpTable.GPU_OPS: "g", OpTable.HOST_OPS: "h", OpTable.LAUNCHES: "l"}


@dataclass(frozen=True)
class Mark:
    """A stretch of a lane to point at: the selection, or a hit of a search."""

    lane: str
    depth: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Marks:
    """What is drawn over the lanes."""

    selected: Mark | None = None
    found: Sequence[Mark] = ()
    linked: Sequence[Mark] = ()
    """The launch or the kernel of the selection, and the same collective on other ranks."""
    steps: Sequence[StepMark] = field(default=())
    steps_left_out: bool = False
    """Whether there are more steps in the window: then where they end is not drawn."""
    ruler: Sequence[int] = ()
    """One or both ends of what is measured, in nanoseconds on the axis."""


def color_of(category: Category, palette: Palette) -> str:
    """The colour of a category."""
    colors = {
        Category.COMPUTE: palette.compute,
        Category.OVERLAPPED: palette.overlapped,
        Category.EXPOSED: palette.exposed,
        Category.COPIES: palette.copies,
        Category.HOST: palette.bound,
        Category.CALL: palette.idle,
    }
    return colors[category]


def key_of(table: OpTable, row: int) -> str | None:
    """How ``customdata`` names an operation; None for what is none."""
    return f"{_PREFIX[table]}{row}" if table in _PREFIX else None


def operation_of(customdata: object) -> tuple[str, int] | None:
    """The table and row that a bar's ``customdata`` names; None for what is no operation."""
    if not isinstance(customdata, str) or not customdata[1:].isdecimal():
        return None
    known = {letter: table.label for table, letter in _PREFIX.items()}
    table = known.get(customdata[0])
    return None if table is None else (table, int(customdata[1:]))


def duration(ns: int) -> str:
    """A length of time in the unit that suits it."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:,.3f} {unit}"
    return f"{ns} ns"


def cut(text: str, most: int) -> str:
    """At most so many characters, then inert: cut first, so that no entity is cut."""
    return inert(text if len(text) <= most else text[: max(most - 1, 1)] + "…")
