"""Pairs of accesses of the same memory that nothing orders.

Accesses of one storage are gone through in the order in which the host asked for them. On each
other lane the latest conflicting access is looked at: once one there is ordered before, all
earlier ones of that lane are. One missing wait gives one pair: the later access is the first on
its lane that should have waited.

Which is the latest is kept for each stretch of bytes between two borders of any access. A strided
view touches for certain its first and its last byte only; a conflict that is certain goes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.hazards.latest import NOBODY, Latest
from diagnose.analyzers.hazards.order import Order
from diagnose.analyzers.hazards.touches import Rows, Touches


class Pair(NamedTuple):
    """Two touches with no path between them.

    ``certain``: both touch the same byte for certain, and no part of one is ordered with a part of
    the other.
    """

    first: int
    second: int
    certain: bool


def unordered(touches: Touches, order: Order) -> Iterator[Pair]:
    """The pairs among accesses of any storages, each missing wait once."""
    storage = touches.storage
    borders = np.flatnonzero(np.append(True, storage[1:] != storage[:-1])[: len(storage)])
    lane = np.array(order.lane, np.int64)[touches.first]
    ends = np.append(borders[1:], len(storage))[: len(borders)]
    for begin, end in zip(borders.tolist(), ends.tolist(), strict=True):
        own = slice(begin, end)
        lanes = np.unique(lane[own])
        if len(lanes) > 1 and touches.writes[own].any():
            yield from _Storage(touches, order, begin, end, lanes).pairs()


class _Storage:
    """The touches ``begin`` to ``end``, all of one storage."""

    def __init__(self, touches: Touches, order: Order, begin: int, end: int, lanes: Rows) -> None:
        self.touches, self.order, self.begin = touches, order, begin
        own = slice(begin, end)
        first, behind = touches.begin[own], touches.end[own]
        loose = ~touches.dense[own]
        ends = first[loose] + 1, behind[loose] - 1
        borders = np.unique(np.concatenate([first, behind, *ends]))
        at = np.stack([np.searchsorted(borders, part) for part in (first, behind - 1, behind)])
        self.stretch: list[tuple[int, int, int]] = [(a, b, c) for a, b, c in at.T.tolist()]
        self.lane: list[int] = [order.lane[node] for node in touches.first[own].tolist()]
        self.row = {lane: row for row, lane in enumerate(lanes.tolist())}
        # The latest touch, by lane and stretch: any or a write, of the whole range or certain.
        self.latest = {
            (only_writes, certain): Latest(len(lanes), max(len(borders) - 1, 1))
            for only_writes in (False, True)
            for certain in (False, True)
        }
        self.told: set[tuple[int, int]] = set()

    def pairs(self) -> Iterator[Pair]:
        rows = self.touches.host_op_row[self.begin : self.begin + len(self.lane)].tolist()
        waiting: list[int] = []
        for place, row in enumerate(rows):
            # An operator has no hazard with itself.
            if waiting and rows[waiting[-1]] != row:
                self._enter(waiting)
                waiting = []
            yield from self._of(place, rows)
            waiting.append(place)

    def _of(self, place: int, rows: list[int]) -> Iterator[Pair]:
        lane = self.lane[place]
        certain = self._latest(place, certain=True)
        possible = self._latest(place, certain=False)
        for other, row in self.row.items():
            if other == lane:
                continue
            found = certain[row] if self._apart(certain[row], place) else possible[row]
            if not self._apart(found, place) or (found, lane) in self.told:
                continue
            if rows[found] == rows[place]:
                continue
            self.told.add((found, lane))
            sure = found == certain[row] and self._wholly_apart(found, place)
            yield Pair(self.begin + found, self.begin + place, sure)

    def _latest(self, place: int, *, certain: bool) -> list[int]:
        """On each lane the latest touch that conflicts."""
        held = self.latest[not bool(self.touches.writes[self.begin + place]), certain]
        low, last, high = self.stretch[place]
        if certain and not self.touches.dense[self.begin + place]:
            ends = held.last(low, low + 1), held.last(last, last + 1)
            return [max(pair) for pair in zip(*ends, strict=True)]
        return held.last(low, high)

    def _enter(self, places: list[int]) -> None:
        for place in places:
            row, (low, last, high) = self.row[self.lane[place]], self.stretch[place]
            touch = self.begin + place
            for only_writes in (False, True):
                if only_writes and not self.touches.writes[touch]:
                    continue
                self.latest[only_writes, False].take(row, low, high, place)
                held = self.latest[only_writes, True]
                if self.touches.dense[touch]:
                    held.take(row, low, high, place)
                else:
                    held.take(row, low, low + 1, place)
                    held.take(row, last, last + 1, place)

    def _apart(self, found: int, place: int) -> bool:
        """Whether the one is not over before the other begins."""
        if found == NOBODY:
            return False
        touches, begin = self.touches, self.begin
        first, second = int(touches.last[begin + found]), int(touches.first[begin + place])
        return not self.order.before(first, second)

    def _wholly_apart(self, found: int, place: int) -> bool:
        """Whether that is so of each part of them, whichever it is that uses the memory."""
        one, other, before = self.begin + found, self.begin + place, self.order.before
        touches = self.touches
        parted = not before(int(touches.first[one]), int(touches.last[other]))
        parted = parted and not before(int(touches.first[other]), int(touches.last[one]))
        return parted and not bool(touches.split[one] or touches.split[other])
