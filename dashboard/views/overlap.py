"""Overlap: how much communication was hidden, by step, rank, collective and group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dash import html

from dashboard.grid import Column, gpu_column, grid, step_column
from dashboard.plot import plot, sections
from dashboard.view import Component, View, Visit
from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.figures import idle_causes, overlap_by_step
from diagnose.trace import Table
from diagnose.wording.labels import CAUSE_LABELS

_MEASURES = (
    Column("compute_ns", "compute"),
    Column("communication_ns", "communication"),
    Column("overlapped_ns", "overlapped"),
    Column("exposed_communication_ns", "exposed"),
    Column("overlap_pct", "of communication hidden"),
    Column("memory_ns", "copies"),
    Column("idle_ns", "idle"),
)
_PARTS = (
    Column("num_ops", "operations"),
    Column("communication_ns", "communication"),
    Column("overlapped_ns", "overlapped"),
    Column("exposed_communication_ns", "exposed"),
    Column("overlap_pct", "of communication hidden"),
)


def draw(visit: Visit) -> Component:
    """The page."""
    shown = visit.shown
    gpu, step = gpu_column(shown), step_column(shown)
    group = Column("group", "process group", lambda table: _or(table.texts("group"), "unknown"))

    collective = Column(
        "collective", "collective", lambda table: _or(table.texts("collective"), "unknown")
    )

    def steps(table: Table) -> Iterator[Component]:
        names = dict(enumerate(shown.trace.steps.texts("name")))
        labels = {row: name or f"step {row}" for row, name in names.items()}
        known = table.take(table.known("overlap_pct") & (table["step_row"] >= 0))
        if len(known):
            yield plot(
                "overlap-by-step",
                overlap_by_step.draw(table, shown.labels, labels, shown.unit, visit.palette),
                overlap_by_step.FIGURE.reading,
            )
        columns = [gpu, step, *_MEASURES, Column("step_ns", "step")]
        yield grid(shown, table, columns, "overlap-steps")

    def ranks(table: Table) -> Iterator[Component]:
        yield grid(shown, table, [gpu, *_MEASURES, Column("window_ns", "window")], "overlap-ranks")

    def collectives(table: Table) -> Iterator[Component]:
        columns = [gpu, collective, *_PARTS]
        yield grid(shown, table, columns, "overlap-collectives")

    def groups(table: Table) -> Iterator[Component]:
        yield grid(shown, table, [gpu, group, *_PARTS], "overlap-groups")

    def causes(table: Table) -> Iterator[Component]:
        labels = {int(cause): CAUSE_LABELS[cause] for cause in Cause}
        yield plot(
            "idle-causes",
            idle_causes.draw(table, shown.labels, labels, shown.unit, visit.palette),
            idle_causes.FIGURE.reading,
        )

    return html.Div(
        [
            html.H1("Overlap"),
            *sections(
                ("By rank", shown.table("overlap", by="rank"), ranks),
                ("By step", shown.table("overlap", by="step"), steps),
                ("By collective", shown.table("overlap", by="collective"), collectives),
                ("By process group", shown.table("overlap", by="group"), groups),
                ("Why GPUs stood still", shown.table("stall_sites"), causes),
            ),
        ]
    )


def _or(texts: Sequence[str | None], absent: str) -> list[str]:
    return [one or absent for one in texts]


VIEW = View("overlap", "Overlap", 20, draw)
