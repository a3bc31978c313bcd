"""Contention: what overlap costs the compute beside it, and whether it pays."""

from __future__ import annotations

from collections.abc import Iterator

from dash import html

from dashboard import text
from dashboard.grid import Column, gpu_column, grid, step_column
from dashboard.plot import plot, sections
from dashboard.view import Component, View, Visit
from diagnose.contention._tables import Verdict
from diagnose.figures import slowdown
from diagnose.trace import Table

_VERDICTS = {
    Verdict.NOTHING_HIDDEN: "nothing hidden",
    Verdict.WINS: "pays",
    Verdict.LOSES: "does not pay",
    Verdict.UNDECIDED: "undecided",
    Verdict.UNKNOWN: "unknown",
}
_SLOWDOWN = (
    Column("slowdown", "times as long"),
    Column("slowdown_low", "at least"),
    Column("slowdown_high", "at most"),
    Column("coverage_pct", "rests on"),
    Column("cost_ns", "cost"),
)


def draw(visit: Visit) -> Component:
    """The page."""
    shown = visit.shown
    gpu = gpu_column(shown)

    def beside(table: Table) -> Iterator[Component]:
        titles = [text.shown(one or "unknown", 40) for one in table.texts("collective")]
        drawn = slowdown.draw(table, titles, visit.palette)
        if drawn is not None:
            yield plot("slowdown", drawn, slowdown.FIGURE.reading)
        columns = [Column("collective", "beside"), Column("num_paired", "pairs"), *_SLOWDOWN]
        yield grid(shown, table, columns, "contention-collectives")

    def kernels(table: Table) -> Iterator[Component]:
        name = Column("name", "kernel", wide=True)
        columns = [name, gpu, Column("num_paired", "pairs"), *_SLOWDOWN]
        yield grid(shown, table, columns, "contention-kernels")

    def balance(table: Table) -> Iterator[Component]:
        columns = [
            gpu,
            step_column(shown, "whole window"),
            Column("hidden_ns", "hidden"),
            Column("contention_ns", "cost"),
            Column("gain_ns", "gain"),
            Column("gain_low_ns", "at least"),
            Column("gain_high_ns", "at most"),
            Column("coverage_pct", "rests on"),
            Column("verdict", "overlap", words=_VERDICTS),
        ]
        yield html.P(
            "Gain: communication hidden less what it cost the compute beside it, with its 95 % "
            "interval. Rests on: the share of overlapped compute whose like also ran alone. "
            "Undecided: the interval holds 0, or it rests on too little.",
            className="muted reading",
        )
        yield grid(shown, table, columns, "contention-balance")

    return html.Div(
        [
            html.H1("Contention"),
            *sections(
                (
                    "Compute beside each collective",
                    shown.table("contention", by="collective"),
                    beside,
                ),
                ("Does overlap pay?", shown.table("overlap_balance"), balance),
                ("By kernel", shown.table("contention_kernels"), kernels),
            ),
        ]
    )


VIEW = View("contention", "Contention", 30, draw)
