"""The columns of the tables of power, and how rows become them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.analyzers.power.doing import Doing
from diagnose.schema import NO_ROW, NULL, Column, TableSchema
from diagnose.trace import Strings, Table

_SOURCE = Column("source", "int32", "index into `Trace.sources`; of ranks on one GPU the first")
_DEVICE = Column("device", "int32", "device number within its process")


def _text(name: str, meaning: str) -> Column:
    return Column(name, "int32", meaning, nullable=True, text=True)


def _float(name: str, meaning: str, unit: str) -> Column:
    return Column(name, "float64", meaning, unit, nullable=True)


def _count(name: str, meaning: str, unit: str = "", *, nullable: bool = False) -> Column:
    return Column(name, "int64", meaning, unit, nullable=nullable)


def _with_interval(name: str, meaning: str, unit: str) -> tuple[Column, Column, Column]:
    stem, suffix = name.rsplit("_", 1)
    return (
        _float(name, meaning, unit),
        _float(f"{stem}_low_{suffix}", "low end of its interval", unit),
        _float(f"{stem}_high_{suffix}", "high end of its interval", unit),
    )


POWER_SUMMARY = TableSchema(
    "power_summary",
    "one physical GPU, counted once however many ranks share it",
    (
        _SOURCE,
        _DEVICE,
        _count("num_ranks", "processes of the trace on this GPU"),
        _text("shared_by", "what told that they share it: `uuid` or `energy counter`"),
        _text("caution", "what the figures hold that the trace does not show"),
        _text("why", "why nothing is known of its power; all that follows is absent then"),
        _count(
            "window_ns",
            "time in which work of all its ranks was recorded",
            "ns",
            nullable=True,
        ),
        _text("sensor", "column of `samples` that energy and mean power are from"),
        _float("refresh_ns", "time between two new values of that sensor", "ns"),
        _count("num_refreshes", "refreshes that lie in the window", nullable=True),
        *_with_interval("mean_w", "mean power over the window", "W"),
        _float("peak_w", "greatest reading in the window", "W"),
        _float("recorded_peak_w", "greatest reading of all telemetry", "W"),
        _text("peak_sensor", "column of `samples` that peaks are from"),
        _float("limit_w", "power limit in force (the least recorded)", "W"),
        _count("num_over_limit", "readings in the window over the limit", nullable=True),
        _count("recorded_num_over_limit", "of all telemetry", nullable=True),
        _count("over_limit_ns", "time those in the window stand for", "ns", nullable=True),
        *_with_interval("energy_j", "energy over the window", "J"),
        _count("num_steps", "step times that the energy of a step is the mean of", nullable=True),
        *_with_interval("step_energy_j", "mean energy of a step", "J"),
        _text("step_energy_why", "why the energy of a step is absent"),
        _float("clock_mhz", "mean clock of the multiprocessors in the window", "MHz"),
        _float("clock_least_mhz", "least clock in the window", "MHz"),
        _float("clock_most_mhz", "greatest clock in the window", "MHz"),
        _float("recorded_clock_least_mhz", "least clock of all telemetry", "MHz"),
        _float("recorded_clock_most_mhz", "greatest clock of all telemetry", "MHz"),
        _float("clock_swing_mhz", "95th less 5th percentile of the clock in the window", "MHz"),
        _float("clock_frequency_hz", "frequency that stands out of its swing, if any", "Hz"),
        _float("clock_nyquist_hz", "highest frequency that its refreshes can show", "Hz"),
        _float("temperature_c", "mean temperature in the window", "C"),
        _float("temperature_most_c", "greatest temperature in the window", "C"),
        _count("slowed_ns", "time with a reason that lowers clocks", "ns", nullable=True),
        _count("power_capped_ns", "of it: with the power limit as reason", "ns", nullable=True),
        _float("lag_ns", "how late the sensor reports, as fitted", "ns"),
        _float("watched_ns", "time before it that a reading is the mean of, as fitted", "ns"),
        *_with_interval("cap_begins_w", "limit that 5 % of refreshes exceed", "W"),
        _float("cap_half_w", "limit that half of the refreshes exceed", "W"),
        _text("cap_why", "why these limits are absent"),
    ),
    order=("source", "device"),
)

POWER_CLASSES = TableSchema(
    "power_classes",
    "one class of time on one physical GPU",
    (
        _SOURCE,
        _DEVICE,
        Column("doing", "int8", "what the GPU did", choices=Doing),
        _count("time_ns", "time in it", "ns"),
        _float("time_pct", "of the window", "%"),
        *_with_interval("mean_w", "mean power in it", "W"),
        _float("peak_w", "greatest reading of refreshes wholly in it", "W"),
        *_with_interval("energy_j", "energy in it", "J"),
        _float("energy_pct", "of the energy of all classes, where all are known", "%"),
        _text("method", "`regression` over all refreshes, or `whole refreshes` in it alone"),
        _count("num_whole", "refreshes that lie wholly in it"),
        _float("whole_w", "their mean reading", "W"),
        _text("why", "why its power is absent"),
    ),
    order=("source", "device", "doing"),
)

_PARTS = tuple(doing.name.lower() for doing in Doing)

POWER_STEPS = TableSchema(
    "power_steps",
    "one step on one physical GPU; of ranks that share it, the first one's steps",
    (
        _SOURCE,
        _DEVICE,
        _count("step_row", "row of `steps`"),
        _count("step_ns", "step time", "ns"),
        _count("num_refreshes", "whole refreshes that fit into it"),
        *_with_interval("energy_j", "energy of the step", "J"),
        _float("mean_w", "its mean power", "W"),
        _text("method", "`counter`: read off; `class powers`: times of the classes x their power"),
        _text("why", "why its energy is absent"),
        _float("peak_w", "greatest reading in it", "W"),
        _float("clock_mhz", "mean clock in it", "MHz"),
        *(_count(f"{part}_ns", f"time of the class {part}", "ns") for part in _PARTS),
        *(_float(f"{part}_j", f"energy of the class {part}", "J") for part in _PARTS),
    ),
    order=("source", "device", "step_row"),
)

CLOCK_REASONS = TableSchema(
    "clock_reasons",
    "one reason for lowered clocks that held on one physical GPU",
    (
        _SOURCE,
        _DEVICE,
        _text("reason", "name, as `sw_power_cap`"),
        _text("meaning", "the same in words"),
        Column("slows", "bool", "whether it holds a job back"),
        _count("held_ns", "time that it held in the window", "ns"),
        _float("held_pct", "of the window", "%"),
        _count("recorded_ns", "time that it held in all telemetry", "ns"),
        _count("num_spells", "times that it held in the window"),
        _count("longest_ns", "longest of them", "ns"),
        _count("compute_ns", "of the time held: the GPU computed", "ns"),
        _float("clock_mhz", "mean clock in that time", "MHz"),
        _float("reference_mhz", "highest clock recorded", "MHz"),
        _float("cost_ns", "upper bound of the time lost in the window", "ns"),
        _float("cost_pct", "of the window; an upper bound too", "%"),
        _text("cost_why", "why there is no bound"),
    ),
    order=("source", "device", "reason"),
)


def table_of(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table: None and absent keys are null, texts are coded."""
    codes: dict[str, int] = {}
    columns = {}
    for column in schema.columns:
        values = [row.get(column.name) for row in rows]
        if column.text:
            coded = [NO_ROW if v is None else codes.setdefault(v, len(codes)) for v in values]
            columns[column.name] = np.array(coded, column.dtype)
        elif column.dtype == "float64":
            columns[column.name] = np.array(
                [np.nan if v is None else float(v) for v in values], np.float64
            )
        else:
            columns[column.name] = np.array(
                [NULL if v is None else v for v in values], column.dtype
            )
    return Table(schema, columns, Strings(codes))
