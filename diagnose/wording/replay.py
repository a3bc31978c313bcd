"""What a replay says in sentences: how well it fits, what was assumed, and a report's staircase."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diagnose.findings import Diagnosis
from diagnose.replay.tables import CUT_SHORT
from diagnose.trace import Table
from diagnose.wording.changes import in_full, split
from diagnose.wording.numbers import Scale, counted, scale_for

NOTHING_SAVES = "No single replayed change can be counted on to save 1 % of the step."
_MOST_IN_A_REPORT = 4
"""Stairs that a report shows; with the head and the bound these are six lines."""


def scale_of(table: Table) -> Scale:
    """The unit of all times of a prediction."""
    longest = max(
        (float(table[name][0]) for name in ("measured_step_ns", "now_high_ns", "now_ns")),
        key=lambda ns: -1.0 if math.isnan(ns) else ns,
    )
    return scale_for(0 if math.isnan(longest) else round(longest))


def time_of(scale: Scale, nanoseconds: float) -> str:
    """A time with its unit; ``unknown`` for NaN."""
    if math.isnan(nanoseconds):
        return "unknown"
    return f"{scale.show(round(nanoseconds))} {scale.unit}"


def interval_of(scale: Scale, table: Table, row: int, name: str) -> str:
    """`` (low to high)``, empty where both ends read like the likely value."""
    low, middle, high = (
        float(table[f"{name}{end}"][row]) for end in ("_low_ns", "_ns", "_high_ns")
    )
    if any(map(math.isnan, (low, middle, high))):
        return ""
    shown = [scale.show(round(value)) for value in (low, middle, high)]
    return f" ({shown[0]} to {shown[2]})" if len(set(shown)) > 1 else ""


def fit_sentence(table: Table) -> str:
    """How well the unchanged replay fits what was measured."""
    scale = scale_of(table)
    replayed, measured = (
        float(table[name][0]) for name in ("replayed_step_ns", "measured_step_ns")
    )
    off = abs(float(table["fidelity_pct"][0]))
    said = f"Unchanged replay: {time_of(scale, replayed)} a step, measured "
    said += time_of(scale, measured)
    if not math.isnan(off):
        said += f" ({off:.1f} %)"
    said += f", {counted(int(table['num_steps'][0]), 'step')}"
    unexplained = float(table["unexplained_pct"][0])
    if not math.isnan(unexplained):
        said += f"; {unexplained:.1f} % of the path is pauses that nothing recorded explains"
    return f"{said}."


def basis_of(table: Table, row: int = 0) -> list[str]:
    """How the profiler's cost was found."""
    return split(table.texts("basis")[row])


def remarks_of(table: Table, row: int = 0) -> list[str]:
    """What was assumed or could not be done."""
    return split(table.texts("remarks")[row])


def report_sentences(diagnosis: Diagnosis) -> Iterator[str]:
    """The staircase in at most six lines; one if no change saves enough; none without it."""
    table = diagnosis.tables.get("staircase")
    if table is None:
        return
    scale = scale_of(table)
    bounds = table["is_bound"]
    stairs = [row for row in range(1, len(table)) if not bounds[row]]
    last = next((row for row in range(len(table)) if bounds[row]), None)
    now = time_of(scale, float(table["then_ns"][0])) + interval_of(scale, table, 0, "then")
    off = abs(float(table["fidelity_pct"][0]))
    fits = "" if math.isnan(off) else f"; the unchanged replay is {off:.1f} % off"
    recorded = time_of(scale, float(table["measured_step_ns"][0]))
    head = f"A step takes {now} without the profiler, {recorded} as recorded{fits}."
    if not stairs:
        bound = "" if last is None else f" {_bound(table, last, scale)}"
        yield f"{head} {NOTHING_SAVES}{bound}"
        return
    yield head
    for number, row in enumerate(stairs[:_MOST_IN_A_REPORT], 1):
        yield f"{number}. {_stair(table, row, scale)}"
    early = f" {CUT_SHORT}" if any(CUT_SHORT in remarks_of(table, row) for row in stairs) else ""
    if last is not None:
        yield f"{_bound(table, last, scale)}{early}"
    elif early:
        yield early.strip()


def _stair(table: Table, row: int, scale: Scale) -> str:
    title = ", ".join(split(table.texts("title")[row]))
    change = " and ".join(map(in_full, split(table.texts("change")[row])))
    then = time_of(scale, float(table["then_ns"][row]))
    saved = time_of(scale, float(table["added_gain_ns"][row]))
    return (
        f"{title}: {then}, saves {saved}{interval_of(scale, table, row, 'added_gain')} [{change}]"
    )


def _bound(table: Table, row: int, scale: Scale) -> str:
    title = " and ".join(split(table.texts("title")[row]))
    return f"Bound, {title}: {time_of(scale, float(table['then_ns'][row]))}."
