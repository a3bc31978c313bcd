"""Findings as aligned, wrapped text with a hanging indent."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diagnose.reporters._findings import Line

_INDENT = 3
_UNIT = re.compile(r"(?<=\d) (?=(?:%|us|ms|s|W|MHz|MiB|GiB|KiB|GB/s|times)(?![\w]))")
_LABEL = 9
"""Columns of ``evidence`` and its blank."""
_STYLES = {
    "critical": "bold red",
    "warning": "bold yellow",
    "info": "bold",
    "hint": "dim",
}


class Styled(NamedTuple):
    """A printed line; ``start`` and ``end`` bound the part with the style."""

    text: str
    style: str = ""
    start: int = 0
    end: int | None = None


def styled(lines: Iterable[Line], width: int) -> Iterator[Styled]:
    """The lines, wrapped. A blank one stands before each finding but the first."""
    first = True
    for line in lines:
        if line.role == "head":
            if not first:
                yield Styled("")
            first = False
            label = f"{line.label}. {line.severity}"
            at = len(line.label) + 2
            text = f"{label}  {line.text}"
            for number, part in enumerate(_wrap(text, width, _INDENT)):
                yield (
                    Styled(part, _STYLES[line.severity], at, len(label))
                    if not number
                    else (Styled(part))
                )
        elif line.role == "sentence":
            indent = " " * _INDENT
            yield from map(Styled, _wrap(indent + line.text, width, _INDENT))
        elif line.role == "code":
            yield Styled(" " * (_INDENT + _LABEL + 2) + line.text, "cyan")
        elif line.role in ("quiet", "failed"):
            text = f"{line.label}: {line.text}" if line.label else line.text
            style = "bold red" if line.role == "failed" else "dim"
            yield from (Styled(part, style) for part in _wrap(text, width, 2))
        else:
            before = " " * _INDENT + (
                line.label.ljust(_LABEL)
                if line.role != "step"
                else line.label.rjust(_LABEL - 1) + " "
            )
            style = "dim" if line.role in ("evidence", "caveat", "folded", "more") else ""
            parts = _wrap(before + line.text, width, _INDENT + _LABEL)
            yield from (Styled(part, style) for part in parts)


def _wrap(text: str, width: int, indent: int) -> list[str]:
    # A figure and its unit stay together: textwrap does not break at a no-break space.
    tied = _UNIT.sub("\u00a0", text)
    lines = textwrap.wrap(tied, width, subsequent_indent=" " * indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]
