"""The accesses of one source as nodes of its order: by kernels and copies, or by the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards.annotations import named
from diagnose.analyzers.hazards.order import Order
from diagnose.schema import Kind
from diagnose.trace import Table, Trace

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NUMBER_BYTES = 16


@dataclass(frozen=True)
class Accesses:
    """The accesses of one source: rows of ``Trace.accesses`` that read or write.

    ``storage``: a number for device and storage. ``life``: how often the allocator had given the
    memory out by then. ``touched``: rows of ``host_ops`` that access memory of the host which
    the GPU uses too.
    """

    source: int
    table: Table
    on_cpu: Flags
    storage: Rows
    life: Rows
    touched: Rows


@dataclass(frozen=True)
class Touches:
    """Bytes ``[begin, end)`` of a storage, used by the nodes ``first`` to ``last`` of one lane.

    Arrays of shape (touches,), by storage, then in the host's order of ``last``. ``split``:
    the operator has nodes on other lanes too, and which of them uses what is not known.
    """

    storage: Rows
    begin: Rows
    end: Rows
    writes: Flags
    dense: Flags
    life: Rows
    first: Rows
    last: Rows
    split: Flags
    host_op_row: Rows

    def __len__(self) -> int:
        return len(self.storage)


@dataclass(frozen=True)
class _Groups:
    """Operations of one operator on one lane, by External id: their first and last node."""

    external: Rows
    first: Rows
    last: Rows
    split: Flags


def accesses_of(trace: Trace, source: int) -> Accesses:
    """What one source's operators access, and which of them do it on the host."""
    table, hosts = trace.accesses.take(trace.accesses["source"] == source), trace.host_ops
    rows, external, new = table["host_op_row"], table["external_id"], table["new"]
    storage = _numbered(table["device"], table["storage"])
    # Within an operator its own results are allocated, by operators that it calls perhaps.
    known_at = np.where(new, hosts["end_ns"][rows], hosts["start_ns"][rows])
    life = _lives(storage, hosts["start_ns"][rows], new, known_at)
    # An id that two operators have names none of them; 0 is what has no operator around it.
    pairs = np.unique(_numbered(external, rows), return_index=True)[1]
    ids, count = np.unique(external[pairs], return_counts=True)
    used = (external > 0) & ~np.isin(external, ids[count > 1])
    used &= (table["reads"] | table["writes"]) & (table["begin"] < table["end"])
    table, storage, life = table.take(used), storage[used], life[used]
    on_cpu = named(table, "device", r"cpu")
    touched = _on_the_host(trace, source, table, on_cpu, storage)
    return Accesses(source, table, on_cpu, storage, life, touched)


def touches_of(trace: Trace, accesses: Accesses, gpu_rows: Rows, order: Order) -> Touches:
    """Each access that has a node. ``gpu_rows``: rows of ``gpu_ops``, in the order of nodes.

    Memory of the host is touched by copies of pinned memory and by operators; what is pageable
    goes through a staging buffer.
    """
    table, on_cpu = accesses.table, accesses.on_cpu
    pinned = _copies(trace, "Pinned")[gpu_rows]
    nodes = np.arange(len(gpu_rows), dtype=np.int64)
    external = trace.gpu_ops["external_id"][gpu_rows]
    place, lane = np.array(order.place, np.int64), np.array(order.lane, np.int64)
    every = _grouped(nodes, external, place, lane)
    copies = _grouped(nodes[pinned], external[pinned], place, lane)
    on_gpu = _joined(np.flatnonzero(~on_cpu), table["external_id"], every)
    copied = _joined(np.flatnonzero(on_cpu), table["external_id"], copies)
    by_host = np.flatnonzero(on_cpu & np.isin(table["host_op_row"], accesses.touched))
    at = len(gpu_rows) + np.searchsorted(accesses.touched, table["host_op_row"][by_host])
    parts = [on_gpu, copied, (by_host, at, at, np.zeros(len(at), bool))]
    row, first, last, split = (np.concatenate(column) for column in zip(*parts, strict=True))
    by = np.lexsort((row, place[last], accesses.storage[row]))
    row = row[by]
    begin, end, writes, dense, host = (
        table[name][row] for name in ("begin", "end", "writes", "dense", "host_op_row")
    )
    return Touches(
        accesses.storage[row],
        *(begin, end, writes, dense),
        accesses.life[row],
        *(first[by], last[by], split[by]),
        host,
    )


