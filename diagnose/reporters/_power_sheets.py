"""The sheets of power: by GPU, by what it did, by step, by reason of lowered clocks."""

from __future__ import annotations

import math

import numpy as np

from diagnose.analyzers.power.doing import Doing
from diagnose.findings import Diagnosis
from diagnose.reporters._places import Places
from diagnose.reporters._power_sentences import getter, interval, number
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.schema import NULL
from diagnose.trace import Table
from diagnose.wording.labels import DOING_LABELS
from diagnose.wording.numbers import ABSENT, percent, scale_for

_MOST_ROWS = 40


def _decimals(value: float) -> int:
    return 1 if value < 100 else 0


def _count_cell(value: int) -> str:
    return ABSENT if value == NULL else f"{value:,}"


def gpu_sheet(table: Table, places: Places) -> Sheet:
    """A row a GPU of ``power_summary``."""
    # Most power first, where there are too many to show; unknown last.
    shown = list(range(len(table)))
    if len(table) > _MOST_ROWS:
        shown = np.argsort(-np.nan_to_num(table["mean_w"]), kind="stable")[:_MOST_ROWS].tolist()
    rows = []
    for row in shown:
        get = getter(table, row)
        step = get("step_energy_j")
        rows.append(
            (
                *places.cells(int(table["source"][row]), int(table["device"][row])),
                number(get("mean_w")),
                interval(get("mean_low_w"), get("mean_high_w")),
                number(get("peak_w")),
                number(get("limit_w")),
                _count_cell(int(table["num_over_limit"][row])),
                number(step, _decimals(step)),
                interval(get("step_energy_low_j"), get("step_energy_high_j"), _decimals(step)),
                number(get("clock_mhz")),
                interval(get("clock_least_mhz"), get("clock_most_mhz")),
                number(get("temperature_most_c")),
            )
        )
    headings = (
        *places.headings,
        Heading("mean", "W"),
        Heading("95 %", "W", spare=1),
        Heading("peak", "W"),
        Heading("limit", "W"),
        Heading("over it"),
        Heading("step", "J"),
        Heading("95 %", "J", spare=1),
        Heading("clock", "MHz"),
        Heading("range", "MHz", spare=3),
        Heading("hottest", "C", spare=2),
    )
    title = "Power in the window of recorded GPU work, by GPU"
    if len(rows) < len(table):
        title += f": the {len(rows)} that draw most of {len(table):,}, --format json has all"
    return Sheet(title, headings, tuple(rows))


def class_sheet(diagnosis: Diagnosis, places: Places) -> Sheet:
    """Power by what the GPU did."""
    table = diagnosis.tables["classes"]
    scale = scale_for(int(table["time_ns"].max()) if len(table) else 0)
    methods = table.texts("method")
    rows = []
    for row in range(min(len(table), _MOST_ROWS)):
        get = getter(table, row)
        energy = get("energy_j")
        rows.append(
            (
                *places.cells(int(table["source"][row]), int(table["device"][row])),
                DOING_LABELS[Doing(int(table["doing"][row]))],
                scale.show(int(table["time_ns"][row])),
                percent(get("time_pct")),
                number(get("mean_w")),
                interval(get("mean_low_w"), get("mean_high_w")),
                number(get("peak_w")),
                number(energy, _decimals(energy)),
                percent(get("energy_pct")),
                methods[row] or ABSENT,
            )
        )
    headings = (
        *places.headings,
        Heading("doing", left=True),
        Heading("time", scale.unit),
        Heading("share", "%", spare=2),
        Heading("power", "W"),
        Heading("95 %", "W"),
        Heading("peak*", "W", spare=2),
        Heading("energy", "J"),
        Heading("share", "%", spare=1),
        Heading("from", left=True, spare=3),
    )
    title = "Power by what the GPU did"
    if len(rows) < len(table):
        title += f": {len(rows)} of {len(table):,} rows, --format csv has all"
    notes = ("* of readings wholly in it. Power includes what the GPU draws when idle.",)
    return Sheet(title, headings, tuple(rows), footnotes=notes)


def step_sheet(diagnosis: Diagnosis, places: Places) -> Sheet:
    """Energy by step."""
    table = diagnosis.tables.get("steps")
    rows = []
    number_of_rows = 0 if table is None else len(table)
    scale = scale_for(int(table["step_ns"].max()) if table is not None and len(table) else 0)
    for row in range(min(number_of_rows, _MOST_ROWS)):
        assert table is not None
        get = getter(table, row)
        energy = get("energy_j")
        rows.append(
            (
                *places.cells(int(table["source"][row]), int(table["device"][row])),
                places.step(int(table["step_row"][row])),
                scale.show(int(table["step_ns"][row])),
                number(energy, _decimals(energy)),
                interval(get("energy_low_j"), get("energy_high_j"), _decimals(energy)),
                number(get("mean_w")),
                number(get("peak_w")),
                number(get("clock_mhz")),
                table.texts("method")[row] or ABSENT,
            )
        )
    headings = (
        *places.headings,
        Heading("step", left=True),
        Heading("time", scale.unit),
        Heading("energy", "J"),
        Heading("95 %", "J"),
        Heading("mean", "W"),
        Heading("peak", "W", spare=1),
        Heading("clock", "MHz", spare=1),
        Heading("from", left=True, spare=2),
    )
    title = "Energy by step"
    if len(rows) < number_of_rows:
        title += f": {len(rows)} of {number_of_rows:,} rows, --format csv has all"
    why = [] if table is None else [w for w in table.texts("why") if w]
    notes = (f"Absent, as the first: {why[0]}.",) if why else ()
    return Sheet(title, headings, tuple(rows), footnotes=notes)


def reason_sheet(diagnosis: Diagnosis, places: Places) -> Sheet:
    """Why clocks were lowered."""
    table = diagnosis.tables.get("reasons")
    rows = []
    number_of_rows = 0 if table is None else len(table)
    scale = scale_for(int(table["held_ns"].max()) if table is not None and len(table) else 0)
    for row in range(min(number_of_rows, _MOST_ROWS)):
        assert table is not None
        get = getter(table, row)
        cost = get("cost_ns")
        rows.append(
            (
                *places.cells(int(table["source"][row]), int(table["device"][row])),
                table.texts("reason")[row] or ABSENT,
                scale.show(int(table["held_ns"][row])),
                percent(get("held_pct")),
                f"{int(table['num_spells'][row]):,}",
                number(get("clock_mhz")),
                number(get("reference_mhz")),
                ABSENT if math.isnan(cost) else f"<= {scale.show(round(cost))}",
                ABSENT if math.isnan(cost) else f"<= {percent(get('cost_pct'))}",
            )
        )
    headings = (
        *places.headings,
        Heading("clocks lowered because", left=True),
        Heading("held", scale.unit),
        Heading("share", "%"),
        Heading("spells", spare=2),
        Heading("clock", "MHz"),
        Heading("highest", "MHz", spare=1),
        Heading("cost*", scale.unit),
        Heading("cost*", "%"),
    )
    title = "Reasons for lowered clocks, in the window"
    if len(rows) < number_of_rows:
        title += f": {len(rows)} of {number_of_rows:,} rows, --format csv has all"
    note = (
        "* an upper bound: as if all compute ran at the pace of the clock, and without the reason "
        "at the highest clock recorded. Reasons that hold together are not to be added."
    )
    return Sheet(title, headings, tuple(rows), footnotes=(note,))
