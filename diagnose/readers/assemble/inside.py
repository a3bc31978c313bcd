"""Which host operator a call lies in: by time, on the same thread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble.part import Rows
from diagnose.schema import NO_ROW

Times = npt.NDArray[np.int64]
Threads = npt.NDArray[np.int32]


class Spans(NamedTuple):
    """Host operators: thread and ``[start, end)``."""

    thread: Threads
    start_ns: Times
    end_ns: Times


def latest(spans: Spans, thread: Threads, moment: Times) -> Rows:
    """The span on the same thread that began last before each moment, if it holds the moment.

    Else ``NO_ROW``.
    """
    found = np.full(len(moment), NO_ROW, np.int64)
    for on_thread, order in _threads(spans, thread):
        at = np.searchsorted(spans.start_ns[order], moment[on_thread], side="right") - 1
        held = at >= 0
        held &= moment[on_thread] < spans.end_ns[order][np.maximum(at, 0)]
        found[on_thread[held]] = order[at[held]]
    return found


def first_with(keys: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> Rows:
    """For each wanted number the first row of ``keys`` that has it, else ``NO_ROW``."""
    found = np.full(len(wanted), NO_ROW, np.int64)
    if not len(keys) or not len(wanted):
        return found
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    same = keys[order][at] == wanted
    found[same] = order[at[same]]
    return found


def _threads(spans: Spans, thread: Threads) -> list[tuple[Rows, Rows]]:
    """Per thread that has spans: the rows asked for, and the spans by start."""
    pairs = []
    for code in np.unique(spans.thread).tolist():
        asked = np.flatnonzero(thread == code)
        if code >= 0 and len(asked):
            of_thread = np.flatnonzero(spans.thread == code)
            order = np.lexsort((-spans.end_ns[of_thread], spans.start_ns[of_thread]))
            pairs.append((asked, of_thread[order]))
    return pairs
