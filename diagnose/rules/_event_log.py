"""Which event was recorded on which stream and who waited for it, as annotated in the trace.

The notes stand right behind the call into the GPU runtime (``diagnose.agent.event_annotations``).
A wait for an event is a wait for all that its stream was given before the event was recorded, so
a later record of the same stream covers an earlier one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards.annotations import TEXTS, EventCall
from diagnose.rules._facts import Facts
from diagnose.rules._rule import Clean, NotJudged
from diagnose.rules._words import who
from diagnose.trace import Gpu, Trace

Array = npt.NDArray[np.int64]
UNRECORDED = NotJudged(
    "which memory operators use and which events streams wait for was not recorded",
    "record with `diagnose attach --check-sync`",
)
NEVER = int(np.iinfo(np.int64).max)
_PREFIX = "diagnose: "
_OTHER, _RECORDED, _WAITED = 0, 1, 2


def clean_as_recorded(trace: Trace, because: str, unrecorded: Sequence[Gpu]) -> Clean:
    """Nothing was found; told in the report where some GPUs could not be looked at."""
    if not unrecorded:
        return Clean(because)
    who_not = who(trace, tuple(unrecorded))
    return Clean(f"{because}, as far as was recorded: not seen is {who_not}.", told=True)


class EventLog(NamedTuple):
    """The records of one process and, of each, when the first wait covered it; by host time."""

    thread: Array
    at: Array
    """When the host recorded the event, in ns on the clock of the source."""
    stream: Array
    """Handle of the stream that it was recorded on."""
    waited_at: Array
    """When another stream or the host first asked to wait for it, directly or for a later record
    of its stream; ``NEVER``: not in the window."""

    def __bool__(self) -> bool:
        return bool(self.at.size)


def event_log(facts: Facts, source: int) -> EventLog:
    """What is annotated in one process; empty where nothing is."""
    ops = facts.trace.host_ops
    hit = facts.trace.strings.where(lambda text: text.startswith(_PREFIX))
    rows = np.flatnonzero((ops["source"] == source) & np.append(hit, False)[ops["name"]])
    rows = rows[np.argsort(ops["start_ns"][rows], kind="stable")]
    codes, which = np.unique(ops["name"][rows], return_inverse=True)
    handles: dict[str, int] = {}
    read = [_read(facts.trace.strings[code], handles) for code in codes.tolist()]
    kind, event, stream = np.array(read, np.int64).reshape(-1, 3)[which.reshape(-1)].T
    at, thread = ops["start_ns"][rows], ops["thread"][rows].astype(np.int64)
    records = np.flatnonzero(kind == _RECORDED)
    waits = np.flatnonzero(kind == _WAITED)
    meant = _meant(records, event, waits)
    waits, meant = waits[meant >= 0], meant[meant >= 0]
    # A stream that waits for its own event waits for nothing new.
    real = stream[waits] != stream[meant]
    waits, meant = waits[real], meant[real]
    covered = np.full(rows.size, NEVER, np.int64)
    np.minimum.at(covered, meant, at[waits])
    for one in np.unique(stream[records]).tolist():
        own = records[stream[records] == one]
        covered[own] = np.minimum.accumulate(covered[own][::-1])[::-1]
    return EventLog(thread[records], at[records], stream[records], covered[records])


def _read(text: str, handles: dict[str, int]) -> tuple[int, int, int]:
    """What a note says; handles, which need not fit a number, as codes. The host's is ""."""
    for kind, pattern in TEXTS.items():
        if found := re.fullmatch(pattern, text):
            event, stream = (found.groupdict().get(what) or "" for what in ("event", "stream"))
            codes = [handles.setdefault(handle, len(handles)) for handle in (event, stream)]
            return _RECORDED if kind == EventCall.RECORDED else _WAITED, codes[0], codes[1]
    return _OTHER, -1, -1


def _meant(records: Array, event: Array, waits: Array) -> Array:
    """For each wait the last record of its event before it; -1: before the window."""
    found = np.full(waits.size, -1, np.int64)
    order = np.argsort(event[records], kind="stable")
    by_event, events = records[order], event[records][order]
    first = np.searchsorted(events, event[waits])
    last = np.searchsorted(events, event[waits], side="right")
    for place, (low, high, wait) in enumerate(
        zip(first.tolist(), last.tolist(), waits.tolist(), strict=True)
    ):
        before = low + int(np.searchsorted(by_event[low:high], wait)) - 1
        if before >= low:
            found[place] = by_event[before]
    return found
