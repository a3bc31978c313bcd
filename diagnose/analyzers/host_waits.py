"""Where the host waited for the GPU, in which operator, and what it cost the GPU.

The wait itself is no loss: a GPU with a full queue works on meanwhile. The loss
is the idle time that such a wait caused, taken from the stalls: those whose
cause is ``host_sync`` and whose call is this one.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.analyzers._idle_causes.host_threads import (
    HostState,
    ThreadTimeline,
    host_threads,
)
from diagnose.analyzers._lanes import packed
from diagnose.analyzers.stalls import stalls_with
from diagnose.grouped_intervals import sum_by
from diagnose.schema import NO_ROW, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

HOST_WAITS = TableSchema(
    "host_waits",
    "one host call that returned only when the GPU had got somewhere",
    (
        Column("call_row", "int64", "row of `launches`"),
        Column("source", "int32", "index into `Trace.sources`"),
        Column("thread", "int32", "host thread as `pid/tid`", text=True),
        Column("name", "int32", "the call", text=True),
        Column("start_ns", "int64", "start on the clock of the source", "ns"),
        Column("end_ns", "int64", "end, not included", "ns"),
        Column("length_ns", "int64", "how long the host was in the call", "ns"),
        Column("idle_ns", "int64", "idle time of GPUs that this wait caused", "ns"),
        Column("num_stalls", "int64", "idle intervals that this wait caused"),
        Column("inner_op_row", "int64", "innermost operator around it (`host_ops`)", nullable=True),
        Column("outer_op_row", "int64", "outermost operator around it (`host_ops`)", nullable=True),
        Column(
            "python_row",
            "int64",
            "innermost recorded Python function outside of libraries (`host_ops`)",
            nullable=True,
        ),
    ),
    order=("call_row",),
)

HOST_WAIT_SITES = TableSchema(
    "host_wait_sites",
    "the host waits of one source at the same place, costliest first",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("name", "int32", "the call", text=True),
        Column("inner_op", "int32", "innermost operator around it", nullable=True, text=True),
        Column("outer_op", "int32", "outermost operator around it", nullable=True, text=True),
        Column("python", "int32", "innermost function of the user", nullable=True, text=True),
        Column("num_waits", "int64", "calls"),
        Column("length_ns", "int64", "how long the host was in them", "ns"),
        Column("idle_ns", "int64", "idle time of GPUs that they caused", "ns"),
        Column("num_stalls", "int64", "idle intervals that they caused"),
    ),
    order=("source",),
)

_OF_THE_USER = re.compile(
    r"^(?!<|nn\.Module)(?!.*(?:-packages/|(?:^|/)torch/|lib/python\d)).+\.py\(\d+\)"
)


def host_waits(trace: Trace) -> Table | Unavailable:
    """Every synchronising call and every blocking copy from the GPU, one row each."""
    if not len(trace.launches):
        return Unavailable(
            "the trace holds no call into the GPU runtime",
            "record with ProfilerActivity.CPU and ProfilerActivity.CUDA",
        )
    threads = host_threads(trace)
    waits = np.zeros(len(trace.launches), bool)
    for timeline in threads.values():
        waits[timeline.call_row[timeline.state == HostState.SYNCHRONIZE]] = True
    calls = np.flatnonzero(waits).astype(np.int64)
    launches = trace.launches
    rows = _enclosing(trace, threads, calls)
    idle, count = _caused(trace, threads, calls)
    return Table(
        HOST_WAITS,
        {
            "call_row": calls,
            "source": launches["source"][calls],
            "thread": launches["thread"][calls],
            "name": launches["name"][calls],
            "start_ns": launches["start_ns"][calls],
            "end_ns": launches["end_ns"][calls],
            "length_ns": launches["end_ns"][calls] - launches["start_ns"][calls],
            "idle_ns": idle,
            "num_stalls": count,
            "inner_op_row": rows[0],
            "outer_op_row": rows[1],
            "python_row": rows[2],
        },
        trace.strings,
    )


def host_wait_sites(trace: Trace) -> Table | Unavailable:
    """The host waits summed by call, operators and line, costliest (then longest) first."""
    table = host_waits(trace)
    return table if isinstance(table, Unavailable) else sites_of(trace, table)


def sites_of(trace: Trace, table: Table) -> Table:
    """``host_wait_sites`` from a ``host_waits`` table."""
    # One entry more: "unknown" (-1) must index something.
    names = np.append(trace.host_ops["name"], np.int32(NO_ROW))
    columns = {
        "source": table["source"],
        "name": table["name"],
        "inner_op": names[table["inner_op_row"]],
        "outer_op": names[table["outer_op_row"]],
        "python": names[table["python_row"]],
    }
    key = packed(*(column.astype(np.int64) for column in columns.values()))
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    which, num = which.reshape(-1), first.size
    sums = {
        name: sum_by(which, table[name], num) for name in ("length_ns", "idle_ns", "num_stalls")
    }
    found = {name: column[first] for name, column in columns.items()}
    found |= {"num_waits": np.bincount(which, minlength=num).astype(np.int64), **sums}
    order = np.lexsort((np.arange(num), -sums["length_ns"], -sums["idle_ns"], found["source"]))
    return Table(
        HOST_WAIT_SITES, {name: column[order] for name, column in found.items()}, trace.strings
    )


def _caused(
    trace: Trace, threads: dict[tuple[int, int], ThreadTimeline], calls: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    idle, count = np.zeros(calls.size, np.int64), np.zeros(calls.size, np.int64)
    stalls = stalls_with(trace, threads)
    if isinstance(stalls, Unavailable):
        return idle, count
    mine = (stalls["cause"] == Cause.HOST_SYNC) & (stalls["call_row"] >= 0)
    at = np.searchsorted(calls, stalls["call_row"][mine])
    np.add.at(idle, at, stalls["length_ns"][mine])
    np.add.at(count, at, 1)
    return idle, count


def _enclosing(
    trace: Trace, threads: dict[tuple[int, int], ThreadTimeline], calls: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Innermost and outermost operator and the user's Python function. int64, shape (3, calls)."""
    rows = np.full((3, calls.size), NO_ROW, np.int64)
    names, categories = trace.host_ops["name"], trace.host_ops["category"]
    is_op = trace.strings.where(lambda category: category == "cpu_op")
    is_user = trace.strings.where(lambda name: _OF_THE_USER.search(name) is not None)
    is_python = trace.strings.where(lambda category: category == "python_function")
    place = np.full(len(trace.launches), NO_ROW, np.int64)
    place[calls] = np.arange(calls.size)
    for timeline in threads.values():
        of_calls = np.flatnonzero(timeline.call_row >= 0)
        wanted = of_calls[place[timeline.call_row[of_calls]] >= 0]
        at = place[timeline.call_row[wanted]]
        event: npt.NDArray[Any] = timeline.parent[wanted]
        while (event >= 0).any():
            row = np.where(event >= 0, timeline.host_op_row[np.maximum(event, 0)], NO_ROW)
            safe = np.maximum(row, 0)
            if len(trace.host_ops):
                op = (row >= 0) & is_op[categories[safe]]
                user = (row >= 0) & is_python[categories[safe]] & is_user[names[safe]]
                rows[1, at[op]] = row[op]
                for line, found in ((0, op), (2, user)):
                    fresh = found & (rows[line, at] < 0)
                    rows[line, at[fresh]] = row[fresh]
            event = np.where(event >= 0, timeline.parent[np.maximum(event, 0)], NO_ROW)
    return rows


ANALYZERS = (
    Analyzer("host_waits", Detail.ALL, HOST_WAITS, host_waits),
    Analyzer("host_wait_sites", Detail.ALL, HOST_WAIT_SITES, host_wait_sites),
)
