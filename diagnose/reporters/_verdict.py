"""Sentences about late ranks, as the reports say them."""

from __future__ import annotations

from diagnose.analyzers.stragglers import Pattern, StragglerThresholds
from diagnose.reporters._format import percent
from diagnose.schema import NULL
from diagnose.trace import Table, Trace

_UNCERTAIN = (
    " Not certain: clocks aligned poorly, ranks missing from the trace, or fewer than two steps."
)


def milliseconds(nanoseconds: float) -> str:
    """A time in a sentence."""
    return f"{nanoseconds / 1e6:.2f} ms"


def straggler_sentences(trace: Trace, table: Table) -> list[str]:
    """One sentence with its evidence for each row of ``stragglers``; one if there is none."""
    if not len(table):
        share = 100 * StragglerThresholds().min_share
        return [f"No straggler: no rank costs the others {share:g} % of the step time or more."]
    return [_sentence(trace, table, row) for row in range(len(table))]


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
    per_step, share = float(table["lost_per_step_ns"][row]), float(table["lost_pct"][row])
    of = "step time" if per_step == per_step else "window"
    said = f"{milliseconds(per_step)} a step" if per_step == per_step else "time"
    return f"{said} ({percent(share)} % of the {of})" if share == share else said


def _doubt(table: Table, row: int) -> str:
    return "" if table["certain"][row] else _UNCERTAIN
