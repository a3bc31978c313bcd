"""What a report says of a job on the CPU: its steps on the host, rank by rank."""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.host_steps import Seen
from diagnose.findings import Diagnosis
from diagnose.reporters._records import Record, paths, records
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, percent, scale_for

ALIKE_PCT = 5.0
"""Medians of 37 steps of two ranks that wait for each other differed by 3 % on a busy host."""
_MOST_RANKS = 16
_PLACES = {
    Seen.NOWHERE: "no step was timed: record with `diagnose attach`, or call prof.step()",
    Seen.OUTSIDE: "steps: before and after the recorded window, without a profiler",
    Seen.WITHIN: "steps: in the recorded window, where the profiler costs time too",
    Seen.MARKS: "steps: as marked in the trace, where the profiler costs time too",
}
_KEYS = {
    "num_steps": "num_steps",
    "median_step_ns": "median_step_us",
    "longest_step_ns": "longest_step_us",
    "slower_pct": "slower_pct",
    "num_ops": "num_ops",
}


def on_cpu_sentence(diagnosis: Diagnosis) -> str:
    """That there is no GPU to report on; empty for a job on GPUs."""
    if not diagnosis.trace.on_cpu:
        return ""
    return (
        "This job ran on the CPU: overlap, exposed communication, idle time and power are figures "
        "of GPUs and need a job on GPUs."
    )


def slowest_sentence(diagnosis: Diagnosis) -> str:
    """Which rank's steps take longest on the host; empty without two ranks that were timed."""
    table = diagnosis.tables.get("host_steps")
    if table is None:
        return ""
    timed = table.take(table.known("slower_pct"))
    if len(timed) < 2 or len(set(timed["seen"].tolist())) > 1:
        return ""
    medians = timed["median_step_ns"]
    slowest = int(np.argmax(medians))
    scale = scale_for(round(float(medians[slowest])))
    low, high = (scale.show(round(float(value))) for value in (medians.min(), medians.max()))
    together = (
        "ranks that exchange gradients wait for each other in every step, so a slow one shows in "
        "the steps of all"
    )
    slower = float(timed["slower_pct"][slowest])
    if slower < ALIKE_PCT:
        return f"The ranks' steps take alike, {low} to {high} {scale.unit} (medians): {together}."
    label = diagnosis.trace.sources[int(timed["source"][slowest])].label
    return (
        f"Slowest on the host: {label}, {high} {scale.unit} a step (median), {percent(slower)} % "
        f"more than the fastest with {low}; {together}."
    )


def steps_sheet(diagnosis: Diagnosis, table: Table) -> Sheet:
    """The ranks, the slowest if there are many."""
    order = np.arange(len(table))
    title = "Steps on the host"
    if len(table) > _MOST_RANKS:
        slowest = np.argsort(-np.nan_to_num(table["median_step_ns"]), kind="stable")
        order = np.sort(slowest[:_MOST_RANKS])
        title += f": the {_MOST_RANKS} slowest of {len(table):,}"
    scale = scale_for(int(table["longest_step_ns"].max()))
    rows = []
    for at in order.tolist():
        median, ops = float(table["median_step_ns"][at]), int(table["num_ops"][at])
        rows.append(
            (
                diagnosis.trace.sources[int(table["source"][at])].label,
                scale.show(round(median)) if median == median else ABSENT,
                scale.show(int(table["longest_step_ns"][at])),
                f"{int(table['num_steps'][at]):,}",
                ABSENT if ops == NULL else f"{ops:,}",
            )
        )
    headings = (
        Heading("process", left=True),
        Heading("median", scale.unit),
        Heading("longest", scale.unit),
        Heading("steps"),
        Heading("ops"),
    )
    said = [_PLACES[Seen(value)] for value in sorted(set(table["seen"].tolist()))]
    return Sheet(
        title,
        headings,
        tuple(rows),
        footnotes=(*said, "ops: operators of PyTorch in the recorded window."),
    )


def host_step_rows(diagnosis: Diagnosis) -> list[Record]:
    """The key ``host_steps`` of a report's JSON, of every job."""
    table = diagnosis.tables.get("host_steps")
    if table is None:
        return []
    places = zip(table["source"].tolist(), paths(diagnosis.trace, table), strict=True)
    seen = [Seen(value).name.lower() for value in table["seen"].tolist()]
    return [
        {"rank": diagnosis.trace.sources[source].rank, "source": path, "seen": where, **row}
        for (source, path), where, row in zip(places, seen, records(table, _KEYS), strict=True)
    ]
