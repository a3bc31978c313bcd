"""The sheet of the ranks: who came last, what it cost, who waited."""

from __future__ import annotations

from diagnose.reporters._figures import MOST_ROWS, Figure, choose, headings_of, rows_of, share, time
from diagnose.reporters._places import Places
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.trace import Table
from diagnose.wording.numbers import ABSENT, Scale, counted, rate


def rank_sheet(table: Table, scale: Scale, places: Places) -> Sheet:
    """A row a GPU; of many GPUs the spread and those that cost most."""
    figures = [
        Figure(Heading("collectives", spare=2), table["num_collectives"], lambda n: f"{n:,}"),
        Figure(Heading("came last"), table["num_last"], lambda n: f"{n:,}"),
        time(table, "late_ns", "late", scale, spare=1),
        _per_step(table, "cost_per_step_ns", "cost*", scale),
        share(table, "cost_pct", "cost*", "% of step"),
        _per_step(table, "behind_per_step_ns", "behind", scale, spare=1),
        time(table, "wait_ns", "waited", scale),
        time(table, "exposed_wait_ns", "exposed", scale),
        time(table, "transfer_ns", "transfer", scale),
        Figure(Heading("compute", "x median", spare=1), table["compute_ratio"], rate),
    ]
    chosen, summary = choose(figures, table["cost_ns"], MOST_ROWS)
    rows = [
        (*places.blank(label), *cells)
        for label, cells in zip(("least", "median", "most"), summary, strict=False)
    ] + rows_of(table, figures, chosen, places)
    incomplete = int(table["num_incomplete"].sum())
    notes = [
        "* what its lateness costs another rank per step, at most: exposed waiting that it alone "
        "caused. behind: its lateness against the middle rank.",
        "late: sum of its leads over the next slowest. waited = its own kernels' time - transfer; "
        "exposed: of that, nothing computed meanwhile.",
    ]
    if incomplete:
        notes.append(
            f"{counted(incomplete, 'operation')} of groups with ranks missing here: transfer is "
            "an upper bound there, waiting a lower one."
        )
    title = "Ranks" if not summary else f"Ranks: spread over {len(table):,}, then the costliest"
    return Sheet(title, headings_of(places, figures), tuple(rows), footnotes=tuple(notes))


def _per_step(table: Table, name: str, label: str, scale: Scale, *, spare: int = 0) -> Figure:
    def shown(value: float) -> str:
        return ABSENT if value != value else scale.show(round(value))

    return Figure(Heading(label, f"{scale.unit}/step", spare=spare), table[name], shown)
