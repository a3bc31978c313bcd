"""From what a person does on the timeline to the address that shows what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard import lanes
from dashboard.address import ALL, Address, Selected
from dashboard.kept import kept
from dashboard.shown import Shown
from diagnose.figures.timeline import MS, duration, operation_of
from diagnose.lanes import Hits, Op, OpTable, Timeline

_SNAP_PIXELS = 6
_FARTHEST_MS = 2.0**40


def after(shown: Shown, address: Address, asked: Mapping[str, Any], width: int) -> Address | None:
    """The address after what the page's script reports as ``{"do": ...}``; None: nothing follows.

    ``move`` (``from`` and ``to``, in milliseconds), ``select`` (``key`` of a bar), ``ruler``
    (``at``: one or two places in milliseconds), ``fit``, ``whole`` and ``escape``.
    """
    done = asked.get("do")
    if done == "move":
        return _moved(address, asked)
    if done == "select":
        found = operation_of(asked.get("key"))
        return None if found is None else address.replace(selected=Selected(*found))
    if done == "ruler":
        return _measured(shown.timeline, address, asked.get("at"), width)
    if done == "fit":
        return lanes.fitted(shown.timeline, address)
    if done == "whole":
        return address.at(None, None)
    if done == "escape":
        # What was done last goes first.
        return address.replace(ruler=()) if address.ruler else address.replace(selected=None)
    return None


def _moved(address: Address, asked: Mapping[str, Any]) -> Address | None:
    low, high = _place(asked.get("from")), _place(asked.get("to"))
    if low is None or high is None:
        return None
    low, high = min(low, high), max(low, high)
    return address.at(low, max(high, low + 1))


def _measured(timeline: Timeline, address: Address, given: object, width: int) -> Address | None:
    places = [_place(one) for one in given] if isinstance(given, list) else []
    known = [_at_an_edge(timeline, address, one, width) for one in places if one is not None]
    if not known or len(known) != len(places):
        return None
    if len(known) == 1 and len(address.ruler) == 1:
        known = [*address.ruler, *known]
    return address.replace(ruler=tuple(sorted(known[:2])))


def _place(value: object) -> int | None:
    """Milliseconds of the axis as nanoseconds; None for what is no place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * MS) if abs(value) < _FARTHEST_MS else None


def _at_an_edge(timeline: Timeline, address: Address, place_ns: int, width: int) -> int:
    """Where an operation in sight begins or ends, if that is near; else the place itself."""
    start, end = lanes.window_of(timeline, address)
    pixel = max((end - start) // max(width, 1), 1)
    page = lanes.page_of(lanes.visible(timeline, lanes.opened(timeline, address)), address.top)
    keys = [lane.key for lane in page.lanes if not lanes.folds_threads(lane)]
    near = _SNAP_PIXELS * pixel
    picture = timeline.picture(
        place_ns - near, place_ns + near, pixels=2 * _SNAP_PIXELS, lanes=keys
    )
    single = picture.row >= 0
    edges = [*picture.shape_start_ns[single].tolist(), *picture.shape_end_ns[single].tolist()]
    close = [edge for edge in edges if abs(edge - place_ns) < near]
    return min(close, key=lambda edge: abs(edge - place_ns), default=place_ns)


def folded(shown: Shown, address: Address, key: str) -> Address:
    """After a click on a lane that folds others."""
    return lanes.turned(shown.timeline, address, key)


def all_unfolded(address: Address) -> Address:
    """With every stream and thread."""
    return address.replace(open=(ALL,))


def all_folded(address: Address) -> Address:
    """With nothing but GPUs and threads of processes without one."""
    return address.replace(open=(), top=None)


def found_next(shown: Shown, address: Address, wanted: str, step: int) -> Address:
    """The hit of a text that is ``step`` places on: 1, -1, or 0 for the first from the window on.

    After the last comes the first, and before the first the last.
    """
    new = wanted != address.find
    address = address.replace(find=wanted)
    hits = kept(shown).hits(wanted)
    if not len(hits):
        return address
    now = None if new else _place_of_selected(hits, address)
    if now is None:
        start, end = lanes.window_of(shown.timeline, address)
        next_one, last = hits.after(start - 1), hits.before(end)
        now = next_one if step >= 0 else last
        place = (0 if step >= 0 else len(hits) - 1) if now is None else now
    else:
        place = (now + step) % len(hits)
    return lanes.showing(shown.timeline, address, hits[place])


def _place_of_selected(hits: Hits, address: Address) -> int | None:
    if address.selected is None:
        return None
    tables = {table.label: table for table in OpTable}
    return hits.place_of(Op(tables[address.selected.table], address.selected.row))


def said_of_search(shown: Shown, address: Address) -> str:
    """Which hit is selected, of how many."""
    if not address.find:
        return ""
    hits = kept(shown).hits(address.find)
    if not len(hits):
        return "nothing found"
    place = _place_of_selected(hits, address)
    number = f"{len(hits):,} {'hit' if len(hits) == 1 else 'hits'}"
    return number if place is None else f"{place + 1:,} of {number}"


def said_of_ruler(address: Address) -> str:
    """What is measured, or what to do next."""
    if not address.ruler:
        return ""
    if len(address.ruler) == 1:
        return "click where to measure to"
    return duration(address.ruler[1] - address.ruler[0])
