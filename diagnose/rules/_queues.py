"""When each GPU operation could have begun, and how long it was held after that.

An operation can begin when it is launched, the one before it on its stream has ended, and what a
recorded stream wait covers has ended. A wait covers work launched before it; work that had not
ended when the operation began cannot have been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.schema import NULL, Call
from diagnose.trace import Gpu, Table

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Waits: TypeAlias = "tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]"
_NEVER = NULL
_WAIT_CALL = "StreamWaitEvent"


@dataclass(frozen=True)
class Queued:
    """The operations of one GPU whose launch is known, in order of launch. Arrays align."""

    ops: Table
    launched_ns: Array
    """Begin of the call that launched it."""
    own_ns: Array
    """End of the operation before it on its stream; the smallest int64 where there is none."""
    ready_ns: Array
    """When nothing known held it any more; at most its start."""
    in_steps: Mask
    """Whether it belongs to the steps that figures are means over."""
    waits_recorded: bool
    """Whether any wait of a stream was: without, data may order what nothing recorded does."""

    @property
    def held_ns(self) -> Array:
        """From ready to start: nothing that was recorded explains this time."""
        held: Array = self.ops["start_ns"] - self.ready_ns
        return held


def queued_on(facts: Facts, gpu: Gpu) -> Queued:
    """The operations of a GPU launched one by one; those of CUDA graphs are left out."""
    trace = facts.trace
    ops = trace.gpu_ops.take(trace.on(gpu))
    row = ops["launch_row"]
    single = ops.known("launch_row") & ops.known("stream")
    single &= trace.launches["call"][np.where(row >= 0, row, 0)] != Call.GRAPH_LAUNCH
    ops = ops.take(single)
    call = ops["launch_row"]
    order = np.lexsort((ops["start_ns"], trace.launches["start_ns"][call]))
    ops = ops.take(order)
    launched = trace.launches["start_ns"][ops["launch_row"]]
    returned = trace.launches["end_ns"][ops["launch_row"]]
    own = _before_on_stream(ops)
    start = ops["start_ns"]
    ready = np.maximum(own, np.minimum(returned, start))
    waits = _waits(facts, gpu)
    ready = np.maximum(ready, _waited_for(waits, ops, launched, own))
    steps = np.isin(ops["op_id"], facts.operations_per_step(gpu)["op_id"])
    return Queued(ops, launched, own, np.minimum(ready, start), steps, any(waits))


def _before_on_stream(ops: Table) -> Array:
    """End of the operation before each on its stream."""
    own = np.full(len(ops), _NEVER, np.int64)
    for stream in np.unique(ops["stream"]).tolist():
        mine = np.flatnonzero(ops["stream"] == stream)
        own[mine[1:]] = np.maximum.accumulate(ops["end_ns"][mine])[:-1]
    return own


def _waited_for(recorded: Waits, ops: Table, launched: Array, own: Array) -> Array:
    """End of what recorded waits made each operation wait for."""
    ready = np.full(len(ops), _NEVER, np.int64)
    waits, spans = recorded
    start, stream = ops["start_ns"], ops["stream"]
    lanes = {one: _lane(ops, launched, one) for one in np.unique(stream).tolist()}
    for waiting, event_stream, at in waits:
        for on in lanes if waiting == NULL else {waiting} & lanes.keys():
            mine, times, _ = lanes[on]
            first = int(np.searchsorted(times, at))
            if first == mine.size:
                continue
            op = int(mine[first])
            for other in lanes if event_stream == NULL else {event_stream} & lanes.keys():
                _, before, ends = lanes[other]
                covered = min(
                    np.searchsorted(before, at), np.searchsorted(ends, start[op], side="right")
                )
                if other != on and covered:
                    ready[op] = max(ready[op], int(ends[covered - 1]))
    for waiting, begin, over in spans:
        to = np.flatnonzero((stream == waiting) & (begin < start) & (over > own))
        ready[to] = np.maximum(ready[to], over)
    return ready


def _lane(ops: Table, launched: Array, stream: int) -> tuple[Array, Array, Array]:
    """Of one stream, in order of launch: rows, when launched, latest end so far."""
    mine = np.flatnonzero(ops["stream"] == stream)
    return mine, launched[mine], np.maximum.accumulate(ops["end_ns"][mine])


def _waits(facts: Facts, gpu: Gpu) -> Waits:
    """Waits with their call (waiting stream, stream of the event, call), and spans without.

    Where the profiler recorded no waits, the calls alone: of an unknown stream, so of any.
    """
    trace = facts.trace
    syncs = trace.syncs.take(
        (trace.syncs["source"] == gpu.source) & (trace.syncs["device"] == gpu.device)
    )
    kinds = np.array(
        [(kind or "").lower().startswith("stream wait") for kind in syncs.texts("sync_kind")]
    )
    syncs = syncs.take(kinds.astype(bool) & syncs.known("stream"))
    calls = trace.launches.take(trace.launches["source"] == gpu.source)
    if not len(syncs):
        names = [_WAIT_CALL in (name or "") for name in calls.texts("name")]
        times = calls["start_ns"][np.array(names, bool)]
        return [(NULL, NULL, at) for at in times.tolist()], []
    at_call = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist(), strict=True))
    columns = ("stream", "event_stream", "correlation", "start_ns", "end_ns")
    waits, spans = [], []
    for waiting, of, correlation, begin, over in zip(
        *(syncs[name].tolist() for name in columns), strict=True
    ):
        called = None if correlation == NULL else at_call.get(correlation)
        if called is None:
            spans.append((waiting, begin, over))
        else:
            waits.append((waiting, of, called))
    return waits, spans
