"""Which lanes an address shows, and the address that shows an operation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dashboard.address import ALL, Address, Selected
from diagnose.lanes import Lane, LaneKind, Op, Timeline
from diagnose.wording.numbers import counted

WIDTH = 1200
"""Pixels of the axis until the browser says how many there are."""
MOST_LANES = 40
"""Lanes that are drawn at once."""
_OPEN_AT_FIRST = 4


class Page(NamedTuple):
    """The lanes that are drawn, and what there is above and below them."""

    lanes: tuple[Lane, ...]
    num_above: int
    num_below: int
    above: str | None
    """The first lane of the page above."""
    below: str | None


def window_of(timeline: Timeline, address: Address) -> tuple[int, int]:
    """The stretch of time: what the address says as far as it touches the recording, else all."""
    start, end = timeline.start_ns, timeline.end_ns
    asked = (address.start_ns, address.end_ns)
    if asked[0] is None or asked[1] is None or asked[0] >= end or asked[1] <= start:
        margin = max((end - start) // 100, 1)
        return start - margin, end + margin
    return asked[0], asked[1]


def opened(timeline: Timeline, address: Address) -> frozenset[str]:
    """Keys of what is unfolded: GPUs with their streams, processes with their threads."""
    if address.open is not None and ALL in address.open:
        return frozenset(folders(timeline))
    if address.open is not None:
        return frozenset(address.open)
    gpus = [lane.key for lane in timeline.lanes if lane.kind == LaneKind.STATES]
    return frozenset(gpus if len(gpus) <= _OPEN_AT_FIRST else ())


def outline(timeline: Timeline) -> tuple[Lane, ...]:
    """All lanes, and before the threads of a process with a GPU a lane that folds them."""
    made: list[Lane] = []
    threads = Counter(lane.source for lane in timeline.lanes if lane.kind == LaneKind.THREAD)
    seen: set[int] = set()
    for lane in timeline.lanes:
        if lane.kind == LaneKind.THREAD and lane.parent and lane.source not in seen:
            seen.add(lane.source)
            label = counted(threads[lane.source], "host thread")
            key = threads_key(lane)
            made.append(dataclasses.replace(lane, key=key, thread=None, label=label, num_ops=0))
        made.append(lane)
    return tuple(made)


def folders(timeline: Timeline) -> tuple[str, ...]:
    """The keys of all lanes that fold others, from the top."""
    return tuple(lane.key for lane in outline(timeline) if folds(lane))


def threads_key(lane: Lane) -> str:
    """The key of the lane that folds the threads of a lane's process."""
    return f"t{lane.source}"


def folds_threads(lane: Lane) -> bool:
    """Whether a lane stands for the threads of a process."""
    return lane.kind == LaneKind.THREAD and lane.thread is None


def folds(lane: Lane) -> bool:
    """Whether others are folded into a lane."""
    return lane.kind == LaneKind.STATES or folds_threads(lane)


def visible(timeline: Timeline, unfolded: frozenset[str]) -> tuple[Lane, ...]:
    """GPUs always; what belongs to one only where it is unfolded."""

    def seen(lane: Lane) -> bool:
        if lane.parent is None:
            return True
        if lane.parent not in unfolded:
            return False
        return lane.kind != LaneKind.THREAD or lane.thread is None or threads_key(lane) in unfolded

    return tuple(filter(seen, outline(timeline)))


def page_of(seen: Sequence[Lane], top: str | None) -> Page:
    """The lanes from ``top`` on, at most ``MOST_LANES``; the first ones if ``top`` is not seen."""
    keys = [lane.key for lane in seen]
    first = keys.index(top) if top in keys else 0
    last = min(first + MOST_LANES, len(keys))
    return Page(
        tuple(seen[first:last]),
        first,
        len(keys) - last,
        keys[max(first - MOST_LANES, 0)] if first else None,
        keys[last] if last < len(keys) else None,
    )


def showing(timeline: Timeline, address: Address, op: Op) -> Address:
    """The address with an operation selected, its lane unfolded and its time in sight."""
    where = timeline.locate(op.table, op.row)
    lane = timeline.lane(where.lane)
    before = opened(timeline, address)
    unfolded = before | ({lane.parent} if lane.parent else set())
    if lane.kind == LaneKind.THREAD and lane.parent:
        unfolded |= {threads_key(lane)}
    start, end = window_of(timeline, address)
    if not (start <= where.start_ns and where.end_ns <= end):
        half = max((end - start) // 2, 2 * (where.end_ns - where.start_ns), 1)
        middle = (where.start_ns + where.end_ns) // 2
        address = address.at(middle - half, middle + half)
    if unfolded != before:
        address = address.replace(open=in_order(timeline, unfolded))
    seen = visible(timeline, unfolded)
    if lane.key not in {one.key for one in page_of(seen, address.top).lanes}:
        whole = lane.parent or lane.key
        on_one_page = {one.key for one in page_of(seen, whole).lanes}
        address = address.replace(top=whole if lane.key in on_one_page else lane.key)
    return address.replace(selected=Selected(op.table.label, op.row))


def fitted(timeline: Timeline, address: Address) -> Address:
    """The selection in the middle, half as wide as the window."""
    if address.selected is None:
        return address
    where = timeline.locate(address.selected.table, address.selected.row)
    margin = max((where.end_ns - where.start_ns) // 2, 50)
    return address.at(where.start_ns - margin, where.end_ns + margin)


def in_order(timeline: Timeline, unfolded: Iterable[str]) -> tuple[str, ...]:
    """What is unfolded as an address says it: short if it is all."""
    known, wanted = folders(timeline), frozenset(unfolded)
    return (ALL,) if known and wanted >= set(known) else tuple(k for k in known if k in wanted)


def turned(timeline: Timeline, address: Address, key: str) -> Address:
    """The address after a click on a lane that folds others."""
    return address.replace(open=in_order(timeline, opened(timeline, address) ^ {key}))
