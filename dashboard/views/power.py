"""Power: what the GPUs drew, for what, and what held their clocks down."""

from __future__ import annotations

from collections.abc import Iterator

from dash import html

from dashboard.grid import Column, gpu_column, grid, step_column
from dashboard.plot import plot, sections
from dashboard.view import Component, View, Visit
from diagnose.figures import power_by_class
from diagnose.trace import Table
from diagnose.wording.labels import DOING_LABELS


def draw(visit: Visit) -> Component:
    """The page."""
    shown = visit.shown
    gpu = gpu_column(shown)

    def summary(table: Table) -> Iterator[Component]:
        columns = [
            gpu,
            Column("mean_w", "mean"),
            Column("mean_low_w", "at least"),
            Column("mean_high_w", "at most"),
            Column("peak_w", "peak"),
            Column("limit_w", "limit"),
            Column("step_energy_j", "energy of a step"),
            Column("clock_mhz", "clock"),
            Column("temperature_c", "temperature"),
            Column("step_energy_why", "why no energy is given", wide=True),
        ]
        yield grid(shown, table, columns, "power-summary")

    def classes(table: Table) -> Iterator[Component]:
        doing = {int(code): label for code, label in DOING_LABELS.items()}
        drawn = power_by_class.draw(table, shown.labels, doing, visit.palette)
        if drawn is not None:
            yield plot("power-by-class", drawn, power_by_class.FIGURE.reading)
        columns = [
            gpu,
            Column("doing", "while doing", words=DOING_LABELS),
            Column("time_pct", "of the time"),
            Column("mean_w", "mean"),
            Column("mean_low_w", "at least"),
            Column("mean_high_w", "at most"),
            Column("energy_j", "energy"),
            Column("energy_pct", "of the energy"),
        ]
        yield grid(shown, table, columns, "power-classes")

    def steps(table: Table) -> Iterator[Component]:
        columns = [
            gpu,
            step_column(shown, "whole window"),
            Column("step_ns", "step"),
            Column("energy_j", "energy"),
            Column("energy_low_j", "at least"),
            Column("energy_high_j", "at most"),
            Column("mean_w", "mean"),
            Column("peak_w", "peak"),
            Column("why", "why no energy is given", wide=True),
        ]
        yield grid(shown, table, columns, "power-steps")

    def reasons(table: Table) -> Iterator[Component]:
        columns = [
            gpu,
            Column("meaning", "held down by", wide=True),
            Column("held_pct", "of the time"),
            Column("num_spells", "spells"),
            Column("clock_mhz", "clock meanwhile"),
            Column("reference_mhz", "else"),
            Column("cost_pct", "cost"),
        ]
        yield grid(shown, table, columns, "clock-reasons")

    return html.Div(
        [
            html.H1("Power"),
            *sections(
                ("By GPU", shown.table("power_summary"), summary),
                ("By what the GPU does", shown.table("power_classes"), classes),
                ("By step", shown.table("power_steps"), steps),
                ("What held clocks down", shown.table("clock_reasons"), reasons),
            ),
        ]
    )


VIEW = View("power", "Power", 50, draw)
