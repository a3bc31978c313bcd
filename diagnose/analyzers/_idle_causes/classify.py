"""Which cause a free interval of a GPU has, and on what evidence.

A copy or fill that runs alone is its own cause. An idle interval ends when the
next operation starts; what that operation waited for decides:

- Its launch was *late* if the call had not returned when the GPU ran dry. Had
  the host been earlier by the length of the gap, there would be none. So the
  host is looked at during the gap moved back by the delay between launch and
  start: ``[gap start - (start - launch), launch)``, of the gap's own length.
  The state that covers most of it is the cause; if the thread was waiting for
  the GPU when the GPU ran dry, that wait is.
- It was launched *just before* (the call returned, yet start - launch is no more
  than ``LAUNCH_LATENCY_NS``): launch latency.
- It was launched early: it waited on the GPU, for another stream or a copy (the
  last to end before the gap was there) or only for the switch from one
  operation to the next on its own stream. A longer wait is unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import (
    ABSENT_NS,
    COPY_SWITCH_NS,
    LAUNCH_LATENCY_NS,
    SWITCH_NS,
    TAKEN_BYTES,
    Cause,
    Confidence,
    copy_causes,
    taken_bytes,
)
from diagnose.analyzers._idle_causes.free_time import FreeTime
from diagnose.analyzers._idle_causes.host_threads import HostState, ThreadTimeline
from diagnose.analyzers._idle_causes.host_view import NUM_STATES, HostView
from diagnose.schema import NO_ROW, Activity, Kind
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]

_CAUSE_OF_STATE = {
    HostState.ABSENT: Cause.PYTHON,
    HostState.OPERATOR: Cause.HOST_OP,
    HostState.PYTHON: Cause.PYTHON,
    HostState.SYNCHRONIZE: Cause.HOST_SYNC,
    HostState.COPY: Cause.COPY_WAIT,
    HostState.ALLOCATE: Cause.ALLOCATION,
    HostState.DATA_LOADING: Cause.DATA_LOADING,
    HostState.GARBAGE_COLLECTION: Cause.GARBAGE_COLLECTION,
    HostState.LOCK: Cause.LOCK,
}

_BLOCK = 1 << 14
"""Late gaps looked at together: bounds memory, which is a column per state of the host."""


@dataclass
class Verdicts:
    """One row per free interval. Rows are -1 and ``thread`` is -1 where there is none."""

    cause: npt.NDArray[np.int8]
    confidence: npt.NDArray[np.int8]
    cause_ns: Array
    """Length of the (shifted) interval that the named state itself covers."""
    launch_row: Array
    thread: npt.NDArray[np.int32]
    host_op_row: Array
    call_row: Array

    @classmethod
    def blank(cls, free: FreeTime) -> Verdicts:
        size = free.start.size
        rows = [np.full(size, NO_ROW, np.int64) for _ in range(3)]
        return cls(
            np.full(size, Cause.UNEXPLAINED, np.int8),
            np.full(size, Confidence.LOW, np.int8),
            free.end - free.start,
            rows[0],
            np.full(size, NO_ROW, np.int32),
            rows[1],
            rows[2],
        )

    def decide(self, where: Array, cause: Cause, confidence: Confidence) -> None:
        self.cause[where] = cause
        self.confidence[where] = confidence


def _first_of_launch(trace: Trace) -> npt.NDArray[np.bool_]:
    """Whether an operation is the first of its launch: a graph launch starts many."""
    launch, first = trace.gpu_ops["launch_row"], np.zeros(len(trace.gpu_ops), bool)
    known = np.flatnonzero(launch >= 0)
    order = known[np.lexsort((trace.gpu_ops["start_ns"][known], launch[known]))]
    changed = np.ones(order.size, bool)
    changed[1:] = launch[order][1:] != launch[order][:-1]
    first[order[changed]] = True
    return first


def _first_of_step(trace: Trace) -> npt.NDArray[np.bool_]:
    """Whether an operation is the first launched of its step."""
    ops, first = trace.gpu_ops, np.zeros(len(trace.gpu_ops), bool)
    known = np.flatnonzero((ops["step_row"] >= 0) & (ops["launch_row"] >= 0))
    begun = trace.launches["start_ns"][ops["launch_row"][known]]
    key = ops["step_row"][known].astype(np.int64) * (int(ops["device"].max(initial=0)) + 1)
    key += ops["device"][known]
    order = np.lexsort((begun, key))
    changed = np.ones(order.size, bool)
    changed[1:] = key[order][1:] != key[order][:-1]
    first[known[order[changed]]] = True
    return first


class Classifier:
    """Decides causes GPU by GPU; what is the same for all GPUs is worked out once."""

    def __init__(self, trace: Trace, threads: dict[tuple[int, int], ThreadTimeline]) -> None:
        self._trace, self._threads = trace, threads
        self._copy = copy_causes(trace)
        self._taken = taken_bytes(trace, self._copy)
        self._first_of_launch = _first_of_launch(trace)
        self._first_of_step = _first_of_step(trace)
        self._before = _launch_before(trace)

    def decide(self, free: FreeTime) -> Verdicts:
        """The cause of every free interval of one GPU."""
        trace, verdicts = self._trace, Verdicts.blank(free)
        alone = np.flatnonzero(free.memory_row >= 0)
        verdicts.cause[alone] = self._copy[free.memory_row[alone]]
        verdicts.confidence[alone] = Confidence.HIGH
        shown = np.where(free.memory_row >= 0, free.memory_row, free.next_row)
        has = shown >= 0
        verdicts.launch_row[has] = trace.gpu_ops["launch_row"][shown[has]]
        known = verdicts.launch_row >= 0
        verdicts.thread[known] = trace.launches["thread"][verdicts.launch_row[known]]
        idle = np.flatnonzero(free.memory_row < 0)
        edge = (free.next_row[idle] < 0) | (free.last_row[idle] < 0)
        verdicts.decide(idle[edge], Cause.WINDOW_EDGE, Confidence.HIGH)
        idle = idle[~edge]
        launched = verdicts.launch_row[idle] >= 0
        self._decide_unlaunched(free, verdicts, idle[~launched])
        self._decide_launched(free, verdicts, idle[launched])
        return verdicts

    def _decide_unlaunched(self, free: FreeTime, verdicts: Verdicts, at: Array) -> None:
        verdicts.decide(at, Cause.LAUNCHED_BEFORE_WINDOW, Confidence.HIGH)
        self._decide_switch(free, verdicts, at)

    def _decide_switch(self, free: FreeTime, verdicts: Verdicts, at: Array) -> None:
        """Short pauses behind the operation's own stream."""
        ops = self._trace.gpu_ops
        last, following = free.last_row[at], free.next_row[at]
        same = ops["stream"][last] == ops["stream"][following]
        replay = (ops["launch_row"][last] == ops["launch_row"][following]) & (
            ops["launch_row"][last] >= 0
        )
        verdicts.decide(at[replay], Cause.GRAPH_PAUSE, Confidence.HIGH)
        verdicts.decide(at[same & self._is_short(free, at)], Cause.SWITCH, Confidence.HIGH)

    def _is_short(self, free: FreeTime, at: Array) -> npt.NDArray[np.bool_]:
        """Whether the pause since the last operation is one that needs no reason."""
        ops, last, following = self._trace.gpu_ops, free.last_row[at], free.next_row[at]
        copy = (ops["kind"][last] == Kind.MEMCPY) | (ops["kind"][following] == Kind.MEMCPY)
        pause = ops["start_ns"][following] - ops["end_ns"][last]
        short: npt.NDArray[np.bool_] = pause <= np.where(copy, COPY_SWITCH_NS, SWITCH_NS)
        return short

    def _decide_launched(self, free: FreeTime, verdicts: Verdicts, at: Array) -> None:
        launch = verdicts.launch_row[at]
        call_start = self._trace.launches["start_ns"][launch]
        call_end = self._trace.launches["end_ns"][launch]
        start = self._trace.gpu_ops["start_ns"][free.next_row[at]]
        first = self._first_of_launch[free.next_row[at]]
        late = first & (call_end > free.start[at])
        near = first & ~late & (start - call_start <= LAUNCH_LATENCY_NS)
        verdicts.decide(at[near], Cause.LAUNCH_LATENCY, Confidence.MEDIUM)
        self._decide_early(free, verdicts, at[~late & ~near])
        behind, called = at[late], call_start[late]
        for first_of_block in range(0, behind.size, _BLOCK):
            block = slice(first_of_block, first_of_block + _BLOCK)
            self._decide_late(free, verdicts, behind[block], called[block])

    def _decide_early(self, free: FreeTime, verdicts: Verdicts, at: Array) -> None:
        """Launched early: what the operation waited for is on the GPU."""
        ops = self._trace.gpu_ops
        last = free.last_row[at]
        other = ops["stream"][last] != ops["stream"][free.next_row[at]]
        short = self._is_short(free, at)
        copy = ops["activity"][last] == Activity.MEMORY
        verdicts.decide(at[other & ~copy & short], Cause.STREAM_WAIT, Confidence.MEDIUM)
        verdicts.decide(at[other & copy & short], Cause.COPY_WAIT, Confidence.MEDIUM)
        self._decide_switch(free, verdicts, at)

    def _decide_late(
        self, free: FreeTime, verdicts: Verdicts, at: Array, call_start: Array
    ) -> None:
        """The host launched too late: what it did in the gap, moved back by the launch delay."""
        length = free.end[at] - free.start[at]
        window_end = np.minimum(call_start, free.end[at])
        window_start = window_end - length
        source = self._trace.launches["source"][verdicts.launch_row[at]]
        thread = verdicts.thread[at].astype(np.int64)
        seen = self._look(source, thread, window_start, window_end, free.start[at])
        # A thread that did nothing may itself have been waiting for the one before it.
        before = self._before[verdicts.launch_row[at]]
        other_thread = np.where(before >= 0, self._trace.launches["thread"][before], thread)
        other = self._look(source, other_thread, window_start, window_end, free.start[at])
        swap = (other_thread != thread) & (2 * seen.covered[:, HostState.ABSENT] > length)
        swap &= other.covered[:, HostState.ABSENT] < seen.covered[:, HostState.ABSENT]
        seen.replace(swap, other)
        verdicts.thread[at] = np.where(swap, other_thread, thread)
        self._name(free, verdicts, at, seen)

    def _name(self, free: FreeTime, verdicts: Verdicts, at: Array, seen: HostView) -> None:
        length = free.end[at] - free.start[at]
        state = np.argmax(seen.covered, axis=1)
        of_state = np.array([_CAUSE_OF_STATE[HostState(code)] for code in range(NUM_STATES)])
        cause = of_state[state]
        absent = seen.covered[:, HostState.ABSENT]
        first = self._first_of_step[free.next_row[at]]
        waiting = (seen.at_start >= 0) | (2 * seen.covered[:, HostState.SYNCHRONIZE] > length)
        ordinary = np.isin(cause, (Cause.PYTHON, Cause.HOST_OP, Cause.HOST_SYNC))
        missing = first & (state == HostState.ABSENT) & (2 * absent > length)
        missing &= ~waiting | (absent >= ABSENT_NS)
        missing &= self._taken[free.last_row[at]] < TAKEN_BYTES
        synced = waiting & ordinary & ~missing
        cause[synced] = Cause.HOST_SYNC
        cause[missing] = Cause.DATA_LOADING
        state[synced] = HostState.SYNCHRONIZE
        covered = seen.covered[np.arange(at.size), state]
        verdicts.cause[at] = cause
        verdicts.cause_ns[at] = covered
        confidence = np.where(2 * covered > length, Confidence.HIGH, Confidence.MEDIUM)
        confidence[missing] = Confidence.MEDIUM
        confidence[(cause == Cause.PYTHON) & (state == HostState.ABSENT)] = Confidence.MEDIUM
        confidence[synced & (seen.at_start >= 0)] = Confidence.HIGH
        verdicts.confidence[at] = confidence
        host_op, call = seen.op_of_state, seen.call_of_state
        verdicts.host_op_row[at] = host_op[np.arange(at.size), state]
        verdicts.call_row[at] = call[np.arange(at.size), state]
        ran_dry = synced & (seen.at_start >= 0)
        verdicts.call_row[at[ran_dry]] = seen.at_start[ran_dry]
        verdicts.host_op_row[at[ran_dry]] = seen.at_start_op[ran_dry]

    def _look(self, source: Array, thread: Array, start: Array, end: Array, dry: Array) -> HostView:
        """What the threads did in the windows, and in which wait the GPU ran dry."""
        seen = HostView.blank(end - start)
        for one_source, one_thread in sorted(
            set(zip(source.tolist(), thread.tolist(), strict=True))
        ):
            timeline = self._threads.get((one_source, one_thread))
            if timeline is None:
                continue
            mine = np.flatnonzero((source == one_source) & (thread == one_thread))
            seen.add(mine, timeline, start[mine], end[mine], dry[mine])
        return seen


def _launch_before(trace: Trace) -> Array:
    """For each launch of GPU work the one before it in its process (-1: none). int64."""
    used = np.zeros(len(trace.launches), bool)
    rows = trace.gpu_ops["launch_row"]
    used[rows[rows >= 0]] = True
    used_rows = np.flatnonzero(used)
    before = np.full(len(trace.launches), NO_ROW, np.int64)
    source = trace.launches["source"][used_rows]
    same = source[1:] == source[:-1]
    before[used_rows[1:][same]] = used_rows[:-1][same]
    return before
