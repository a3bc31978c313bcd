"""Reports, one format a file. Each exports ``REPORTER``; none computes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis


@dataclass(frozen=True)
class Page:
    """What a report is drawn on: width in columns, and whether it shows colour and Unicode."""

    width: int = 100
    color: bool = False
    unicode: bool = True


@dataclass(frozen=True)
class Reporter:
    """A format. ``render(diagnosis, out, page)`` writes the whole report to ``out``.

    ``suffixes`` are the ends of file names that ask for it. ``further`` are tables that
    only this format draws, beside ``engine.REPORT``: name -> analysis and its options.
    """

    name: str
    suffixes: tuple[str, ...]
    render: Callable[[Diagnosis, TextIO, Page], None]
    further: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
