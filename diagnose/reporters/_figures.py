"""Columns of figures on their way to a sheet: how each is written, and which rows are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.reporters._places import Places
from diagnose.reporters._sheet import Heading
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, percent

MOST_ROWS = 16
WORST_ROWS = 8
SPREAD = ("least", "median", "most")


class Figure(NamedTuple):
    """A column of figures: its heading, its values and how one is written."""

    heading: Heading
    values: npt.NDArray[Any]
    write: Callable[[Any], str]

    def cells(self, rows: Sequence[int]) -> list[str]:
        return [self.write(self.values[row].item()) for row in rows]


def known_values(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of a column that are not null."""
    known: npt.NDArray[Any] = values[
        ~np.isnan(values) if values.dtype.kind == "f" else values != NULL
    ]
    return known


def spread(figure: Figure) -> list[str]:
    """Least, median and greatest of a column: values that occur in it, the lower median."""
    known = np.sort(known_values(figure.values))
    if not known.size:
        return [ABSENT] * len(SPREAD)
    places = (0, (known.size - 1) // 2, known.size - 1)
    return [figure.write(known[place].item()) for place in places]


def worst_first(values: npt.NDArray[Any], candidates: npt.NDArray[np.bool_]) -> list[int]:
    """Rows by falling value, nulls last; equal values in the table's order."""
    rows = np.flatnonzero(candidates)
    keys = np.where(np.isnan(values), -np.inf, values) if values.dtype.kind == "f" else values
    order: list[int] = rows[np.argsort(-keys[rows].astype(np.float64), kind="stable")].tolist()
    return order


def choose(
    figures: list[Figure],
    badness: npt.NDArray[Any],
    most: int,
    counted_rows: npt.NDArray[np.bool_] | None = None,
) -> tuple[list[int], list[list[str]]]:
    """All rows of a short table; of a long one the spread of each column and the worst rows."""
    everything = np.ones(len(badness), bool) if counted_rows is None else counted_rows
    if int(everything.sum()) <= most:
        return list(range(len(badness))), []
    taken = [figure._replace(values=figure.values[everything]) for figure in figures]
    columns = [spread(figure) for figure in taken]
    return worst_first(badness, everything)[:WORST_ROWS], [
        list(r) for r in zip(*columns, strict=True)
    ]


def rows_of(
    table: Table, figures: list[Figure], chosen: list[int], places: Places
) -> list[tuple[str, ...]]:
    columns = [figure.cells(chosen) for figure in figures]
    where = zip(table["source"][chosen].tolist(), table["device"][chosen].tolist(), strict=True)
    return [
        (*places.cells(*gpu), *cells)
        for gpu, cells in zip(where, zip(*columns, strict=True), strict=True)
    ]


def headings_of(places: Places, figures: list[Figure]) -> tuple[Heading, ...]:
    return (*places.headings, *(figure.heading for figure in figures))


def time(table: Table, name: str, label: str, scale: Scale, *, spare: int = 0) -> Figure:
    return Figure(Heading(label, scale.unit, spare=spare), table[name], scale.show)


def share(table: Table, name: str, label: str, unit: str, *, spare: int = 0) -> Figure:
    return Figure(Heading(label, unit, spare=spare), table[name], percent)
