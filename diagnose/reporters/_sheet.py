"""A table as a report shows it, before any format draws it: text cells and bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class State(NamedTuple):
    """One of the states that share a stretch of time, and how a bar shows it."""

    column: str
    label: str
    sign: str
    ascii_sign: str
    color: str


STATES = (
    State("compute_only_ns", "compute", "█", "#", "green"),
    State("overlapped_ns", "compute + comm.", "▓", "%", "cyan"),
    State("exposed_communication_ns", "exposed comm.", "░", "!", "red"),
    State("memory_only_ns", "copies only", "m", "m", "yellow"),
    State("idle_ns", "idle", "·", ".", "bright_black"),
)


class Bar(NamedTuple):
    """A stretch of time: what each state took of it, and how long the longest one is."""

    shares_ns: tuple[int, ...]
    longest_ns: int

    def signs(self, width: int, *, unicode: bool) -> list[tuple[str, State]]:
        """The bar in at most ``width`` columns.

        Cells go by largest remainder: each state gets its whole cells, and those
        left over from the bar's own length go to the largest fractions. What a
        state gets depends on its size, not on where it stands.
        """
        total = sum(self.shares_ns)
        length = (2 * total * width + self.longest_ns) // (2 * self.longest_ns)
        cells = [share * width // self.longest_ns for share in self.shares_ns]
        fractions = [share * width % self.longest_ns for share in self.shares_ns]
        by_fraction = sorted(range(len(cells)), key=lambda at: -fractions[at])
        for at in by_fraction[: length - sum(cells)]:
            cells[at] += 1
        return [
            ((state.sign if unicode else state.ascii_sign) * number, state)
            for number, state in zip(cells, STATES, strict=True)
        ]


@dataclass(frozen=True)
class Heading:
    """A column's label and unit. Where the page is too narrow, higher ``spare`` goes first."""

    label: str
    unit: str = ""
    left: bool = False
    spare: int = 0


@dataclass(frozen=True)
class Sheet:
    """A titled table. ``bars``, if any, has one entry a row; the bar is the last column."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[Bar | None, ...] = ()
    bar_label: str = ""
    footnotes: tuple[str, ...] = ()

    def without_spare(self, least: int) -> Sheet:
        """The sheet without the columns whose ``spare`` is ``least`` or more."""
        kept = [i for i, heading in enumerate(self.headings) if heading.spare < least]
        return Sheet(
            self.title,
            tuple(self.headings[i] for i in kept),
            tuple(tuple(row[i] for i in kept) for row in self.rows),
            self.bars,
            self.bar_label,
            self.footnotes,
        )
