"""How far the host may run ahead: the launch queue of a stream, and who was held back by it.

CUDA accepts about a thousand operations of a stream before the first of them has ended.
Measured on the recordings of one H200 (driver 580): the call that launches operation i
returns about 11 us after operation i - 1022 has ended, on every one of the streams that
got that far, and CUPTI shows the wait as "Command Buffer Full". Copies from pinned memory
seem not to count, so the distance is looked for from there on; a recording in which the
host got further ahead (another driver, CUDA graphs) has no limit.

What filled the queue may have been launched before the recording began; then only these
spans tell that a call waited.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.replay._recorded import Queues
from diagnose.replay.model import Array, Mask
from diagnose.schema import NO_ROW, Call
from diagnose.trace import Trace

DISTANCE = 1022
_TRIED = 16
"""Distances tried from ``DISTANCE`` on."""
_ALLOWED = 0.01
"""Share of calls that may return before the operation ahead has ended: clocks err."""


QUEUE_FULL = "Command Buffer Full"
"""The span in which CUPTI shows that a call waits for room; the thread that it names is none."""


def time_in_full_queue(trace: Trace, calls: Queues) -> Array:
    """For each call, how long CUPTI saw it wait for room in a queue. ns, by ``Queues`` index.

    A span counts for the call around it that began last, of whatever thread of its process.
    """
    ops, launches = trace.host_ops, trace.launches
    taken = np.zeros(calls.row.size, np.int64)
    if not len(ops) or not calls.row.size:
        return taken
    hit = trace.strings.where(lambda text: text == QUEUE_FULL)
    spans = np.flatnonzero(hit[ops["name"]])
    if not spans.size:
        return taken
    start, end = ops["start_ns"][spans], ops["end_ns"][spans]
    owner, latest = np.full(spans.size, NO_ROW, np.int64), np.full(spans.size, NO_ROW, np.int64)
    for queue in np.unique(calls.queue).tolist():
        mine = np.flatnonzero(calls.queue == queue)
        row = calls.row[mine]
        at = np.searchsorted(launches["start_ns"][row], start, side="right") - 1
        around = row[np.maximum(at, 0)]
        inside = (at >= 0) & (launches["end_ns"][around] >= end)
        inside &= launches["source"][around] == ops["source"][spans]
        inside &= (owner < 0) | (launches["start_ns"][around] > latest)
        owner[inside] = mine[at[inside]]
        latest[inside] = launches["start_ns"][around][inside]
    known = owner >= 0
    np.add.at(taken, owner[known], (end - start)[known])
    return taken


class Held(NamedTuple):
    """Calls that launch an operation with a full queue ahead of it. Equal-length arrays."""

    call: Array
    """Index into the calls' ``Queues``."""
    ahead: Array
    """Index into the operations' ``Queues``: the one that has to end first."""
    held: Mask
    """Whether the call was held back by it: it had not ended when the call began."""
    distance: Array
    """Per stream: how many operations ahead ``ahead`` is; -1: no limit is known."""


def held_calls(trace: Trace, ops: Queues, calls: Queues) -> Held:
    """The calls that met a full launch queue, and the distance of each stream."""
    launch = trace.gpu_ops["launch_row"][ops.row]
    graph_launch = np.append(trace.launches["call"] == Call.GRAPH_LAUNCH, False)
    call = calls.index_of(len(trace.launches))[launch]
    first = np.searchsorted(ops.queue, np.arange(int(ops.queue.max(initial=-1)) + 2))
    distance = np.full(first.size - 1, NO_ROW, np.int64)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for stream, (low, high) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
        if graph_launch[launch[low:high]].any():
            continue
        distance[stream] = DISTANCE
        for tried in range(DISTANCE, DISTANCE + _TRIED):
            behind = np.arange(low + tried, high)
            behind = behind[call[behind] >= 0]
            early = ops.end_ns[behind - tried] > calls.end_ns[call[behind]]
            if early.sum() <= _ALLOWED * behind.size:
                distance[stream] = tried
                found.append((call[behind[~early]], behind[~early] - tried))
                break
        else:
            distance[stream] = NO_ROW
    of_call, ahead = (np.concatenate(column) for column in zip(*found, strict=True))
    return Held(of_call, ahead, ops.end_ns[ahead] > calls.begin_ns[of_call], distance)
