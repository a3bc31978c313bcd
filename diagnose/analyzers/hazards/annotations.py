"""Which event is recorded and waited for by which call: from the agent's annotations.

The profiler names neither; ``diagnose.agent.event_annotations`` writes both into the trace, as
ranges right behind the call (in front of it where the host waits).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from diagnose.schema import NO_ROW
from diagnose.trace import Table, Trace

Rows = npt.NDArray[np.int64]


class EventCall(IntEnum):
    """What a call does with an event."""

    RECORDED = 0
    STREAM_WAITS = 1
    HOST_WAITS = 2


_EVENT, _STREAM = r"event (?P<event>[0-9a-f]{1,16})", r"stream (?P<stream>[0-9a-f]{1,16})"
TEXTS = {
    EventCall.RECORDED: rf"diagnose: {_EVENT} recorded on {_STREAM}",
    EventCall.STREAM_WAITS: rf"diagnose: {_STREAM} waits for {_EVENT}",
    EventCall.HOST_WAITS: rf"diagnose: host waits for {_EVENT}",
}
CALLS = {
    EventCall.RECORDED: r"(?:cuda|cu|hip)EventRecord",
    EventCall.STREAM_WAITS: r"(?:cuda|cu|hip)StreamWaitEvent",
    EventCall.HOST_WAITS: r"(?:cuda|cu|hip)EventSynchronize",
}


@dataclass(frozen=True)
class EventCalls:
    """The annotated calls of one source, in no order. Of length (calls,).

    ``event`` and ``stream`` are handles as text, an empty stream is the host. ``call_row``:
    ``NO_ROW`` where the call itself was not recorded; the times are those of the annotation then.
    """

    call_row: Rows
    start_ns: Rows
    end_ns: Rows
    kind: npt.NDArray[np.int8]
    event: tuple[str, ...]
    stream: tuple[str, ...]


def event_calls(trace: Trace, source: int) -> EventCalls:
    """What was annotated in one source."""
    found = [
        (row, start_ns, end_ns, int(kind), event, stream)
        for kind in EventCall
        for row, start_ns, end_ns, event, stream in _annotated(trace, source, kind)
    ]
    rows, starts, ends, kinds, events, streams = zip(*found, strict=True) if found else [()] * 6
    times = np.array(starts, np.int64), np.array(ends, np.int64)
    return EventCalls(np.array(rows, np.int64), *times, np.array(kinds, np.int8), events, streams)


def named(table: Table, column: str, pattern: str) -> npt.NDArray[np.bool_]:
    """Which rows have a text that begins with the pattern."""
    test = re.compile(pattern)
    hit = table.strings.where(lambda text: test.match(text) is not None)
    found: npt.NDArray[np.bool_] = np.append(hit, False)[table[column]]
    return found


def _annotated(
    trace: Trace, source: int, kind: EventCall
) -> Iterator[tuple[int, int, int, str, str]]:
    """Row of ``launches``, its times, event and stream of each annotation."""
    hosts, calls = trace.host_ops, trace.launches
    notes = np.flatnonzero((hosts["source"] == source) & named(hosts, "name", TEXTS[kind] + "$"))
    own = np.flatnonzero((calls["source"] == source) & named(calls, "name", CALLS[kind]))
    behind = kind != EventCall.HOST_WAITS
    texts = {
        code: re.fullmatch(TEXTS[kind], hosts.strings[code])
        for code in np.unique(hosts["name"][notes]).tolist()
    }
    for thread in np.unique(hosts["thread"][notes]).tolist():
        mine = notes[hosts["thread"][notes] == thread]
        begun = hosts["start_ns"][mine]
        mine, begun = (part[np.argsort(begun, kind="stable")] for part in (mine, begun))
        of_thread = own[calls["thread"][own] == thread]
        place = np.searchsorted(calls["start_ns"][of_thread], begun) - behind
        # Of several annotations for one call the nearest is its own.
        taken = np.ones(len(place), bool)
        twice = place[1:] == place[:-1]
        taken[1 if behind else 0 : len(place) if behind else -1] = ~twice
        taken &= (place >= 0) & (place < len(of_thread))
        for note, at, has_call in zip(mine.tolist(), place.tolist(), taken.tolist(), strict=True):
            row = int(of_thread[at]) if has_call else NO_ROW
            match = texts[int(hosts["name"][note])]
            if match is None:  # a line break at its end
                continue
            spoken = match.groupdict()
            table, at_row = (calls, row) if has_call else (hosts, note)
            start_ns, end_ns = int(table["start_ns"][at_row]), int(table["end_ns"][at_row])
            yield row, start_ns, end_ns, spoken["event"], spoken.get("stream") or ""
