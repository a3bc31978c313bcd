"""What is worked out once for a trace, however many changes ask for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from diagnose.trace import Trace

T = TypeVar("T")


def once_per_trace(work: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """``work``, remembered as long as the trace lives: traces never change."""
    known: dict[int, tuple[weakref.ref[Trace], T]] = {}

    @wraps(work)
    def remembered(trace: Trace) -> T:
        key = id(trace)
        found = known.get(key)
        if found is None or found[0]() is not trace:
            found = (weakref.ref(trace, lambda _: known.pop(key, None)), work(trace))
            known[key] = found
        return found[1]

    return remembered
