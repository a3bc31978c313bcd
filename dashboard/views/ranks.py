"""Ranks: who comes late to collectives, who waits, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from dash import html

from dashboard.grid import Column, gpu_column, grid
from dashboard.plot import plot, sections
from dashboard.view import Component, View, Visit
from diagnose.figures import arrival_skew, rank_waits
from diagnose.plotting.style import Unit
from diagnose.trace import Table
from diagnose.wording.numbers import scale_for


def draw(visit: Visit) -> Component:
    """The page."""
    shown = visit.shown
    gpu = gpu_column(shown)

    def ranks(table: Table) -> Iterator[Component]:
        yield plot(
            "rank-waits",
            rank_waits.draw(table, shown.labels, shown.unit, visit.palette),
            rank_waits.FIGURE.reading,
        )
        columns = [
            gpu,
            Column("num_collectives", "collectives"),
            Column("num_last", "last to arrive"),
            Column("cost_per_step_ns", "costs others a step"),
            Column("cost_pct", "of the step"),
            Column("wait_ns", "waits"),
            Column("exposed_wait_ns", "waits, exposed"),
            Column("transfer_ns", "moves bytes"),
            Column("compute_ratio", "compute, to the mean"),
        ]
        yield grid(shown, table, columns, "ranks")

    def skew(table: Table) -> Iterator[Component]:
        latest = int(table["late_ns"][table.known("late_ns")].max(initial=0))
        scale = scale_for(latest)
        unit = Unit(scale.unit, scale.nanoseconds, scale.decimals)
        drawn = arrival_skew.draw(table, shown.labels, unit, visit.palette)
        if drawn is None:
            yield html.P("The clocks of the ranks do not compare.", className="muted")
        else:
            yield plot("arrival-skew", drawn, arrival_skew.FIGURE.reading)

    def bandwidth(table: Table) -> Iterator[Component]:
        columns = [
            Column("collective", "collective"),
            Column("bytes", "bytes"),
            Column("group", "process group"),
            Column("group_size", "ranks"),
            Column("num_collectives", "calls"),
            Column("median_transfer_ns", "transfer, median", decimals=3),
            Column("median_busbw_gb_per_s", "bus bandwidth, median"),
            Column("best_busbw_gb_per_s", "best"),
        ]
        yield grid(shown, table, columns, "bandwidth")

    return html.Div(
        [
            html.H1("Ranks"),
            *sections(
                ("Arrivals", shown.table("rank_waits"), skew),
                ("Lateness and waiting", shown.table("ranks"), ranks),
                ("Bandwidth of the transfers", shown.table("transfer_bandwidth"), bandwidth),
            ),
        ]
    )


VIEW = View("ranks", "Ranks", 40, draw)
