"""What the timeline page asks again and again of a recording, made once: steps, hits, details."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from dashboard.address import Selected
from dashboard.shown import Shown
from diagnose.lanes import Hits, Op, OpTable, StepMark
from diagnose.lanes.details import Details, details_of
from diagnose.readers import arguments
from diagnose.readers.arguments import Recorded
from diagnose.schema import NULL

MOST_STEPS = 400
"""Step marks in a picture; of more, some are left out."""
_MOST_ANSWERS = 64
_Answer = TypeVar("_Answer")


class Kept:
    """Answers about one recording; the newest ones of each kind are kept."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._lock = threading.RLock()
        self._answers: OrderedDict[Hashable, object] = OrderedDict()

    def _once(self, key: Hashable, make: Callable[[], _Answer]) -> _Answer:
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return cast("_Answer", self._answers[key])
        made = make()
        with self._lock:
            self._answers[key] = made
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        return made

    @cached_property
    def _steps(self) -> tuple[StepMark, ...]:
        return self._shown.timeline.steps()

    @cached_property
    def _spans(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """When each step begins and when it is over everywhere."""
        ends = [
            (one.start_ns, max([one.end_ns, *(on.end_ns for on in one.on_gpu)]))
            for one in self._steps
        ]
        return np.array(ends, np.int64).reshape(len(ends), 2).T

    def steps(self, start_ns: int, end_ns: int) -> tuple[tuple[StepMark, ...], bool]:
        """Steps that touch a window, evenly thinned where they are many; and whether they were."""
        begin, end = self._spans
        seen = np.flatnonzero((begin <= end_ns) & (end >= start_ns))
        every = -(-seen.size // MOST_STEPS) or 1
        return tuple(self._steps[at] for at in seen[::every].tolist()), every > 1

    def hits(self, text: str) -> Hits:
        """What a search finds."""
        return self._once(("hits", text), lambda: self._shown.timeline.search(text))

    def details(self, selected: Selected) -> Details:
        """All that is known of the selection. Raises UsageError if there is no such operation."""
        self._shown.timeline.locate(selected.table, selected.row)
        op = Op(table_of(selected), selected.row)
        waits = self._shown.table("rank_waits")
        return self._once(("details", selected), lambda: details_of(self._shown.trace, op, waits))

    def _written(self, selected: Selected) -> Recorded:
        trace = self._shown.trace
        table = self._shown.timeline.table(table_of(selected))
        row = selected.row
        known = {}
        for column in ("correlation", "external_id"):
            if column in table.columns and table[column][row] != NULL:
                known[column] = int(table[column][row])
        return arguments.arguments_of(
            trace.sources[int(table["source"][row])].path,
            trace.strings[int(table["name"][row])],
            int(table["start_ns"][row]),
            **known,
        )

    def arguments(self, selected: Selected) -> Recorded:
        """The arguments of the selection as its file has them: reads the file again."""
        self._shown.timeline.locate(selected.table, selected.row)
        return self._once(("arguments", selected), lambda: self._written(selected))

    def known_arguments(self, selected: Selected) -> Recorded | None:
        """The arguments, if they were read already."""
        with self._lock:
            return cast("Recorded | None", self._answers.get(("arguments", selected)))

    def file_bytes(self, selected: Selected) -> int | None:
        """Stored bytes of the file that the selection comes from; None: unknown."""
        table = self._shown.timeline.table(table_of(selected))
        path = self._shown.trace.sources[int(table["source"][selected.row])].path
        return self._once(("bytes", path), lambda: arguments.stored_bytes(path))


_lock = threading.Lock()


def kept(shown: Shown) -> Kept:
    """The answers about a recording. They are its attribute, and so go when it goes."""
    with _lock:
        found = vars(shown).get("_kept")
        if found is None:
            found = vars(shown)["_kept"] = Kept(shown)
    return cast("Kept", found)


def table_of(selected: Selected) -> OpTable:
    """The kind of table that a selection is a row of."""
    return next(kind for kind in OpTable if kind.label == selected.table)
