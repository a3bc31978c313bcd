"""Recorded waits of streams for events, and what each made an operation wait for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.schema import NULL
from diagnose.trace import Gpu, Table

Array = npt.NDArray[np.int64]
_WAIT_CALL = "StreamWaitEvent"


class Waits(NamedTuple):
    """Waits of one GPU's streams: with their call, and spans whose call was not recorded."""

    stream: Array
    """That waits; ``NULL``: unknown, so any. Aligned with ``event_stream``, ``at``, ``told_at``."""
    event_stream: Array
    """Of the event; ``NULL``: unknown, so any."""
    at: Array
    """When the host asked for it."""
    told_at: Array
    """When the host recorded the event; ``NULL``: unknown."""
    span_stream: Array
    span_start: Array
    span_end: Array

    def __bool__(self) -> bool:
        return bool(self.at.size or self.span_stream.size)


class Lanes:
    """The operations of each stream, in order of launch."""

    def __init__(self, ops: Table, launched: Array) -> None:
        self.rows: dict[int, Array] = {}
        self.launched: dict[int, Array] = {}
        self.ends: dict[int, Array] = {}
        """Latest end so far."""
        for stream in np.unique(ops["stream"]).tolist():
            mine = np.flatnonzero(ops["stream"] == stream)
            self.rows[stream] = mine
            self.launched[stream] = launched[mine]
            self.ends[stream] = np.maximum.accumulate(ops["end_ns"][mine])


def waits_on(facts: Facts, gpu: Gpu) -> Waits:
    """The waits of a GPU's streams.

    Where the profiler recorded no waits, the calls alone: of an unknown stream, so of any.
    """
    trace = facts.trace
    syncs = trace.syncs.take(
        (trace.syncs["source"] == gpu.source) & (trace.syncs["device"] == gpu.device)
    )
    is_wait = np.append(syncs.strings.where(lambda s: s.lower().startswith("stream wait")), False)
    syncs = syncs.take(is_wait[syncs["sync_kind"]] & syncs.known("stream"))
    calls = trace.launches.take(trace.launches["source"] == gpu.source)
    none = np.empty(0, np.int64)
    if not len(syncs):
        named = np.append(calls.strings.where(lambda s: _WAIT_CALL in s), False)
        at = calls["start_ns"][named[calls["name"]]]
        unknown = np.full(at.size, NULL, np.int64)
        return Waits(unknown, unknown, at, unknown, none, none, none)
    at = _called(calls, syncs["correlation"])
    told = _called(calls, syncs["event_correlation"])
    has = at != NULL
    stream, begin, over = (syncs[name][~has] for name in ("stream", "start_ns", "end_ns"))
    known = (syncs["stream"][has], syncs["event_stream"][has], at[has], told[has])
    return Waits(*known, stream, begin, over)


def _called(calls: Table, correlation: Array) -> Array:
    """Start of the call of each correlation; ``NULL``: none."""
    if not len(calls):
        return np.full(correlation.shape, NULL, np.int64)
    order = np.argsort(calls["correlation"], kind="stable")
    numbers = calls["correlation"][order]
    place = np.minimum(np.searchsorted(numbers, correlation), numbers.size - 1)
    hit = (numbers[place] == correlation) & (correlation != NULL)
    found: Array = np.where(hit, calls["start_ns"][order[place]], NULL)
    return found


def waited_for(waits: Waits, ops: Table, lanes: Lanes, own: Array) -> Array:
    """End of what recorded waits made each operation wait for; ``NULL``: of nothing.

    A wait covers what was launched before the event was recorded, or, where that is not known,
    before the wait was asked for; what had not ended when the operation began it cannot cover.
    """
    ready = np.full(len(ops), NULL, np.int64)
    start = ops["start_ns"]
    pairs = np.unique(np.stack([waits.stream, waits.event_stream], 1), axis=0)
    for waiting, event_stream in pairs.tolist():
        mine = (waits.stream == waiting) & (waits.event_stream == event_stream)
        at, told = waits.at[mine], waits.told_at[mine]
        until = np.where(told == NULL, at, told)
        for on in lanes.rows if waiting == NULL else {waiting} & lanes.rows.keys():
            first = np.searchsorted(lanes.launched[on], at)
            exists = first < lanes.rows[on].size
            op = lanes.rows[on][first[exists]]
            for other in lanes.rows if event_stream == NULL else {event_stream} & lanes.rows.keys():
                if other == on:
                    continue
                before, ends = lanes.launched[other], lanes.ends[other]
                covered = np.minimum(
                    np.searchsorted(before, until[exists]),
                    np.searchsorted(ends, start[op], side="right"),
                )
                some = covered > 0
                np.maximum.at(ready, op[some], ends[covered[some] - 1])
    return np.maximum(ready, _spans_over(waits, ops, own))


def _spans_over(waits: Waits, ops: Table, own: Array) -> Array:
    """Latest end of the spans that had begun when an operation began, if after its predecessor."""
    ready = np.full(len(ops), NULL, np.int64)
    for stream in np.unique(waits.span_stream).tolist():
        mine = waits.span_stream == stream
        order = np.argsort(waits.span_start[mine], kind="stable")
        begin = waits.span_start[mine][order]
        over = np.maximum.accumulate(waits.span_end[mine][order])
        to = np.flatnonzero(ops["stream"] == stream)
        count = np.searchsorted(begin, ops["start_ns"][to])
        to, count = to[count > 0], count[count > 0]
        latest = over[count - 1]
        after = latest > own[to]
        ready[to[after]] = latest[after]
    return ready
