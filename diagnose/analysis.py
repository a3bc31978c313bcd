"""The contract of an analysis: a pure function from a trace to one table.

A module under ``diagnose/analyzers/`` (also ``timeline`` and ``contention``)
exports ``ANALYZERS``, a tuple of ``Analyzer``. Being there is all it takes:
the engine walks the package, and each name becomes a method of ``Recording``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diagnose.schema import Detail, TableSchema
from diagnose.trace import Table


@dataclass(frozen=True)
class Unavailable:
    """Why a table does not exist for this trace, and how to record what it needs."""

    because: str
    remedy: str = ""


@dataclass(frozen=True)
class Analyzer:
    """One analysis.

    ``run(trace, **options)`` returns a ``Table`` of ``schema`` or ``Unavailable``;
    it reads nothing but the trace and changes nothing. ``needs`` is the least
    detail that it works with.
    """

    name: str
    needs: Detail
    schema: TableSchema
    run: Callable[..., Table | Unavailable]
