"""Calls that allocate or free memory in steady steps, for several rules."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.rules._facts import Facts
from diagnose.schema import Call
from diagnose.trace import Gpu


class Allocations(NamedTuple):
    """One process's calls of one kind of memory. Figures are per marked step but the first."""

    number: float
    host_ns: float
    idle_ns: float
    """GPU idle time that these calls caused, per timed step."""
    longest_ns: float
    steps_pct: float
    """Steps with such a call."""
    names: tuple[str, ...]
    """Of the calls, most frequent first."""


def allocations_in_steps(facts: Facts, gpu: Gpu, *, of_host_memory: bool) -> Allocations | None:
    """Calls within all marked steps but the first; None without two marks or without a call."""
    marks = facts.trace.steps.take(facts.trace.steps["source"] == gpu.source)
    order = np.argsort(marks["start_ns"], kind="stable")[1:]
    if not len(order):
        return None
    begin, end = marks["start_ns"][order], marks["end_ns"][order]
    calls = facts.trace.launches
    rows = np.flatnonzero(
        (calls["source"] == gpu.source) & allocating(facts, of_host_memory=of_host_memory)
    )
    at = np.searchsorted(begin, calls["start_ns"][rows], side="right") - 1
    inside = (at >= 0) & (calls["start_ns"][rows] < end[at])
    rows, at = rows[inside], at[inside]
    if not rows.size:
        return None
    length = calls["end_ns"][rows] - calls["start_ns"][rows]
    names = Counter(calls.strings[int(code)] for code in calls["name"][rows])
    return Allocations(
        len(rows) / len(order),
        float(length.sum()) / len(order),
        _idle(facts, gpu, of_host_memory=of_host_memory),
        float(length.max()),
        100 * len(set(at.tolist())) / len(order),
        tuple(name for name, _ in names.most_common()),
    )


def steady_allocations(
    facts: Facts, *, of_host_memory: bool, min_num_calls: int, min_steps_pct: float
) -> dict[Gpu, Allocations]:
    """The GPUs whose process makes that many such calls a step, in that many of its steps."""
    found = {
        gpu: allocations_in_steps(facts, gpu, of_host_memory=of_host_memory) for gpu in facts.gpus
    }
    return {
        gpu: one
        for gpu, one in found.items()
        if one is not None and one.number >= min_num_calls and one.steps_pct >= min_steps_pct
    }


def allocating(facts: Facts, *, of_host_memory: bool) -> npt.NDArray[np.bool_]:
    """Which calls allocate or free page-locked host memory, or memory of the GPU."""
    calls = facts.trace.launches
    is_host = facts.trace.strings.where(lambda text: "Host" in text)
    chosen: npt.NDArray[np.bool_] = (calls["call"] == Call.ALLOCATE) & (
        is_host[calls["name"]] == of_host_memory
    )
    return chosen


def _idle(facts: Facts, gpu: Gpu, *, of_host_memory: bool) -> float:
    stalls = facts.find("stalls")
    if stalls is None:
        return 0.0
    which = np.append(allocating(facts, of_host_memory=of_host_memory), False)
    caused = (stalls["cause"] == Cause.ALLOCATION) & which[stalls["call_row"]]
    return facts.per_step(stalls, "length_ns", gpu, caused)