def _grouped(nodes: Rows, external: Rows, place: Rows, lane: Rows) -> _Groups:
    known = external > 0
    nodes, external = nodes[known], external[known]
    by = np.lexsort((place[nodes], lane[nodes], external))
    nodes, external = nodes[by], external[by]
    new_id = np.append(True, external[1:] != external[:-1])[: len(nodes)]
    new = new_id | np.append(True, lane[nodes[1:]] != lane[nodes[:-1]])[: len(nodes)]
    begins = np.flatnonzero(new)
    ends = np.append(begins[1:], len(nodes)) - 1
    ids, count = np.unique(external[begins], return_counts=True)
    split = np.repeat(count > 1, count) if len(ids) else np.zeros(0, bool)
    return _Groups(external[begins], nodes[begins], nodes[ends[: len(begins)]], split)


def _joined(rows: Rows, external: Rows, groups: _Groups) -> tuple[Rows, Rows, Rows, Flags]:
    """Each of the rows with each group of its operator: row, first, last, split."""
    wanted = external[rows]
    low = np.searchsorted(groups.external, wanted)
    many = np.searchsorted(groups.external, wanted, side="right") - low
    offset = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    at = np.repeat(low, many) + offset
    return np.repeat(rows, many), groups.first[at], groups.last[at], groups.split[at]


def _copies(trace: Trace, word: str) -> Flags:
    found: Flags = named(trace.gpu_ops, "name", f".*{word}")
    found &= trace.gpu_ops["kind"] == Kind.MEMCPY
    return found


def _on_the_host(trace: Trace, source: int, table: Table, on_cpu: Flags, storage: Rows) -> Rows:
    """Innermost operators without a copy, on storages of the host that a copy uses.

    Of those with a kernel only such as read a number, before they launch it: anything larger the
    kernel may read itself.
    """
    hosts, ops = trace.host_ops, trace.gpu_ops
    own = ops["source"] == source
    pinned = np.isin(table["external_id"], ops["external_id"][own & _copies(trace, "Pinned")])
    copied = np.isin(table["external_id"], ops["external_id"][own & _copies(trace, "")])
    number = table["end"] - table["begin"] <= _NUMBER_BYTES
    by_host = number | ~np.isin(table["external_id"], ops["external_id"][own])
    shared = np.isin(storage, storage[on_cpu & pinned])
    wanted = np.unique(table["host_op_row"][on_cpu & by_host & ~copied & shared])
    every = np.unique(table["host_op_row"])
    every = every[np.lexsort((hosts["start_ns"][every], hosts["thread"][every]))]
    inner = np.ones(len(every), bool)
    inner[:-1] = (hosts["thread"][every[1:]] != hosts["thread"][every[:-1]]) | (
        hosts["start_ns"][every[1:]] >= hosts["end_ns"][every[:-1]]
    )
    found: Rows = wanted[np.isin(wanted, every[inner])]
    return found


def _lives(storage: Rows, starts: Rows, new: Flags, known_at: Rows) -> Rows:
    """How often each access's storage had been given out at a time."""
    storages = np.concatenate([storage[new], storage])
    times = np.concatenate([starts[new], known_at])
    num_given = int(new.sum())
    is_given = np.arange(len(storages)) < num_given
    by = np.lexsort((~is_given, times, storages))
    given = np.cumsum(is_given[by])
    begins = np.searchsorted(storages[by], storages[by])
    found = np.empty(len(storages), np.int64)
    found[by] = given - (given - is_given[by])[begins]
    return found[num_given:]


def _numbered(*columns: npt.NDArray[np.integer]) -> Rows:
    """For each row the number of its combination of values."""
    by = np.lexsort(columns)
    new = np.zeros(len(by), bool)
    for column in columns:
        new[1:] |= column[by][1:] != column[by][:-1]
    found = np.empty(len(by), np.int64)
    found[by] = np.cumsum(new)
    return found
