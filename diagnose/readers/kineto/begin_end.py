"""Begin and end events to pairs, per thread and by time.

The Chrome trace format allows a duration as two events, ``B`` and ``E``, in any
order in the file. Pairs of one thread nest. At one instant an end belongs to
what began earlier, so that two kernels that touch are two kernels and not one
inside the other; only an end that finds nothing open closes what begins at that
very instant.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple


class _Begin(NamedTuple):
    order: int
    name: str
    group: str


class Match(NamedTuple):
    """``ends[group]``: the begin's order -> end; ``open_rows[group]``: orders that never end."""

    ends: dict[str, dict[int, int]]
    open_rows: dict[str, list[int]]
    num_unmatched_begins: int
    num_unmatched_ends: int


class Pairs:
    """Collects begins and ends; ``match`` pairs them."""

    def __init__(self) -> None:
        self.num_unmatched_ends = 0
        self._begins: dict[int, list[tuple[int, _Begin]]] = {}
        self._ends: dict[int, list[tuple[int, int, str]]] = {}

    def __bool__(self) -> bool:
        return bool(self._begins or self._ends or self.num_unmatched_ends)

    def begin(self, thread: int, time: int, order: int, name: str, group: str) -> None:
        """Event number ``order`` of ``group`` begins at ``time`` (ns); group "" if not kept."""
        self._begins.setdefault(thread, []).append((time, _Begin(order, name, group)))

    def end(self, thread: int, time: int, order: int, name: str) -> None:
        self._ends.setdefault(thread, []).append((time, order, name))

    def match(self) -> Match:
        """Pair all that was collected."""
        result = Match({}, {}, 0, 0)
        num_begins, num_ends = 0, self.num_unmatched_ends
        for thread in {**self._begins, **self._ends}:
            begins, ends = self._match_thread(thread, result)
            num_begins += begins
            num_ends += ends
        return result._replace(num_unmatched_begins=num_begins, num_unmatched_ends=num_ends)

    def _match_thread(self, thread: int, result: Match) -> tuple[int, int]:
        marks: list[tuple[int, int, _Begin | None, str]] = [
            (time, one.order, one, one.name) for time, one in self._begins.get(thread, ())
        ]
        marks += [(time, order, None, name) for time, order, name in self._ends.get(thread, ())]
        marks.sort(key=lambda mark: mark[:2])
        open_now: list[_Begin] = []
        unmatched_ends = 0
        for time, at_once in groupby(marks, key=lambda mark: mark[0]):
            instant = list(at_once)
            starting = [mark[2] for mark in instant if mark[2] is not None]
            for name in [mark[3] for mark in instant if mark[2] is None]:
                one = _partner(open_now, starting, name)
                if one is None:
                    unmatched_ends += 1
                elif one.group:
                    result.ends.setdefault(one.group, {})[one.order] = time
            open_now.extend(starting)
        for one in open_now:
            if one.group:
                result.open_rows.setdefault(one.group, []).append(one.order)
        return len(open_now), unmatched_ends


def _partner(open_now: list[_Begin], starting: list[_Begin], name: str) -> _Begin | None:
    """Take what an end closes; an end that bears a name closes what bears it, if that is open."""
    if name:
        for candidates in (open_now, starting):
            if candidates and candidates[-1].name == name:
                return candidates.pop()
    for candidates in (open_now, starting):
        if candidates:
            return candidates.pop()
    return None
