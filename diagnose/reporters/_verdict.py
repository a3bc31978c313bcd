"""Sentences about late ranks, as the reports say them."""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.stragglers import Pattern, StragglerThresholds
from diagnose.schema import NULL
from diagnose.trace import Table, Trace
from diagnose.wording.numbers import percent, ranges

_UNCERTAIN = (
    " Not certain: clocks aligned poorly, ranks missing from the trace, or fewer than two steps."
)


def duration(nanoseconds: float) -> str:
    """A time in a sentence."""
    if abs(nanoseconds) < 1e6:
        return f"{nanoseconds / 1e3:.1f} us"
    return f"{nanoseconds / 1e6:.2f} ms"


def straggler_sentences(trace: Trace, table: Table) -> list[str]:
    """Each reason of ``stragglers`` with its evidence; ranks that are late together in one."""
    if not len(table):
        share = 100 * StragglerThresholds().min_share
        return [f"No straggler: no rank costs the others {share:g} % of the step time or more."]
    constant = np.flatnonzero(table["pattern"] == Pattern.CONSTANT).tolist()
    rest = [row for row in range(len(table)) if row not in constant]
    first = [_together(table, constant)] if len(constant) > 1 else []
    alone = constant if len(constant) == 1 else []
    return first + [_sentence(trace, table, row) for row in alone + rest]


def row_sentences(trace: Trace, table: Table) -> list[str]:
    """One sentence for each row of ``stragglers``."""
    return [_sentence(trace, table, row) for row in range(len(table))]


def _together(table: Table, rows: list[int]) -> str:
    ranks = [int(rank) for rank in table["rank"][rows].tolist()]
    who = f"{len(ranks):,} sources" if NULL in ranks else f"Ranks {ranges(ranks)}"
    fewest, steps = int(table["late_steps"][rows].min()), int(table["num_steps"][rows[0]])
    behind = float(np.nan_to_num(table["behind_per_step_ns"][rows]).max())
    doubt = "" if table["certain"][rows].all() else _UNCERTAIN
    return (
        f"{who} hold the others up together: each late in at least {fewest:,} of {steps:,} steps, "
        f"by up to {duration(behind)} a step against the middle rank.{doubt}"
    )


def _sentence(trace: Trace, table: Table, row: int) -> str:
    pattern = Pattern(int(table["pattern"][row]))
    lost = _lost(table, row)
    steps = f"{int(table['late_steps'][row]):,} of {int(table['num_steps'][row]):,} steps"
    if pattern is Pattern.WANDERING:
        return (
            f"Late ranks cost {lost}, another rank each time (notable in {steps}): jitter or "
            f"uneven work, not one slow machine.{_doubt(table, row)}"
        )
    if pattern is Pattern.INHERENT:
        return (
            f"GPUs wait {lost} (the median GPU) in sends and receives or for stages of their "
            "own pipeline: the schedule's doing, no slow rank."
        )
    others = int(table["num_late"][row]) - 1
    together = f", with {others:,} more late together with it" if others else ""
    ratio = float(table["compute_ratio"][row])
    compute = (
        f"; it computes {ratio:.2f} times as long as the median rank" if ratio == ratio else ""
    )
    return (
        f"{_who(trace, table, row)} holds the others up{together}: late in {steps}, last in "
        f"{percent(float(table['last_pct'][row]))} % of its collectives, costs at most "
        f"{lost}{compute}.{_doubt(table, row)}"
    )


def _who(trace: Trace, table: Table, row: int) -> str:
    rank = int(table["rank"][row])
    if rank != NULL:
        return f"Rank {rank}"
    return trace.sources[int(table["source"][row])].label


def _lost(table: Table, row: int) -> str:
    per_step, share = float(table["lost_per_step_ns"][row]), percent(float(table["lost_pct"][row]))
    if per_step != per_step:
        return f"{share} % of the window"
    return f"{duration(per_step)} a step ({share} % of the step time)"


def _doubt(table: Table, row: int) -> str:
    return "" if table["certain"][row] else _UNCERTAIN
