"""Spans of the host by name, and what lies inside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.trace import Table


def spans_where(facts: Facts, test: Callable[[str], bool]) -> Table:
    """The rows of ``host_ops`` whose name passes a test."""
    ops = facts.trace.host_ops
    hit = np.append(ops.strings.where(test), False)
    return ops.take(hit[ops["name"]])


def inside(spans: Table, source: int, times_ns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether times of a source lie inside of one of its spans, which may not nest."""
    own = spans.take(spans["source"] == source)
    order = np.argsort(own["start_ns"], kind="stable")
    start, end = own["start_ns"][order], own["end_ns"][order]
    if not start.size:
        return np.zeros(times_ns.size, bool)
    at = np.searchsorted(start, times_ns, "right") - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (times_ns < end[np.maximum(at, 0)])
    return found


def ddp_forwards(facts: Facts) -> Table:
    """Forward passes of DistributedDataParallel, as it annotates them."""
    return spans_where(facts, lambda text: text == "DistributedDataParallel.forward")
