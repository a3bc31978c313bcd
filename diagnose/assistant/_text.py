"""Answers as one JSON text in which every text is printable and none is endless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from diagnose.wording.plain import plain

MOST_CHARACTERS = 20_000
"""Of a report: what does not fit is named, and can be asked for by name."""
_LONGEST_TEXT = 1000
_PIECE = 1000


class Lines(list[str]):
    """A text of several lines, each of which is untrusted."""

    @property
    def text(self) -> str:
        """The lines, printable and uncut, as one text."""
        return "\n".join(map(_printable_line, self))


def _printable_line(line: str) -> str:
    pieces = (line[at : at + _PIECE] for at in range(0, len(line), _PIECE))
    return "".join(map(plain, pieces))


def encoded(answer: Mapping[str, Any]) -> str:
    """The answer as compact JSON. Controls and marks that turn text appear as escapes."""
    return msgspec.json.encode(printable(answer)).decode()


def printable(value: Any) -> Any:
    """Every text in a value as one printable line; numbers as they are."""
    if isinstance(value, str):
        return plain(value, _LONGEST_TEXT)
    if isinstance(value, Lines):
        return value.text
    if isinstance(value, Mapping):
        return {plain(str(key), _LONGEST_TEXT): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with what is known of it."""
    return {key: value for key, value in row.items() if value is not None}
