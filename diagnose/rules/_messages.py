"""Collectives of one GPU with what they cost, and which of them belong to a backward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.rules._steps import step_rows
from diagnose.schema import NO_ROW, Activity
from diagnose.trace import Gpu

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[Any]

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


class Messages(NamedTuple):
    """Communication of one GPU within its timed steps. Arrays of one length, by start."""

    steps: int
    """How many steps sums are divided by."""
    row: Array
    """Of ``gpu_ops``."""
    step_row: Array
    kind: Texts
    """``all_reduce``...; None: unknown. So are ``group`` and ``dtype``."""
    group: Texts
    dtype: Texts
    bytes: Array
    """``schema.NULL``: unknown."""
    transfer_ns: Array
    """Without waiting for late ranks where those were recorded."""
    exposed_ns: Array
    """Of the transfer, with no compute beside it on this GPU."""
    launch_ns: Array
    """When the host launched it; ``schema.NO_ROW``: unknown."""
    in_backward: Mask
    """Launched by a thread, other than the one that marks steps, that launches compute too."""

    def per_step(self, column: Array, rows: Mask) -> float:
        """The sum over some rows, per step."""
        return float(column[rows].sum()) / self.steps

    def is_kind(self, *kinds: str) -> Mask:
        """The rows that are one of these collectives."""
        found: Mask = np.isin(self.kind.astype(str), kinds)
        return found


def messages_on(facts: Facts, gpu: Gpu) -> Messages:
    """The communication that a GPU's timed steps launched; of the window where none is timed."""
    slack, steps = facts.table("slack"), facts.steps[gpu]
    mine = facts.on(slack, gpu)
    if steps.timed:
        mine &= step_rows(slack, steps)
    slack = slack.take(mine)
    table, ops = facts.trace.collectives, facts.trace.gpu_ops
    row = slack["gpu_op_row"]
    said = table.take(np.searchsorted(table["gpu_op_row"], row))
    call = ops["launch_row"][row]
    launched = np.full(len(row), NO_ROW, np.int64)
    launched[call >= 0] = facts.trace.launches["start_ns"][call[call >= 0]]
    return Messages(
        steps=steps.number,
        row=row,
        step_row=slack["step_row"],
        kind=np.array(said.texts("collective"), object),
        group=np.array(said.texts("group"), object),
        dtype=np.array(said.texts("dtype"), object),
        bytes=said["bytes"],
        transfer_ns=slack["transfer_ns"],
        exposed_ns=slack["exposed_transfer_ns"],
        launch_ns=launched,
        in_backward=launched_in_backward(facts, gpu)[row],
    )


def launched_in_backward(facts: Facts, gpu: Gpu) -> Mask:
    """Which GPU operations the threads of backward passes launched. Shape (gpu_ops,).

    PyTorch runs backward passes on threads of their own. Without marks of steps: none.
    """
    ops, launches, steps = facts.trace.gpu_ops, facts.trace.launches, facts.trace.steps
    found = np.zeros(len(ops), bool)
    on = np.zeros(len(ops), bool)
    on[facts.trace.on(gpu)] = True
    known = np.flatnonzero(on & (ops["launch_row"] >= 0) & (ops["step_row"] >= 0))
    if not known.size:
        return found
    thread = launches["thread"][ops["launch_row"][known]]
    other = thread != steps["thread"][ops["step_row"][known]]
    computes = ops["activity"][known] == Activity.COMPUTE
    found[known] = other & np.isin(thread, thread[other & computes])
    return found
