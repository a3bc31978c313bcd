"""What recording cost the job, as one sentence for the head of a report, and as JSON.

Of the overlap only a direction is said, with its reason: how much it moved could
be known only from a second, thinner profile.
"""

from __future__ import annotations

from typing import Any

from diagnose.findings import Diagnosis
from diagnose.reporters._records import Record, microseconds_raw
from diagnose.timeline.observer_effect import StepClock

NO_CHANGE_PCT = 1.0
"""Smaller changes of a median over a few steps are not told from the job's own jitter."""

_WHERE = {StepClock.GPU: "in it (on the GPU)", StepClock.HOST: "in it (on the host)"}
_TIMES = ("before_ns", "within_ns", "after_ns")


def observer_sentence(diagnosis: Diagnosis) -> str:
    """Like ``The window slowed the step by 4 %: 16.5 ms before, ...``; empty if nothing is known.

    The change is that of the step in the window against the one before it, or,
    where too few steps were seen before, against the one after.
    """
    row = _row(diagnosis)
    if row is None or row["within_ns"] is None:
        return ""
    change_pct = row["change_pct"]
    if change_pct is None:
        clock = "GPU" if row["within_from"] == StepClock.GPU else "host"
        return (
            f"Steps took {_milliseconds(row['within_ns'])} ms in the window (on the {clock}); too "
            "few were seen outside of it to say what recording cost."
        )
    if abs(change_pct) >= NO_CHANGE_PCT and not row["beyond_variation"]:
        return (
            "What recording cost is not told from the job's own variation: steps took "
            f"{_times(row)}."
        )
    reservation = _reservation(change_pct, row, on_cpu=diagnosis.trace.on_cpu)
    return f"{_change(change_pct)}: {_times(row)}{reservation}."


def observer_record(diagnosis: Diagnosis) -> Record | None:
    """The same as plain values; None if nothing is known."""
    row = _row(diagnosis)
    if row is None:
        return None
    record: Record = {}
    for name in ("before_ns", "before_spread_ns", "within_ns", "after_ns"):
        ns = row[name]
        record[name[:-2] + "us"] = None if ns is None else microseconds_raw(ns)
    origin = StepClock(row["within_from"])
    return {
        **record,
        "within_from": None if origin == StepClock.NONE else origin.name.lower(),
        "num_before": row["num_before"],
        "num_within": row["num_within"],
        "num_after": row["num_after"],
        "beyond_variation": row["beyond_variation"],
        "job_varies": row["job_varies"],
    }


def _row(diagnosis: Diagnosis) -> dict[str, Any] | None:
    table = diagnosis.tables.get("observer_effect")
    if table is None or not len(table):
        return None
    return {
        column.name: table[column.name][0].item() if table.known(column.name)[0] else None
        for column in table.schema.columns
    }


def _change(change_pct: float) -> str:
    if abs(change_pct) < NO_CHANGE_PCT:
        return "The window did not change the step time"
    if change_pct < 0:
        return f"Steps in the window were {-change_pct:.0f} % shorter"
    return f"The window slowed the step by {change_pct:.0f} %"


def _reservation(change_pct: float, row: dict[str, Any], *, on_cpu: bool) -> str:
    if row["job_varies"]:
        return (
            "; before and after differ by more than the steps before it among each other: the job "
            "itself varies, so recording may cost more or less than this"
        )
    if abs(change_pct) < NO_CHANGE_PCT:
        return ""
    if change_pct < 0:
        return "; the job itself varies more than recording costs"
    if on_cpu:
        return "; recording costs time for every operator"
    return (
        "; recording costs time on the host, not on the GPU, so idle time reads high, and overlap "
        "may read low because kernels are launched later"
    )


def _times(row: dict[str, Any]) -> str:
    when = dict(zip(_TIMES, ("before", _WHERE[row["within_from"]], "after"), strict=True))
    parts = [f"{_milliseconds(row[name])} {when[name]}" for name in _TIMES if row[name] is not None]
    return ", ".join(parts).replace(" ", " ms ", 1)


def _milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.1f}" if nanoseconds >= 1_000_000 else f"{nanoseconds / 1e6:.3f}"
