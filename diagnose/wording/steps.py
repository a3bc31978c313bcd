"""What steps are called."""

from __future__ import annotations

from diagnose.schema import NULL
from diagnose.trace import Trace
from diagnose.wording.plain import plain

STEP_WIDTH = 24
"""Characters of the name of a step that has no number."""


def step_label(trace: Trace, row: int, *, unicode: bool = True) -> str:
    """A step's number, or its name where it has none; ``none`` for work of no step."""
    if row < 0:
        return "none"
    number = int(trace.steps["number"][row])
    name = trace.strings[int(trace.steps["name"][row])]
    if number != NULL and name == f"ProfilerStep#{number}":
        return str(number)
    return plain(name, STEP_WIDTH, unicode=unicode)
