"""Where the backward pass of a step begins: where another thread than the step's launches compute.

PyTorch runs backward passes on threads of their own. Asked of the recording, not of the model,
so that a change that moves launches does not hide it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.replay.changes._once import once_per_trace
from diagnose.replay.model import Array, Mask, Model
from diagnose.schema import NO_ROW, Activity
from diagnose.trace import Trace


class Passes(NamedTuple):
    """Of each GPU operation of a trace. Shape (gpu_ops,)."""

    on_other_thread: Mask
    """Launched by a thread that launches compute, other than the one that marks the steps."""
    before_backward: Mask
    """Launched in a step before the first of these; False in steps without."""


@once_per_trace
def passes(trace: Trace) -> Passes:
    """Which operations of a trace belong to backward passes, and which come before."""
    ops, launches, steps = trace.gpu_ops, trace.launches, trace.steps
    nothing = np.zeros(len(ops), bool)
    known = np.flatnonzero((ops["launch_row"] >= 0) & (ops["step_row"] >= 0))
    if not known.size:
        return Passes(nothing, nothing)
    call, step = ops["launch_row"][known], ops["step_row"][known]
    other = launches["thread"][call] != steps["thread"][step]
    computes = other & (ops["activity"][known] == Activity.COMPUTE)
    thread = np.zeros(len(trace.strings), bool)
    thread[launches["thread"][call[computes]]] = True
    other &= thread[launches["thread"][call]]
    first = np.full(len(steps), np.iinfo(np.int64).min)
    begun = launches["start_ns"][call]
    first[np.unique(step[other])] = np.iinfo(np.int64).max
    np.minimum.at(first, step[other], begun[other])
    on_other, before = nothing.copy(), nothing.copy()
    on_other[known] = other
    before[known] = begun < first[step]
    return Passes(on_other, before)


def is_before_backward(model: Model) -> Mask:
    """Operations launched before the backward pass of their step. Shape (ops,)."""
    return _at(passes(model.trace).before_backward, model.operations.row)


def is_backward(model: Model) -> Mask:
    """Operations launched by the thread of a backward pass. Shape (ops,)."""
    return _at(passes(model.trace).on_other_thread, model.operations.row)


def _at(mask: Mask, row: Array) -> Mask:
    found: Mask = np.append(mask, False)[np.where(row >= 0, row, NO_ROW)]
    return found
