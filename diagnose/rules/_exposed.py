"""Exposed communication of one GPU per step, waiting taken out where that can be told."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.rules._facts import Facts
from diagnose.trace import Gpu


class Exposed(NamedTuple):
    """Per step. ``waiting_ns`` None: not known, and ``transfer_ns`` includes it."""

    transfer_ns: float
    waiting_ns: float | None
    hidden_pct: float
    """Of communication, waiting included."""


def exposed_on(facts: Facts, gpu: Gpu) -> Exposed:
    """What ``breakdown`` calls exposed, divided as the analysis ``waiting`` divides it.

    ``waiting`` counts operations by the step that launched them, ``breakdown`` by time: of the
    one only the shares are taken, over the timed steps.
    """
    breakdown = facts.table("breakdown")
    exposed = facts.per_step(breakdown, "exposed_communication_ns", gpu)
    hidden = facts.per_step(breakdown, "overlapped_ns", gpu)
    of_all = 100 * hidden / (hidden + exposed) if hidden + exposed else 100.0
    by = "step" if facts.timed else "rank"
    waiting = facts.find("waiting", by=by)
    if waiting is None:
        return Exposed(exposed, None, of_all)
    rows = facts.on(waiting, gpu) & waiting.known("waiting_ns")
    if facts.timed:
        rows &= waiting["step_row"] >= 0
    waited = float(waiting["waiting_ns"][rows].sum())
    moved = float(waiting["exposed_transfer_ns"][rows].sum())
    if not waited + moved:
        return Exposed(exposed, None, of_all)
    part = waited / (waited + moved)
    return Exposed(exposed * (1 - part), exposed * part, of_all)
