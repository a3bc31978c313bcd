"""Events that a file has lost, and what that does to the numbers.

Profilers do not write in order of time: what is cut off the end of such a file is
missing from anywhere in the window, and the holes look like idle time. Only where the
events stand in order of time does a cut shorten the window and change nothing in it.
"""

from __future__ import annotations

import numpy as np

from diagnose.readers.assemble.gpu import LAUNCHING
from diagnose.readers.assemble.quality import Tables
from diagnose.readers.assemble.steps import of as step_of
from diagnose.readers.raw import RawFile
from diagnose.schema import Detail
from diagnose.trace import Note

_MOST_STEPS = 6


def in_order_of_time(raw: RawFile) -> bool:
    """Whether GPU work and calls stand in the file as they started; asked only if needed."""
    if raw.complete:
        return False
    order = np.concatenate([raw.gpu["order"], raw.calls["order"]])
    start = np.concatenate([raw.gpu["start_ns"], raw.calls["start_ns"]])
    ordered = start[np.argsort(order, kind="stable")]
    return bool((ordered[1:] >= ordered[:-1]).all())


def notes(tables: Tables, raw: RawFile, *, ordered: bool) -> list[Note]:
    """What the loss means for the figures of one process.

    Dropped events may be of the host alone; where launches lack their work they are not.
    """
    if raw.complete or not len(tables.gpu["op_id"]):
        return []
    if ordered and not raw.num_dropped:
        sentence = (
            f"{tables.path}: its events stand in order of time, so what is missing comes after "
            "the window shown; the last step is not whole"
        )
        return [Note("window-shortened", "info", sentence)]
    known, evidence = _evidence(tables)
    where = (
        f"{raw.num_dropped} events could not be read"
        if raw.num_dropped
        else "events are missing from anywhere in the window, as they do not stand in order of time"
    )
    sentence = (
        f"{tables.path}: {where}: compute, communication, copies and busy time are lower bounds, "
        "idle time is an upper bound, overlap may be off either way, figures per step are not "
        f"usable{evidence}"
    )
    sure = known or not raw.num_dropped
    return [Note("gpu-work-missing", "error" if sure else "warning", sentence, max(known, 1))]


def _evidence(tables: Tables) -> tuple[int, str]:
    """Launches without their GPU work, by step: what is known to be missing, and a clause."""
    if tables.detail < Detail.LAUNCHES:
        return 0, ""
    calls, steps = tables.calls, tables.steps
    launching = np.isin(calls["call"], LAUNCHING) & (calls["correlation"] > 0)
    lost = launching & ~np.isin(calls["correlation"], tables.gpu["correlation"])
    count = int(lost.sum())
    if not count:
        return (
            0,
            "; launches were lost together with their work, so how much is missing is unknown",
        )
    rows, counts = np.unique(step_of(steps, calls["start_ns"][lost]), return_counts=True)
    named = [
        f"{number} in {tables.strings[int(steps['name'][row])]}"
        for row, number in zip(rows.tolist(), counts.tolist(), strict=True)
        if row >= 0
    ]
    shown = ", ".join(named[:_MOST_STEPS]) + (", ..." if len(named) > _MOST_STEPS else "")
    return count, f"; launches without their GPU work: {count}" + (f" ({shown})" if named else "")
