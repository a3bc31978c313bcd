"""The text table that nccl-tests prints: what this network reached, as a reference.

Understood are the tables of all versions (with and without ``redop`` and
``root``, ``error`` or ``#wrong``), wrapped in a log or not, behind a launcher's
prefix or not, several after one another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike, fspath

from diagnose.errors import EmptyInputError, InputNotFoundError, NotATraceError, UsageError
from diagnose.names import Classifier

_TEST = re.compile(r"(Collective test starting: *)?\b([A-Za-z]\w*?)_perf(?:_\w+)?\b")
_RANK = re.compile(r"\bRank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\b(?:\s+\d+\s+on\s+(\S+)\s+device\b)?")
_HEADER = re.compile(r"\bsize\s+count\s+type\s+(?=.*\bbusbw\b)")
_WORD = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True)
class ReferencePoint:
    """One row: the best bus bandwidth measured for a collective and size.

    ``busbw_gb_per_s`` (10^9 bytes/s) is the larger of out-of-place and in-place.
    ``num_ranks`` is None if the log does not list the ranks, ``num_hosts`` if it does not
    name the machine of each.
    """

    collective: str
    bytes: int
    busbw_gb_per_s: float
    num_ranks: int | None
    num_hosts: int | None = None


@dataclass
class _Table:
    collective: str | None
    num_ranks: int | None = None
    columns: tuple[str, ...] = ()
    hosts: list[str | None] = field(default_factory=list)
    """Of each rank that is listed."""

    @property
    def num_hosts(self) -> int | None:
        return None if not self.hosts or None in self.hosts else len(set(self.hosts))


def read(path: str | PathLike[str], collective: str | None = None) -> tuple[ReferencePoint, ...]:
    """All rows of the tables in a file, in order; rows of 0 bytes are left out.

    ``collective`` says what was measured where the log does not (nccl-tests name
    the test since 2.17; before, only the command line does). Raises ``InputNotFoundError``,
    ``EmptyInputError``, ``NotATraceError`` without a single row, and ``UsageError``
    if nothing says which collective it was, or a row counts wrong values.
    """
    path = fspath(path)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        raise InputNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise EmptyInputError(f"{path}: empty", hint="give the output of nccl-tests")
    given = None
    if collective is not None:
        given = Classifier.load().normalise(collective)
        if given is None:
            raise UsageError(f"unknown collective {collective!r}", hint="as all_reduce")
    points = tuple(_points(path, text, given))
    if not points:
        raise NotATraceError(
            f"{path}: no table of nccl-tests in it",
            hint="give what all_reduce_perf and its like print, as text",
        )
    return points


def _points(path: str, text: str, given: str | None) -> Iterator[ReferencePoint]:
    table = _Table(given)
    normalise = Classifier.load().normalise
    for number, line in enumerate(text.splitlines(), 1):
        header, rank, test = _HEADER.search(line), _RANK.search(line), _TEST.search(line)
        if header:
            table.columns = tuple(line[header.start() :].split())
        elif rank:
            if table.columns:
                table = _Table(table.collective)
            table.num_ranks = max(table.num_ranks or 0, int(rank.group(1)) + 1)
            table.hosts.append(rank.group(2))
        elif test and (test.group(1) or normalise(test.group(2))):
            table = _Table(normalise(test.group(2)))
        elif table.columns and (row := _row(line, table.columns)):
            point = _point(f"{path}: line {number}", table, row)
            if point is not None:
                yield point


def _row(line: str, columns: tuple[str, ...]) -> list[tuple[str, str]] | None:
    words = line.split()
    for first in range(len(words) - len(columns) + 1):
        size, count, kind = words[first : first + 3]
        if size.isdecimal() and count.isdecimal() and _WORD.fullmatch(kind):
            return list(zip(columns, words[first:], strict=False))
    return None


def _point(where: str, table: _Table, row: list[tuple[str, str]]) -> ReferencePoint | None:
    if table.collective is None:
        raise UsageError(
            f"{where}: nothing above this table says which collective was measured",
            hint="put '# Collective test starting: all_reduce_perf' (or what it was) above it",
        )
    if any(name == "#wrong" and value not in ("0", "N/A") for name, value in row):
        raise UsageError(
            f"{where}: nccl-tests counted wrong values here, so it is no reference",
            hint="find out why NCCL computes wrong results before its speed",
        )
    try:
        size = int(row[0][1])
        busbw = max(float(value) for name, value in row if name == "busbw")
    except ValueError:
        raise UsageError(f"{where}: busbw is not a number") from None
    if not math.isfinite(busbw):
        raise UsageError(f"{where}: busbw is {busbw}")
    if not size:
        return None
    return ReferencePoint(table.collective, size, busbw, table.num_ranks, table.num_hosts)
