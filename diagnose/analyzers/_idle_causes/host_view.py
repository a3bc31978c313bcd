"""What host threads did during given windows, state by state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.host_threads import HostState, ThreadTimeline
from diagnose.schema import NO_ROW

Array = npt.NDArray[np.int64]
NUM_STATES = len(HostState)


@dataclass
class HostView:
    """Per window: ns of each ``HostState``, its longest event, and the wait at the gap's start."""

    covered: Array
    op_of_state: Array
    call_of_state: Array
    at_start: Array
    at_start_op: Array

    @classmethod
    def blank(cls, length: Array) -> HostView:
        shape = (length.size, NUM_STATES)
        covered = np.zeros(shape, np.int64)
        covered[:, HostState.ABSENT] = length
        rows = (np.full(shape, NO_ROW, np.int64), np.full(shape, NO_ROW, np.int64))
        dry = (np.full(length.size, NO_ROW, np.int64), np.full(length.size, NO_ROW, np.int64))
        return cls(covered, *rows, *dry)

    def replace(self, where: npt.NDArray[np.bool_], other: HostView) -> None:
        for name in ("covered", "op_of_state", "call_of_state", "at_start", "at_start_op"):
            getattr(self, name)[where] = getattr(other, name)[where]

    def add(
        self, mine: Array, timeline: ThreadTimeline, start: Array, end: Array, dry: Array
    ) -> None:
        window, event, length = timeline.overlaps(start, end)
        state = timeline.state[event].astype(np.int64)
        row = mine[window]
        some = state != HostState.ABSENT
        np.add.at(self.covered, (row[some], state[some]), length[some])
        np.subtract.at(self.covered, (row[some], np.zeros(int(some.sum()), np.int64)), length[some])
        # The longest event of each state: later assignments win, so the longest comes last.
        order = np.argsort(length, kind="stable")
        host_op, call = timeline.host_op_row, timeline.call_row
        enclosing = _enclosing_op(timeline)
        self.op_of_state[row[order], state[order]] = np.where(
            host_op[event[order]] >= 0, host_op[event[order]], enclosing[event[order]]
        )
        self.call_of_state[row[order], state[order]] = call[event[order]]
        leaf = timeline.leaf_at(dry)
        waits = (leaf >= 0) & (timeline.state[np.maximum(leaf, 0)] == HostState.SYNCHRONIZE)
        self.at_start[mine[waits]] = call[leaf[waits]]
        self.at_start_op[mine[waits]] = enclosing[leaf[waits]]


def _enclosing_op(timeline: ThreadTimeline) -> Array:
    """For each event the ``host_ops`` row of its parent (-1: none or a call)."""
    parent = timeline.parent
    found: Array = np.where(parent >= 0, timeline.host_op_row[np.maximum(parent, 0)], NO_ROW)
    return found
