"""Exposed communication divided in two: waiting for late ranks, and moving bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analyzers._lanes import Mask
from diagnose.analyzers._waits import analyse, compute_of
from diagnose.intervals import Array, Intervals, covered_length, intersect, union
from diagnose.schema import NULL, Activity
from diagnose.trace import Trace


class Transfer(NamedTuple):
    """The communication of one GPU with waiting for late ranks taken out.

    ``op_row`` indexes ``gpu_ops``; an operation that was not matched across ranks
    counts whole, so what is exposed of the transfer stays an upper bound.
    """

    op_row: Array
    start: Array
    end: Array
    matched: Mask


def transfers(trace: Trace) -> list[Transfer] | None:
    """For each GPU (order of ``Trace.gpus``) when its bytes move; None if nothing was matched."""
    analysed = analyse(trace)
    if not analysed.matches.num_matches:
        return None
    waits = analysed.waits
    wait = np.zeros(len(trace.gpu_ops), np.int64)
    matched = np.zeros(len(trace.gpu_ops), bool)
    row = trace.collectives["gpu_op_row"][waits.row]
    wait[row], matched[row] = waits.wait, True
    found = []
    for gpu in trace.gpus:
        on = trace.on(gpu)
        own = on.start + np.flatnonzero(trace.gpu_ops["activity"][on] == Activity.COMMUNICATION)
        start = trace.gpu_ops["start_ns"][own] + wait[own]
        found.append(Transfer(own, start, trace.gpu_ops["end_ns"][own], matched[own]))
    return found


def exposed_transfer(
    trace: Trace, number: int, transfer: Transfer, low: Array, high: Array
) -> Array:
    """Of each ``[low, high)`` of a GPU the time in which bytes move and nothing computes.

    int64 ns, the shape of ``low``. NULL everywhere if none of its operations was matched.
    """
    if not transfer.matched.any():
        return np.full(low.shape, NULL)
    moving = union(transfer.start, transfer.end)
    beside: Intervals = intersect(moving, compute_of(trace, number))
    exposed: Array = covered_length(moving, low, high) - covered_length(beside, low, high)
    return exposed
