"""Why each GPU stood still: every interval without compute or communication and its one cause.

The intervals of ``stalls`` and the lengths of ``stall_causes`` sum to idle plus
memory-only time exactly. ``diagnose.analyzers._idle_causes`` says how a cause is
found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.analyzers._idle_causes.classify import Classifier
from diagnose.analyzers._idle_causes.free_time import free_time
from diagnose.analyzers._idle_causes.host_threads import ThreadTimeline, host_threads
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

NOTABLE_NS = 20_000
"""Gaps above this cannot be launch latency or a switch between kernels."""

_SOURCE = Column("source", "int32", "index into `Trace.sources`")
_DEVICE = Column("device", "int32", "device number within its process")
_STEP = Column("step_row", "int64", "row of `steps` whose step time holds it", nullable=True)
_CAUSE = Column("cause", "int8", "why the GPU stood still", choices=Cause)

STALLS = TableSchema(
    "stalls",
    "one interval in which a GPU neither computed nor communicated",
    (
        _SOURCE,
        _DEVICE,
        Column("start_ns", "int64", "start on the clock of the source", "ns"),
        Column("end_ns", "int64", "end, not included", "ns"),
        Column("length_ns", "int64", "end - start", "ns"),
        _CAUSE,
        Column("confidence", "int8", "how sure the cause is", choices=Confidence),
        Column("cause_ns", "int64", "how much of the length the named reason covers", "ns"),
        Column("memory_row", "int64", "copy or fill that ran alone; unknown: idle", nullable=True),
        Column("next_row", "int64", "row of `gpu_ops` that ended the interval", nullable=True),
        Column("last_row", "int64", "row of `gpu_ops` that ended last before it", nullable=True),
        Column("launch_row", "int64", "call that launched what ended it", nullable=True),
        Column("launch_delay_ns", "int64", "start - launch of that operation", "ns", nullable=True),
        Column("thread", "int32", "host thread that held it up", nullable=True, text=True),
        Column("host_op_row", "int64", "row of `host_ops`: what the host did", nullable=True),
        Column("call_row", "int64", "row of `launches`: the call the host was in", nullable=True),
        _STEP,
    ),
    order=("source", "device", "start_ns"),
)

STALL_CAUSES = TableSchema(
    "stall_causes",
    "one cause on one GPU in one step (or outside of all step times)",
    (
        _SOURCE,
        _DEVICE,
        _STEP,
        _CAUSE,
        Column("num_intervals", "int64", "intervals with this cause"),
        Column("length_ns", "int64", "their length together", "ns"),
        Column("longest_ns", "int64", "the longest of them", "ns"),
        Column("notable_ns", "int64", "length of those over 20 us", "ns"),
    ),
    order=("source", "device", "step_row", "cause"),
)


_KEPT = "_stalls"


def stalls(trace: Trace, window: tuple[int, int] | None = None) -> Table | Unavailable:
    """Every interval of ``[first start, last end)`` of each GPU without compute or communication.

    ``window`` (ns on the clock of the source) replaces each GPU's own window.
    """
    if window is not None:
        return stalls_with(trace, host_threads(trace), window)
    # Kept where the trace keeps its cached properties: several tables are drawn from it.
    kept = vars(trace)
    if _KEPT not in kept:
        kept[_KEPT] = stalls_with(trace, host_threads(trace))
    found: Table | Unavailable = kept[_KEPT]
    return found


def stalls_with(
    trace: Trace,
    threads: dict[tuple[int, int], ThreadTimeline],
    window: tuple[int, int] | None = None,
) -> Table | Unavailable:
    """``stalls`` for threads that are known already."""
    if not trace.gpus:
        return Unavailable(
            "the trace holds no GPU work", "record with ProfilerActivity.CUDA and after a warm-up"
        )
    classifier = Classifier(trace, threads)
    parts = []
    for gpu in sorted(trace.gpus, key=lambda gpu: (gpu.source, gpu.device)):
        free = free_time(trace, gpu, window)
        found = classifier.decide(free)
        shown = np.where(free.memory_row >= 0, free.memory_row, free.next_row)
        delay = np.full(shown.size, NULL, np.int64)
        known = found.launch_row >= 0
        delay[known] = (
            trace.gpu_ops["start_ns"][shown[known]]
            - trace.launches["start_ns"][found.launch_row[known]]
        )
        parts.append(
            {
                "source": np.full(shown.size, gpu.source, np.int32),
                "device": np.full(shown.size, gpu.device, np.int32),
                "start_ns": free.start,
                "end_ns": free.end,
                "length_ns": free.end - free.start,
                "cause": found.cause,
                "confidence": found.confidence,
                "cause_ns": found.cause_ns,
                "memory_row": free.memory_row,
                "next_row": free.next_row,
                "last_row": free.last_row,
                "launch_row": found.launch_row,
                "launch_delay_ns": delay,
                "thread": found.thread,
                "host_op_row": found.host_op_row,
                "call_row": found.call_row,
                "step_row": free.step_row,
            }
        )
    return Table(STALLS, _joined(parts), trace.strings)


def _joined(parts: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def stall_causes(trace: Trace) -> Table | Unavailable:
    """The stalls of each GPU summed by step and cause; ``step_row`` unknown: in no step time."""
    table = stalls(trace)
    return table if isinstance(table, Unavailable) else summed(table)


def _distinct(columns: list[npt.NDArray[np.int64]]) -> tuple[npt.NDArray[np.int64], ...]:
    """The distinct rows of these columns in order, and for each row which one it is."""
    order = np.lexsort(columns[::-1])
    rows = np.stack(columns, 1)
    first = np.ones(order.size, bool)
    first[1:] = (rows[order[1:]] != rows[order[:-1]]).any(1)
    which = np.empty(order.size, np.int64)
    which[order] = np.cumsum(first) - 1
    return rows[order[first]], which


def summed(table: Table) -> Table:
    """A ``stalls`` table summed by GPU, step and cause."""
    columns = [table[name] for name in ("source", "device", "step_row", "cause")]
    keys, which = _distinct([column.astype(np.int64) for column in columns])
    length = table["length_ns"]
    longest = np.zeros(len(keys), np.int64)
    np.maximum.at(longest, which, length)

    def total(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        result = np.zeros(len(keys), np.int64)
        np.add.at(result, which, values)
        return result

    return Table(
        STALL_CAUSES,
        {
            "source": keys[:, 0].astype(np.int32),
            "device": keys[:, 1].astype(np.int32),
            "step_row": keys[:, 2],
            "cause": keys[:, 3].astype(np.int8),
            "num_intervals": np.bincount(which, minlength=len(keys)).astype(np.int64),
            "length_ns": total(length),
            "longest_ns": longest,
            "notable_ns": total(np.where(length > NOTABLE_NS, length, 0)),
        },
        table.strings,
    )


ANALYZERS = (
    Analyzer("stalls", Detail.ALL, STALLS, stalls),
    Analyzer("stall_causes", Detail.ALL, STALL_CAUSES, stall_causes),
)
