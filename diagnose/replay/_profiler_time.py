"""Time that the profiler took from host threads in one piece, as far as a recording shows it.

CUPTI records what it does with its buffers as spans of category ``overhead`` that name
no thread. A span belongs to the call that encloses it; else to the thread whose last event
before it is the nearest, of those on which nothing began meanwhile. "Command Buffer
Full" is not the profiler's: it is the launch queue (``_launch_queue``).

A CUDA graph whose nodes are recorded one by one is launched one by one: the call then lasts
about as long as the graph runs (11.7 of 11.9 ms for 978 nodes on an H200). Unwatched it returns
after some microseconds.
"""

from __future__ import annotations

import numpy as np

from diagnose.replay._host_work import HostEvents, threads_of
from diagnose.replay._launch_queue import QUEUE_FULL
from diagnose.replay._recorded import Queues
from diagnose.replay.model import Array
from diagnose.schema import NO_ROW, Call
from diagnose.trace import Trace

GRAPH_LAUNCH_NS = 5_000
GRAPH_NODE_NS = 200
"""What a graph launch takes the host at most, and for each node. NVIDIA's "Constant Time Launch
for Straight-Line CUDA Graphs" has about 2 us and 0.06 to 0.2 us a node before CUDA 12.6, 2.5 us
and about 1 ns a node since."""


def profiler_time(trace: Trace, calls: Queues, events: HostEvents) -> Array:
    """For each call: what the profiler took from the work before it and from itself, in ns."""
    taken = _of_graph_launches(trace, calls)
    spans = _spans(trace)
    if not spans.size or not calls.row.size:
        return taken
    ops, launches = trace.host_ops, trace.launches
    number, keys = threads_of(trace)
    source_of = keys // (len(trace.strings) + 1)
    ends = launches["end_ns"][calls.row]
    for row in spans.tolist():
        start, end = int(ops["start_ns"][row]), int(ops["end_ns"][row])
        source = int(ops["source"][row])
        around = np.flatnonzero(
            (launches["source"] == source)
            & (launches["start_ns"] <= start)
            & (launches["end_ns"] >= end)
        )
        threads = np.flatnonzero(source_of == source)
        thread = int(number[around[-1]]) if around.size else _silent(events, threads, start, end)
        mine = np.flatnonzero(calls.queue == thread)
        after = mine[ends[mine] >= end][:1]
        taken[after] += end - start
    return taken


def _of_graph_launches(trace: Trace, calls: Queues) -> Array:
    """What launches of CUDA graphs lasted longer than they may without a profiler."""
    launch = trace.gpu_ops["launch_row"]
    nodes = np.bincount(launch[launch >= 0], minlength=len(trace.launches))[calls.row]
    is_graph = trace.launches["call"][calls.row] == Call.GRAPH_LAUNCH
    length = calls.end_ns - calls.begin_ns
    unwatched = GRAPH_LAUNCH_NS + GRAPH_NODE_NS * nodes
    return np.where(is_graph, np.maximum(length - unwatched, 0), 0)


def _spans(trace: Trace) -> Array:
    """Rows of ``host_ops`` by which the profiler says what it did for itself."""
    ops = trace.host_ops
    if not len(ops):
        return np.empty(0, np.int64)
    overhead = trace.strings.where(lambda text: text == "overhead")[ops["category"]]
    full = trace.strings.where(lambda text: text == QUEUE_FULL)[ops["name"]]
    return np.flatnonzero(overhead & ~full)


def _silent(events: HostEvents, threads: Array, start: int, end: int) -> int:
    """The thread that last began something before a span and nothing in it; NO_ROW: none."""
    best, latest = NO_ROW, -1
    for thread in threads.tolist():
        began = events.start_ns[events.begins[thread] : events.begins[thread + 1]]
        at = int(np.searchsorted(began, start, side="right"))
        silent = at == began.size or began[at] >= end
        if silent and at and began[at - 1] > latest:
            best, latest = thread, int(began[at - 1])
    return best
