"""How much slower operations are beside each other in a recording: contention's figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers._waits import compute_of
from diagnose.contention import communication_slowdown, contention
from diagnose.intervals import covered_length, union
from diagnose.names import Classifier
from diagnose.replay.change import Assume
from diagnose.replay.changes._once import once_per_trace
from diagnose.replay.changes._which import name_codes
from diagnose.replay.model import Array, Model
from diagnose.schema import NO_ROW, Activity
from diagnose.trace import Table, Trace

PRIOR = (1.0, 1.189, 1.4)
"""Slowdown of compute beside communication where none could be measured: 18.9 % on average
and 40 % at most over the models of "Characterizing Compute-Communication Overlap in
GPU-Accelerated Distributed Deep Learning" (2025)."""

Floats = npt.NDArray[np.float64]
Ends = tuple[float, float, float]


class Slowdowns(NamedTuple):
    """Least, likely, most slowdown, by family and by kind of collective; None: not measured."""

    by_family: dict[str, Ends]
    overall: Ends | None
    by_collective: dict[str, Ends]
    because: str
    """Why compute's is not known."""


@once_per_trace
def slowdowns(trace: Trace) -> Slowdowns:
    """What the recording says of contention."""
    family = contention(trace, by="family")
    if isinstance(family, Unavailable):
        return Slowdowns({}, None, _of_collectives(trace), family.because)
    every = contention(trace, by="all")
    overall = None if isinstance(every, Unavailable) else _ends(every, 0)
    by_family: dict[str, Ends] = {}
    for row, name in enumerate(family.texts("family")):
        found = _ends(family, row)
        if name is not None and found is not None:
            by_family[name] = found
    return Slowdowns(by_family, overall, _of_collectives(trace), "")


def _of_collectives(trace: Trace) -> dict[str, Ends]:
    table = communication_slowdown(trace)
    if isinstance(table, Unavailable):
        return {}
    found: dict[str, Ends] = {}
    of_all_sizes = ~table.known("bytes")
    for row in np.flatnonzero(of_all_sizes).tolist():
        name, ends = table.texts("collective")[row], _ends(table, row)
        if name is not None and ends is not None:
            found[name] = ends
    return found


def _ends(table: Table, row: int) -> Ends | None:
    """Slowdown with its interval, not below 1: nobody gains from being disturbed."""
    likely = float(table["slowdown"][row])
    if not np.isfinite(likely):
        return None
    low, high = float(table["slowdown_low"][row]), float(table["slowdown_high"][row])
    low = low if np.isfinite(low) else 1.0
    high = high if np.isfinite(high) else likely
    return max(low, 1.0), max(likely, 1.0), max(high, 1.0)


def of_operations(model: Model, assume: Assume) -> Floats:
    """The slowdown of each operation beside the other class; 1 where nothing was measured."""
    known, trace = slowdowns(model.trace), model.trace
    codes, ops = name_codes(model), model.operations
    factor = np.ones(model.num_ops)
    classifier = Classifier.load()
    compute = np.flatnonzero((ops.activity == Activity.COMPUTE) & (codes >= 0))
    for code in np.unique(codes[compute]).tolist():
        ends = known.by_family.get(classifier.family(trace.strings[code]), known.overall)
        if ends is not None:
            factor[compute[codes[compute] == code]] = ends[assume]
    collective = np.full(len(trace.gpu_ops) + 1, NO_ROW, np.int64)
    collective[trace.collectives["gpu_op_row"]] = trace.collectives["collective"]
    kind = collective[ops.row]
    for code in np.unique(kind[kind >= 0]).tolist():
        ends = known.by_collective.get(trace.strings[code])
        if ends is not None:
            factor[kind == code] = ends[assume]
    return factor


def beside_ns(model: Model) -> Array:
    """How long each operation ran beside the other class on its GPU, as recorded. Shape (ops,)."""
    ops, table = model.operations, model.trace.gpu_ops
    found = np.zeros(model.num_ops, np.int64)
    for number, gpu in enumerate(model.trace.gpus):
        rows = model.trace.on(gpu)
        computing = compute_of(model.trace, number)
        moving = np.flatnonzero(table["activity"][rows] == Activity.COMMUNICATION) + rows.start
        communicating = union(table["start_ns"][moving], table["end_ns"][moving])
        for activity, other in (
            (Activity.COMPUTE, communicating),
            (Activity.COMMUNICATION, computing),
        ):
            mine = np.flatnonzero((ops.gpu == number) & (ops.activity == activity) & (ops.row >= 0))
            row = ops.row[mine]
            end = table["end_ns"][row]
            # Of a collective only the transfer can be slowed: its last part.
            start = np.maximum(table["start_ns"][row], end - ops.duration_ns[mine])
            found[mine] = covered_length(other, start, end)
    return found
