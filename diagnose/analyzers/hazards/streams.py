"""Streams as lanes of an order, and which stream a handle of the annotations is.

That a stream waits is in ``syncs`` with its device and number, so each handle that ever waited is
known; the agent lets each stream wait once. Where that is missing, a handle may be any
stream which no other handle is; what is ordered then is ordered on all of them. The handle of a
default stream is the number of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.analyzers.hazards.annotations import EventCall, EventCalls
from diagnose.trace import Trace

Place = tuple[int, int]
"""Device and number of a stream."""


@dataclass(frozen=True)
class Lanes:
    """Lanes of one source; 0 is the host. ``count``: of all of them."""

    count: int
    _places: Mapping[Place, int]
    _handles: Mapping[str, tuple[int, ...]]
    _calls: Mapping[int, int]

    def of_stream(self, place: Place) -> int:
        """The lane of a stream that the trace numbers."""
        return self._places[place]

    def of_device(self, device: int | None) -> tuple[int, ...]:
        """All lanes of one device; None: of all, as it is not known which."""
        return tuple(
            lane for place, lane in self._places.items() if device is None or place[0] == device
        ) + tuple(range(len(self._places) + 1, self.count))

    def of_handle(self, handle: str) -> tuple[int, ...]:
        """The lanes that a handle may be."""
        return self._handles[handle]

    def of_wait(self, call_row: int, handle: str) -> tuple[int, ...]:
        """The lane that waits by a call; those that may be if the trace does not tell."""
        lane = self._calls.get(call_row)
        return self._handles[handle] if lane is None else (lane,)


def lanes_of(trace: Trace, source: int, calls: EventCalls) -> Lanes:
    """The lanes of one source: its streams, and handles of which the stream is unknown."""
    ops = trace.gpu_ops
    own = (ops["source"] == source) & ops.known("stream")
    waits = waiting_streams(trace, source)
    keys = {*zip(ops["device"][own].tolist(), ops["stream"][own].tolist(), strict=True)}
    places = {place: lane for lane, place in enumerate(sorted(keys | {*waits.values()}), 1)}
    correlations = trace.launches["correlation"]
    by_call: dict[int, int] = {}
    of_handle: dict[str, set[int]] = {}
    for row, kind, handle in zip(
        calls.call_row.tolist(), calls.kind.tolist(), calls.stream, strict=True
    ):
        place = waits.get(int(correlations[row])) if row >= 0 else None
        if kind == EventCall.STREAM_WAITS and place is not None:
            by_call[row] = places[place]
            of_handle.setdefault(handle, set()).add(places[place])
    unclear = set(places.values()).difference(*of_handle.values())
    count = len(places) + 1
    handles: dict[str, tuple[int, ...]] = {}
    for handle in dict.fromkeys(calls.stream):
        known = of_handle.get(handle, set())
        if known:
            handles[handle] = tuple(sorted(known))
        elif handle:
            # Perhaps one without any operation, that only hands on what it waits for.
            handles[handle] = (*sorted(unclear), count)
            count += 1
    return Lanes(count, places, handles, by_call)


def waiting_streams(trace: Trace, source: int) -> dict[int, Place]:
    """Correlation of a call -> the stream that waits by it, or that the host waits for."""
    syncs = trace.syncs
    own = syncs.take(
        (syncs["source"] == source) & syncs.known("stream") & (syncs["correlation"] > 0)
    )
    columns = (own[name].tolist() for name in ("correlation", "device", "stream"))
    return {c: (d, s) for c, d, s in zip(*columns, strict=True)}


def waiting_devices(trace: Trace, source: int) -> dict[int, int]:
    """Correlation of a call -> the device of a stream, event or all of it that is waited for."""
    syncs = trace.syncs
    own = np.flatnonzero((syncs["source"] == source) & (syncs["correlation"] > 0))
    columns = (syncs[name][own].tolist() for name in ("correlation", "device"))
    return dict(zip(*columns, strict=True))
