"""Where in Python an operator was called, from the functions recorded around it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from diagnose.analyzers.hazards.annotations import named
from diagnose.trace import Trace

_OF_LIBRARIES = r"^<|^nn\.Module|-packages/|(?:^|/)torch/|lib/python\d|^runpy"
_USERS = rf"(?!.*(?:{_OF_LIBRARIES})).+\.py\(\d+\)"
"""Of a name that begins so a function of the user's."""


def stack(trace: Trace, host_op_row: int) -> tuple[str, ...]:
    """The user's functions around an operator, innermost first, as ``train.py(41): step``.

    The number is the line where the function begins to be defined. Empty where no stacks were
    recorded, or the operator runs on a thread without Python, as those of backward do.
    """
    global _last
    of, functions = _last
    if of is None or of() is not trace:
        functions = _Functions(trace)
        _last = (weakref.ref(trace), functions)
    assert functions is not None
    return functions.around(trace, host_op_row)


class _Functions:
    """The user's functions of a trace, which are few among all that is recorded."""

    def __init__(self, trace: Trace) -> None:
        hosts = trace.host_ops
        rows = np.flatnonzero(named(hosts, "name", _USERS))
        columns = (hosts[name][rows] for name in ("start_ns", "thread", "source"))
        rows = rows[np.lexsort((-hosts["end_ns"][rows], *columns))]
        self._start, self._end, self._name = (
            hosts[column][rows] for column in ("start_ns", "end_ns", "name")
        )
        threads = np.stack([hosts["source"][rows], hosts["thread"][rows]], axis=1)
        keys, begins = np.unique(threads, axis=0, return_index=True)
        ends = np.append(begins[1:], len(rows))
        self._of_thread = {
            (source, thread): slice(begin, end)
            for (source, thread), begin, end in zip(
                keys.tolist(), begins.tolist(), ends[: len(keys)].tolist(), strict=True
            )
        }
        self._outer = [place for own in self._of_thread.values() for place in self._outer_of(own)]

    def _outer_of(self, own: slice) -> Iterator[int]:
        """For each function of a thread the last begun before it that had not ended; -1: none."""
        open_: list[int] = []
        ends = self._end[own].tolist()
        for place, start in enumerate(self._start[own].tolist(), own.start):
            while open_ and ends[open_[-1] - own.start] < start:
                open_.pop()
            yield open_[-1] if open_ else -1
            open_.append(place)

    def around(self, trace: Trace, host_op_row: int) -> tuple[str, ...]:
        hosts = trace.host_ops
        key = int(hosts["source"][host_op_row]), int(hosts["thread"][host_op_row])
        own = self._of_thread.get(key)
        if own is None:
            return ()
        begun = int(np.searchsorted(self._start[own], hosts["start_ns"][host_op_row], "right"))
        place, found = own.start + begun - 1 if begun else -1, []
        while place >= 0:
            if self._end[place] >= hosts["end_ns"][host_op_row]:
                found.append(trace.strings[int(self._name[place])])
            place = self._outer[place]
        return tuple(found)


_last: tuple[weakref.ref[Trace] | None, _Functions | None] = (None, None)
