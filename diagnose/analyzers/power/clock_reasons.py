"""``clock_reasons``: why clocks were lowered, for how long, and what that can have cost."""

from __future__ import annotations

from typing import Any

from diagnose.analysis import Unavailable
from diagnose.analyzers.power.reasons import Held, held_reasons
from diagnose.analyzers.power.study import REMEDY, Study, study
from diagnose.analyzers.power.tables import CLOCK_REASONS, table_of
from diagnose.trace import Table, Trace


def clock_reasons(trace: Trace) -> Table | Unavailable:
    """The reasons for lowered clocks that held on each physical GPU, longest first.

    The cost is an upper bound: see ``diagnose.analyzers.power.reasons``.
    """
    studies = study(trace)
    missing = studies.unavailable
    if missing is not None:
        return missing
    held = [(found, held_reasons(found.samples, found.times)) for found in studies.known]
    if all(reasons is None for _, reasons in held):
        return Unavailable("no GPU says why its clocks were lowered", REMEDY)
    rows = [_row(found, reason) for found, reasons in held for reason in reasons or ()]
    return table_of(CLOCK_REASONS, rows)


def _row(found: Study, held: Held) -> dict[str, Any]:
    window = found.times.end_ns - found.times.start_ns
    return {
        "source": found.card.gpus[0].source,
        "device": found.card.gpus[0].device,
        "reason": held.reason.name,
        "meaning": held.reason.meaning,
        "slows": held.reason.slows,
        "held_ns": held.held_ns,
        "held_pct": 100 * held.held_ns / window,
        "recorded_ns": held.recorded_ns,
        "num_spells": held.num_spells,
        "longest_ns": held.longest_ns,
        "compute_ns": held.compute_ns,
        "clock_mhz": held.clock_mhz,
        "reference_mhz": held.reference_mhz,
        "cost_ns": held.cost_ns,
        "cost_pct": 100 * held.cost_ns / window,
        "cost_why": held.cost_why,
    }
