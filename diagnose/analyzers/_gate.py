"""Whether a comparison shows that the steps became slower by more than is allowed."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from diagnose.analyzers._noise import Judgement
from diagnose.analyzers._step_figures import STEP_TIME
from diagnose.analyzers.comparison import Area
from diagnose.schema import NULL
from diagnose.trace import Table


class Gate(IntEnum):
    """The outcome of a limit on the growth of the step time."""

    PASSED = 0
    """The step time grew by no more than the limit."""
    WITHIN_NOISE = 1
    """It grew by more, but the steps themselves differ by as much."""
    REGRESSED = 2
    """It grew by more than the limit and by more than the noise."""
    UNKNOWN = 3
    """The step time or its noise is not known."""


def step_time_row(table: Table) -> int | None:
    """The row of a comparison that holds the step time over all GPUs; None if it has none."""
    rows = np.flatnonzero(
        (table["area"] == Area.MEASURE)
        & (table["rank"] == NULL)
        & (table["name"] == table.strings.code(STEP_TIME))
    )
    return int(rows[0]) if rows.size else None


def gate(table: Table, limit_pct: float) -> Gate:
    """Judge a comparison by a limit on the growth of the step time, in percent.

    A growth within the limit passes even where the noise is unknown.
    """
    row = step_time_row(table)
    if row is None or np.isnan(table["change_pct"][row]):
        return Gate.UNKNOWN
    if table["change_pct"][row] <= limit_pct:
        return Gate.PASSED
    judgement = Judgement(int(table["judgement"][row]))
    if judgement is Judgement.UNKNOWN:
        return Gate.UNKNOWN
    return Gate.REGRESSED if judgement is Judgement.BEYOND else Gate.WITHIN_NOISE
