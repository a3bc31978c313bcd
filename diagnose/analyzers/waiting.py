"""How much of the exposed communication is waiting for late ranks.

Rows and sums are those of ``overlap``: a row's communication is what its step
launched, on one GPU. With W of each matched operation taken off its beginning
(``ranks`` says how W is found), M the row's communication without W, and C the
GPU's compute::

    exposed_transfer = |M| - |M and C|
    waiting          = exposed communication - exposed_transfer

So waiting is the exposed time in which no operation of the row moves bytes. An
operation without a match counts as transfer: an upper bound of it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._moving import Transfer, transfers
from diagnose.analyzers._waits import compute_of
from diagnose.analyzers.ranks import nothing_matched
from diagnose.errors import UsageError
from diagnose.grouped_intervals import covered_length_by, length_by, union_by
from diagnose.intervals import Array
from diagnose.schema import NO_ROW, NULL, Column, Detail, TableSchema
from diagnose.timeline.overlap import steps_missing
from diagnose.timeline.step_times import of_source
from diagnose.trace import Table, Trace

WAITING = TableSchema(
    "waiting",
    "one GPU, or one step on one GPU (or its work of no step)",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("device", "int32", "device number within its process"),
        Column("rank", "int64", "rank of the source", nullable=True),
        Column("step_row", "int64", "row of `steps`; unknown: launched in no step", nullable=True),
        Column("num_ops", "int64", "communication operations"),
        Column("num_matched", "int64", "of them matched across ranks"),
        Column(
            "exposed_transfer_ns",
            "int64",
            "exposed communication that moves bytes; unknown if none is matched",
            "ns",
            nullable=True,
        ),
        Column(
            "waiting_ns", "int64", "exposed communication that waits for ranks", "ns", nullable=True
        ),
    ),
)


def waiting(trace: Trace, by: Literal["rank", "step"] = "rank") -> Table | Unavailable:
    """Exposed communication divided into transfer and waiting. Returns a table of ``WAITING``.

    A row per GPU, or with ``by="step"`` per GPU and step, as in ``overlap``. Both
    times sum to the exposed communication there; they are unknown where none of the
    row's operations was matched across ranks. Unavailable where nothing was.
    """
    if by not in ("rank", "step"):
        raise UsageError(f"waiting cannot be split by {by!r}", hint="choose rank or step")
    if by == "step" and (missing := steps_missing(trace)):
        return missing
    moving = transfers(trace)
    if moving is None:
        return nothing_matched(trace)
    parts = [_rows(trace, number, one, by) for number, one in enumerate(moving)]
    joined: dict[str, Any] = {
        column.name: np.concatenate([part[column.name] for part in parts]).astype(column.dtype)
        for column in WAITING.columns
    }
    return Table(WAITING, joined, trace.strings)


def _rows(trace: Trace, number: int, transfer: Transfer, by: str) -> dict[str, Array]:
    gpu = trace.gpus[number]
    rows, key = _keys(trace, number, transfer, by)
    compute = compute_of(trace, number)

    def exposed(start: Array) -> Array:
        segments = union_by(key, start, transfer.end, len(rows))
        covered = covered_length_by(segments, compute, len(rows))
        left: Array = length_by(segments, len(rows)) - covered
        return left

    moving = exposed(transfer.start)
    waited = exposed(trace.gpu_ops["start_ns"][transfer.op_row]) - moving
    matched = np.bincount(key[transfer.matched], minlength=len(rows))
    known = matched > 0
    return {
        "source": np.full(len(rows), gpu.source),
        "device": np.full(len(rows), gpu.device),
        "rank": np.full(len(rows), NULL if gpu.rank is None else gpu.rank),
        "step_row": rows,
        "num_ops": np.bincount(key, minlength=len(rows)),
        "num_matched": matched,
        "exposed_transfer_ns": np.where(known, moving, NULL),
        "waiting_ns": np.where(known, waited, NULL),
    }


def _keys(trace: Trace, number: int, transfer: Transfer, by: str) -> tuple[Array, Array]:
    """The step of each row, and for each operation its row."""
    if by == "rank":
        return np.array([NO_ROW]), np.zeros(len(transfer.op_row), np.int64)
    steps = of_source(trace.steps, trace.gpus[number].source)
    rows = np.arange(steps.start, steps.stop)
    if (trace.gpu_ops["step_row"][trace.on(trace.gpus[number])] < 0).any():
        rows = np.append(rows, NO_ROW)
    step = trace.gpu_ops["step_row"][transfer.op_row]
    return rows, np.where(step >= 0, step - steps.start, steps.stop - steps.start)


ANALYZERS = (Analyzer("waiting", Detail.GPU, WAITING, waiting),)
