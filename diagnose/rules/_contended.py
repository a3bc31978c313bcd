"""What compute of one GPU loses beside communication, for several rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.schema import NO_ROW
from diagnose.trace import Gpu, Table


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


class SlowedKernel(NamedTuple):
    """A kernel (name, launch shape, input shapes) that takes longer beside communication."""

    name: str
    launch_shape: str
    """As written; empty: not known. So are ``shapes``."""
    shapes: str
    family: str
    num_alone: int
    num_paired: int
    """Occurrences that ran beside communication and have twins that ran alone."""
    alone_ns: float
    beside_ns: float
    """Median durations of the twins and of the paired."""
    duration_ratio: float
    """Of the whole durations: paired over twins."""
    paired_per_step: float
    cost_ns: float
    """Of the paired, beyond what they take alone, per step."""


def slowed_on(facts: Facts, gpu: Gpu) -> list[SlowedKernel]:
    """The kernels of one GPU whose 95 % interval of the ratio of durations lies above 1.

    The analysis counts over the window; a step's part of it is that of the kernel's occurrences.
    Ends the rule (not judged) where contention could not be measured on any GPU.
    """
    table = facts.table("contention_kernels")
    slower = facts.on(table, gpu) & (table["duration_ratio_low"] > 1) & table.known("cost_ns")
    table = table.take(slower)
    if not len(table):
        return []
    texts = [table.texts(name) for name in ("name", "launch_shape", "shapes", "family")]
    part = _parts_of_step(facts, gpu)
    codes = facts.trace.strings.code
    found = []
    for row, (name, shape, shapes, family) in enumerate(zip(*texts, strict=True)):
        share = part.get((codes(name or ""), codes(shape) if shape else NO_ROW), 0.0)
        paired = int(table["num_paired"][row])
        found.append(
            SlowedKernel(
                name=name or "",
                launch_shape=shape or "",
                shapes=shapes or "",
                family=family or "",
                num_alone=int(table["num_alone"][row]),
                num_paired=paired,
                alone_ns=float(table["alone_ns"][row]),
                beside_ns=float(table["overlapped_duration_ns"][row]),
                duration_ratio=float(table["duration_ratio"][row]),
                paired_per_step=paired * share,
                cost_ns=float(table["cost_ns"][row]) * share,
            )
        )
    return found


def _parts_of_step(facts: Facts, gpu: Gpu) -> dict[tuple[int, int], float]:
    """Name and launch shape -> the share of its occurrences in the window that one step has."""
    every = _counted(facts.trace.gpu_ops.take(facts.trace.on(gpu)))
    timed = _counted(facts.operations_per_step(gpu))
    number = facts.steps[gpu].number
    return {key: timed.get(key, 0) / count / number for key, count in every.items()}


def _counted(ops: Table) -> dict[tuple[int, int], int]:
    keys = np.stack([ops["name"], ops["launch_shape"]], 1)
    each, counts = np.unique(keys, axis=0, return_counts=True)
    return {(a, b): n for (a, b), n in zip(each.tolist(), counts.tolist(), strict=True)}


def rows_of(ops: Table, name: str, launch_shape: str | None) -> npt.NDArray[np.bool_]:
    """The GPU operations of this name and launch shape (empty or None: not known)."""
    shape = ops.strings.code(launch_shape) if launch_shape else NO_ROW
    found: npt.NDArray[np.bool_] = ops["name"] == ops.strings.code(name)
    found &= ops["launch_shape"] == shape
    return found
