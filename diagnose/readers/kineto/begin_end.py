"""Begin and end events to pairs, per thread and by time.

The Chrome trace format allows a duration as two events, ``B`` and ``E``, in any
order in the file. Pairs of one thread nest; an end that bears a name closes the
latest begin of that name, also where that crosses another pair. At one instant an end belongs to
what began earlier, so that two kernels that touch are two kernels and not one
inside the other; only an end that finds nothing open closes what begins at that
very instant.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    num_crossed: int
    """Ends that named a begin other than the latest one."""


class Pairs:
    """Collects begins and ends; ``match`` pairs them."""

    def __init__(self) -> None:
        self.num_unmatched_ends = 0
        self._num_crossed = 0
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
        result = Match({}, {}, 0, 0, 0)
        num_begins, num_ends = 0, self.num_unmatched_ends
        for thread in {**self._begins, **self._ends}:
            begins, ends = self._match_thread(thread, result)
            num_begins += begins
            num_ends += ends
        return result._replace(
            num_unmatched_begins=num_begins,
            num_unmatched_ends=num_ends,
            num_crossed=self._num_crossed,
        )

    def _match_thread(self, thread: int, result: Match) -> tuple[int, int]:
        marks: list[tuple[int, int, _Begin | None, str]] = [
            (time, one.order, one, one.name) for time, one in self._begins.get(thread, ())
        ]
        marks += [(time, order, None, name) for time, order, name in self._ends.get(thread, ())]
        marks.sort(key=lambda mark: mark[:2])
        open_now = _Open()
        unmatched_ends = 0
        for time, at_once in groupby(marks, key=lambda mark: mark[0]):
            instant = list(at_once)
            starting = _Open([mark[2] for mark in instant if mark[2] is not None])
            for name in [mark[3] for mark in instant if mark[2] is None]:
                one = open_now.close(name) or starting.close(name)
                if one is None:
                    unmatched_ends += 1
                elif one.group:
                    result.ends.setdefault(one.group, {})[one.order] = time
            open_now.extend(starting.left())
            self._num_crossed += starting.num_crossed
        self._num_crossed += open_now.num_crossed
        left = open_now.left()
        for one in left:
            if one.group:
                result.open_rows.setdefault(one.group, []).append(one.order)
        return len(left), unmatched_ends


class _Open:
    """What began and did not end yet, of one thread."""

    def __init__(self, begins: Iterable[_Begin] = ()) -> None:
        self.num_crossed = 0
        self._stack: list[_Begin] = []
        self._by_name: dict[str, list[_Begin]] = {}
        self._closed: set[int] = set()
        self.extend(begins)

    def extend(self, begins: Iterable[_Begin]) -> None:
        for one in begins:
            self._stack.append(one)
            self._by_name.setdefault(one.name, []).append(one)

    def close(self, name: str) -> _Begin | None:
        """What an end closes: the latest that bears its name; without a name, the latest."""
        self._forget_closed(self._stack)
        stack = self._by_name.get(name, []) if name else self._stack
        self._forget_closed(stack)
        if not stack:
            return None
        one = stack[-1]
        self.num_crossed += one is not self._stack[-1]
        self._closed.add(one.order)
        return one

    def left(self) -> list[_Begin]:
        return [one for one in self._stack if one.order not in self._closed]

    def _forget_closed(self, stack: list[_Begin]) -> None:
        while stack and stack[-1].order in self._closed:
            stack.pop()
