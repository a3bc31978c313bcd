"""What compute of one GPU loses beside communication, for several rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.rules._facts import Facts
from diagnose.trace import Gpu


class Contended(NamedTuple):
    """Of the compute that ran beside communication and also alone. Costs are per step."""

    slowdown: float
    slowdown_low: float
    """Lower end of the 95 % interval."""
    cost_ns: float
    coverage_pct: float
    num_paired: int


def contended_on(facts: Facts, gpu: Gpu) -> Contended | None:
    """The analysis ``contention`` of one GPU; None where it has no slowdown.

    Ends the rule (not judged) where contention could not be measured on any GPU.
    """
    table = facts.table("contention", by="gpu")
    rows = np.flatnonzero(facts.on(table, gpu) & table.known("slowdown"))
    if not rows.size:
        return None
    row = int(rows[0])
    cost = table["cost_per_step_ns" if facts.timed else "cost_ns"][row]
    if np.isnan(cost):
        return None
    return Contended(
        slowdown=float(table["slowdown"][row]),
        slowdown_low=float(table["slowdown_low"][row]),
        cost_ns=float(cost),
        coverage_pct=float(table["coverage_pct"][row]),
        num_paired=int(table["num_paired"][row]),
    )
