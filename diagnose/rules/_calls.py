"""Waits of the host, by place and per step, for several rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.rules._facts import Facts
from diagnose.trace import Gpu


class Site(NamedTuple):
    """A place where the host waits for the GPU. Figures are per step."""

    name: str
    """The outermost operator around the call, else the call: ``aten::item``."""
    call: str
    number: float
    wait_ns: float
    idle_ns: float
    """GPU idle time that these waits caused."""


def waits_at(facts: Facts, gpu: Gpu) -> list[Site]:
    """Where the process of a GPU waits, costliest idle time first.

    A call belongs to the step during whose mark the host made it; without marks all count, and
    the window is one step.
    """
    waits = facts.table("host_waits")
    mine = waits.take(waits["source"] == gpu.source)
    marks = facts.trace.steps.take(facts.trace.steps["source"] == gpu.source)
    number = 1
    if facts.timed and len(marks):
        inside = np.zeros(len(mine), bool)
        for start, end in zip(marks["start_ns"].tolist(), marks["end_ns"].tolist(), strict=True):
            inside |= (mine["start_ns"] >= start) & (mine["start_ns"] < end)
        mine, number = mine.take(inside), len(marks)
    if not len(mine):
        return []
    operators = facts.trace.host_ops
    call, known = mine["name"], mine.known("outer_op_row")
    outer = np.where(known, operators["name"][np.where(known, mine["outer_op_row"], 0)], call)
    places, at = np.unique(np.stack([outer, call]), axis=1, return_inverse=True)
    totals = [
        np.bincount(at.reshape(-1), weights) / number
        for weights in (np.ones(len(mine)), mine["length_ns"], mine["idle_ns"])
    ]
    names = [(mine.strings[int(o)], mine.strings[int(c)]) for o, c in places.T.tolist()]
    columns = zip(names, *(total.tolist() for total in totals), strict=True)
    sites = [Site(*name, *figures) for name, *figures in columns]
    return sorted(sites, key=lambda site: (-site.idle_ns, -site.wait_ns, site.name))
