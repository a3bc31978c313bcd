"""Step marks, and the step during which something was launched."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble.part import Rows, reorder, sorted_rows
from diagnose.readers.raw import Columns
from diagnose.schema import NO_ROW, NULL

_MARK = re.compile(r"ProfilerStep#(\d+)")
_MAX_DIGITS = 18
_PREFERRED = ("user_annotation", "cpu_op")


def find(host: Columns, strings: list[str]) -> Columns:
    """The table ``steps`` of one process, without ``source``.

    The same mark may be written several times (as annotation, as operator, as
    Python function, once for each thread): the annotation counts before the
    operator, and of marks with one name that overlap in time the outer one counts.
    """
    numbers = {code: _number(text) for code, text in enumerate(strings) if "ProfilerStep" in text}
    codes = np.array([code for code, number in numbers.items() if number is not None], np.int64)
    rows = np.flatnonzero(np.isin(host["name"], codes))
    rows = _preferred(rows, host["category"][rows], strings)
    rows = _distinct(rows, host)
    marks: Columns = {
        "op_id": host["op_id"][rows],
        "thread": host["thread"][rows],
        "name": host["name"][rows],
        "number": np.array([numbers[code] for code in host["name"][rows].tolist()], np.int64),
        "start_ns": host["start_ns"][rows],
        "end_ns": host["end_ns"][rows],
    }
    reorder(marks, sorted_rows(marks["start_ns"], marks["op_id"]))
    return marks


def of(steps: Columns, moments: npt.NDArray[np.int64]) -> Rows:
    """The row of the step whose ``[start, end)`` holds each moment, else ``NO_ROW``.

    Where marks lie in each other, the one that began last (the inner one) counts.
    """
    order = np.argsort(moments, kind="stable")
    ordered = moments[order]
    low = np.searchsorted(ordered, steps["start_ns"], side="left")
    high = np.searchsorted(ordered, steps["end_ns"], side="left")
    held = np.full(len(moments), NO_ROW, np.int64)
    for row, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        held[first:last] = row
    result = np.full(len(moments), NO_ROW, np.int64)
    result[order] = held
    return result


def _number(text: str) -> int | None:
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    digits = match.group(1)
    return int(digits) if len(digits) <= _MAX_DIGITS else NULL


def _preferred(rows: Rows, categories: npt.NDArray[np.int32], strings: list[str]) -> Rows:
    for wanted in _PREFERRED:
        chosen = np.array(
            [code >= 0 and strings[code] == wanted for code in categories.tolist()], bool
        )
        if chosen.any():
            kept: Rows = rows[chosen]
            return kept
    return rows


def _distinct(rows: Rows, host: Columns) -> Rows:
    """Of marks with one name that overlap, the first and longest. Few rows: a plain loop."""
    start, end, name = (host[column][rows] for column in ("start_ns", "end_ns", "name"))
    order = np.lexsort((-end, start, name))
    kept: list[int] = []
    current, covered = NO_ROW, NULL
    for position, code, first, last in zip(
        order.tolist(),
        name[order].tolist(),
        start[order].tolist(),
        end[order].tolist(),
        strict=True,
    ):
        if code != current or first >= covered:
            kept.append(position)
            current, covered = code, last
    result: Rows = rows[np.sort(np.array(kept, np.int64))]
    return result
