"""Buffers that transfers go through, and the GPU operations that use them one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.schema import Activity, Kind
from diagnose.trace import Gpu

Rows = npt.NDArray[np.int64]


class Use(NamedTuple):
    """One GPU operation and what it does to bytes ``[begin, end)`` of a buffer."""

    row: int
    """Of ``gpu_ops``."""
    stream: int
    start_ns: int
    end_ns: int
    launched_ns: int
    """When the host asked for it."""
    stream_free_ns: int
    """When what ran on its stream before had ended."""
    begin: int
    end: int
    reads: bool
    writes: bool
    is_transfer: bool
    """Communication, or a copy between the GPU and the host or another GPU."""

    def meets(self, other: Use) -> bool:
        """Whether both use some of the same bytes."""
        return self.begin < other.end and other.begin < self.end


class Streams:
    """When the operations of each stream of one GPU ended, in their order."""

    def __init__(self, facts: Facts, gpu: Gpu) -> None:
        ops = facts.trace.gpu_ops
        rows = np.flatnonzero(
            facts.on(ops, gpu) & ops.known("launch_row") & ops.known("stream")
        ).astype(np.int64)
        self._of: dict[int, tuple[Rows, Rows]] = {}
        launched = facts.trace.launches["start_ns"][ops["launch_row"][rows]]
        for stream in np.unique(ops["stream"][rows]).tolist():
            mine = np.flatnonzero(ops["stream"][rows] == stream)
            mine = mine[np.argsort(ops["start_ns"][rows[mine]], kind="stable")]
            self._of[stream] = ops["end_ns"][rows[mine]], launched[mine]

    def last_end(self, stream: int, before_ns: int, asked_before_ns: int) -> int:
        """The end of the last operation that had ended by then and was asked for by then.

        0 if there is none.
        """
        ends, launched = self._of[stream]
        number = min(
            int(np.searchsorted(ends, before_ns, side="right")),
            int(np.searchsorted(launched, asked_before_ns)),
        )
        return int(ends[number - 1]) if number else 0


def buffers_of(facts: Facts, gpu: Gpu) -> Iterator[list[Use]]:
    """The uses of each buffer, by start. Only of those that a transfer and something else uses.

    Memory that the allocator gave out within the window is left out: what it is used for then
    is another matter.
    """
    trace = facts.trace
    accesses = trace.accesses.take(trace.accesses["source"] == gpu.source)
    ops = _operations(facts, gpu)
    on_gpu = ~trace.strings.where(lambda text: text.startswith("cpu"))[accesses["device"]]
    buffer = accesses["storage"]
    fresh = np.unique(buffer[accesses["new"] & on_gpu])
    wanted = on_gpu & (accesses["reads"] | accesses["writes"]) & accesses.known("external_id")
    wanted &= ~np.isin(buffer, fresh)
    row, access = _pairs(trace.gpu_ops["external_id"][ops], accesses["external_id"][wanted])
    row, access = ops[row], np.flatnonzero(wanted)[access]
    transfers = _is_transfer(facts, row)
    chosen = np.isin(buffer[access], np.unique(buffer[access[transfers]]))
    row, access, transfers = row[chosen], access[chosen], transfers[chosen]
    free = _stream_free(facts, gpu)
    order = np.lexsort((row, trace.gpu_ops["start_ns"][row], buffer[access]))
    row, access, transfers = row[order], access[order], transfers[order]
    cuts = np.flatnonzero(np.diff(buffer[access])) + 1
    parts = (np.split(column, cuts) for column in (row, access, transfers))
    for rows, places, is_transfer in zip(*parts, strict=True):
        if len(np.unique(rows)) > 1:
            table = accesses.take(places)
            columns = (table[name] for name in ("begin", "end", "reads", "writes"))
            yield _uses(facts, rows, is_transfer, free, *columns)


def _operations(facts: Facts, gpu: Gpu) -> Rows:
    """Rows of operations of one GPU that are tied to their operator, launch and stream."""
    ops = facts.trace.gpu_ops
    known = ops.known("external_id") & ops.known("launch_row") & ops.known("stream")
    return np.flatnonzero(facts.on(ops, gpu) & known).astype(np.int64)


def _pairs(left: Rows, right: Rows) -> tuple[Rows, Rows]:
    """All places in ``left`` and ``right`` with equal values."""
    order = np.argsort(left, kind="stable")
    first = np.searchsorted(left[order], right)
    number = np.searchsorted(left[order], right, side="right") - first
    place = np.repeat(np.arange(len(right)), number)
    within = np.arange(len(place)) - np.repeat(np.cumsum(number) - number, number)
    return order[np.repeat(first, number) + within], place


def _is_transfer(facts: Facts, rows: Rows) -> npt.NDArray[np.bool_]:
    ops, strings = facts.trace.gpu_ops, facts.trace.strings
    within = strings.where(lambda text: "DtoD" in text)
    copies = (ops["kind"][rows] == Kind.MEMCPY) & ~within[ops["name"][rows]]
    found: npt.NDArray[np.bool_] = copies | (ops["activity"][rows] == Activity.COMMUNICATION)
    return found


def _stream_free(facts: Facts, gpu: Gpu) -> dict[int, int]:
    """Row -> end of the operation before it on its stream; the first: its launch counts alone.

    Those without an operator (Triton) or a launch keep a stream busy as well.
    """
    ops = facts.trace.gpu_ops
    rows = np.flatnonzero(facts.on(ops, gpu) & ops.known("stream"))
    by = rows[np.lexsort((ops["start_ns"][rows], ops["stream"][rows]))]
    before = np.zeros(len(by), np.int64)
    same = ops["stream"][by[1:]] == ops["stream"][by[:-1]]
    before[1:] = np.where(same, ops["end_ns"][by[:-1]], 0)
    return dict(zip(by.tolist(), before.tolist(), strict=True))


def _uses(
    facts: Facts,
    rows: Rows,
    transfers: npt.NDArray[np.bool_],
    free: dict[int, int],
    begin: Rows,
    end: Rows,
    reads: npt.NDArray[np.bool_],
    writes: npt.NDArray[np.bool_],
) -> list[Use]:
    """One for each operation: the hull of the ranges that it uses."""
    trace = facts.trace
    ops = trace.gpu_ops
    launched = trace.launches["start_ns"][ops["launch_row"][rows]]
    found: dict[int, Use] = {}
    for place, row in enumerate(rows.tolist()):
        one = Use(
            row,
            int(ops["stream"][row]),
            int(ops["start_ns"][row]),
            int(ops["end_ns"][row]),
            int(launched[place]),
            free[row],
            int(begin[place]),
            int(end[place]),
            bool(reads[place]),
            bool(writes[place]),
            bool(transfers[place]),
        )
        known = found.get(row)
        found[row] = (
            one
            if known is None
            else known._replace(
                begin=min(known.begin, one.begin),
                end=max(known.end, one.end),
                reads=known.reads or one.reads,
                writes=known.writes or one.writes,
            )
        )
    return list(found.values())
