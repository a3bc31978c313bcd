"""The sheets of the timeline: one row a GPU, and one row a step of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.findings import Diagnosis
from diagnose.reporters._figures import (
    MOST_ROWS,
    SPREAD,
    Figure,
    choose,
    headings_of,
    rows_of,
    share,
    time,
)
from diagnose.reporters._places import Places
from diagnose.reporters._sheet import STATES, Bar, Heading, Sheet
from diagnose.trace import Table
from diagnose.wording.numbers import Scale, counted

MOST_STEPS = 40
WAITING = (
    "* includes waiting for late ranks: an upper bound of what communication itself costs. "
    "hidden + exposed = communication."
)
LATE = "waiting: the part of exposed that waits for late ranks; the rest moves bytes."
IN_DOUBT = "in doubt: time of operations whose class is likely, not certain."


def gpus(diagnosis: Diagnosis, scale: Scale, places: Places) -> Sheet:
    """A row a GPU; of many GPUs the spread and those with most exposed communication."""
    table = diagnosis.tables["gpus"]
    figures = _gpu_figures(diagnosis, table, scale)
    chosen, summary = choose(figures, table["exposed_communication_ns"], MOST_ROWS)
    rows = [
        (*places.blank(label), *cells) for label, cells in zip(SPREAD, summary, strict=False)
    ] + rows_of(table, figures, chosen, places)
    footnotes = [*places.footnotes, WAITING]
    if any(figure.heading.label == "in doubt" for figure in figures):
        footnotes.append(IN_DOUBT)
    title = "GPUs"
    if summary:
        title += f": least, median and most of {len(table)}, and most exposed first"
    return Sheet(title, headings_of(places, figures), tuple(rows), footnotes=tuple(footnotes))


def _gpu_figures(diagnosis: Diagnosis, table: Table, scale: Scale) -> list[Figure]:
    figures = [
        time(table, "window_ns", "window", scale),
        time(table, "compute_ns", "compute", scale),
        time(table, "communication_ns", "comm.", scale),
        time(table, "overlapped_ns", "hidden", scale, spare=1),
        time(table, "exposed_communication_ns", "exposed*", scale),
        *_waiting(diagnosis.tables.get("waiting"), table, scale, spare=3),
        share(table, "overlap_pct", "hidden", "% of comm."),
        share(table, "overlap_of_compute_pct", "beside comm.", "% of compute", spare=2),
    ]
    breakdown = diagnosis.tables.get("breakdown")
    if breakdown is not None:
        copies = _aligned(breakdown, table, "memory_only_ns")
        heading = Heading("copies only", scale.unit, spare=2)
        figures.append(Figure(heading, copies, scale.show))
    figures.append(time(table, "idle_ns", "idle", scale))
    if (table["uncertain_ns"] > 0).any():
        figures.append(time(table, "uncertain_ns", "in doubt", scale))
    return figures


def _waiting(waiting: Table | None, table: Table, scale: Scale, *, spare: int = 0) -> list[Figure]:
    """The column of waiting, in the order of another table by GPU (and step)."""
    if waiting is None:
        return []
    keys = ("source", "device", "step_row")
    rows = zip(*(waiting[key].tolist() for key in keys), strict=True)
    places = {key: row for row, key in enumerate(rows)}
    asked = zip(*(table[key].tolist() for key in keys), strict=True)
    values = waiting["waiting_ns"][[places[key] for key in asked]]
    return [Figure(Heading("waiting", scale.unit, spare=spare), values, scale.show)]


def _aligned(breakdown: Table, table: Table, name: str) -> npt.NDArray[Any]:
    """A column of the windows' breakdown in the order of another table by GPU."""
    windows = np.flatnonzero(breakdown["step_row"] < 0).tolist()
    places = {(int(breakdown["source"][w]), int(breakdown["device"][w])): w for w in windows}
    pairs = zip(table["source"].tolist(), table["device"].tolist(), strict=True)
    values: npt.NDArray[Any] = breakdown[name][[places[pair] for pair in pairs]]
    return values


def steps(diagnosis: Diagnosis, scale: Scale, places: Places) -> Sheet:
    """A row a step of a GPU with its bar; work of no step has rows of its own, last."""
    table = diagnosis.tables["steps"]
    figures = [
        Figure(Heading("GPU ops", spare=3), table["num_ops"], lambda number: f"{number:,}"),
        time(table, "step_ns", "step time", scale),
        time(table, "communication_ns", "comm.", scale, spare=2),
        time(table, "exposed_communication_ns", "exposed*", scale),
        *_waiting(diagnosis.tables.get("waiting_steps"), table, scale),
        share(table, "overlap_pct", "hidden", "% of comm."),
        time(table, "idle_ns", "idle", scale),
    ]
    chosen, summary = choose(figures, table["step_ns"], MOST_STEPS, table["step_row"] >= 0)
    labels = [places.step(row) for row in table["step_row"][chosen].tolist()]
    cells = rows_of(table, figures, chosen, places)
    at = len(places.headings)
    rows = [
        (*places.blank(label), "", *values) for label, values in zip(SPREAD, summary, strict=False)
    ] + [(*row[:at], label, *row[at:]) for row, label in zip(cells, labels, strict=True)]
    headings = list(headings_of(places, figures))
    headings.insert(at, Heading("step", left=True))
    bars = _bars(diagnosis.tables.get("breakdown"), table, chosen)
    num_marked = int((table["step_row"] >= 0).sum())
    title = f"Steps: least, median and most of {num_marked:,}, and the longest"
    return Sheet(
        title if summary else "Steps",
        tuple(headings),
        tuple(rows),
        bars=(None,) * len(summary) + bars if any(bars) else (),
        bar_label="GPU time",
        footnotes=(*places.footnotes, *_late_footnote(figures), *_step_footnotes(table)),
    )


def _late_footnote(figures: list[Figure]) -> tuple[str, ...]:
    return (LATE,) if any(figure.heading.label == "waiting" for figure in figures) else ()


def _step_footnotes(table: Table) -> tuple[str, ...]:
    notes = [
        "step time: from the last GPU work of the step before to the last of this one; "
        "- where the step before was not recorded."
    ]
    stray = table["step_row"] < 0
    if stray.any():
        number = int(table["num_ops"][stray].sum())
        notes.append(
            f"step none: {counted(number, 'GPU operation')} launched outside of every marked step "
            "(most often just before the recording began)."
        )
    return tuple(notes)


def _bars(breakdown: Table | None, table: Table, rows: list[int]) -> tuple[Bar | None, ...]:
    if breakdown is None:
        return ()
    keys = ("source", "device", "step_row")
    divided = np.flatnonzero(breakdown["step_row"] >= 0)
    of_step = zip(*(breakdown[key][divided].tolist() for key in keys), strict=True)
    places = dict(zip(of_step, divided.tolist(), strict=True))
    asked = zip(*(table[key][rows].tolist() for key in keys), strict=True)
    found = [places.get(key) for key in asked]
    shares = [
        None if row is None else tuple(int(breakdown[state.column][row]) for state in STATES)
        for row in found
    ]
    longest = max((sum(share) for share in shares if share), default=0)
    return tuple(Bar(share, longest) if share and longest else None for share in shares)
