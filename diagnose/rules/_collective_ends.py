"""Of each collective on a stream of its own: when anything first waited for its end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._event_log import NEVER, EventLog
from diagnose.rules._facts import Facts
from diagnose.schema import NULL, Activity, Call
from diagnose.trace import Gpu, Table

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
COLLECTIVE = "record_param_comms"
"""The operator that carries the tensors of a collective."""


class Ends(NamedTuple):
    """Collectives of one GPU with an event recorded behind them, by launch. Times: host, ns."""

    row: Array
    """Of ``gpu_ops``."""
    stream: Array
    waited_at: Array
    """First wait of another stream or the host for that event, or query for it; ``NEVER``."""
    synchronised_at: Array
    """First synchronisation of the device or of the stream; ``NEVER``."""
    kernel_at: Array
    """First launch of a kernel on another stream after the record; ``NEVER``."""


def ends_on(facts: Facts, gpu: Gpu, log: EventLog) -> Ends:
    """The collectives of one GPU; those without a recorded event are left out."""
    trace = facts.trace
    ops, calls = trace.gpu_ops, trace.launches
    mine = np.flatnonzero(facts.on(ops, gpu) & ops.known("launch_row") & ops.known("stream"))
    mine = mine[calls["call"][ops["launch_row"][mine]] != Call.GRAPH_LAUNCH]
    rows = _described(facts, gpu, mine)
    compute = np.setdiff1d(mine[ops["activity"][mine] == Activity.COMPUTE], rows)
    rows = rows[_has_result(facts, rows)]
    # On the stream of the kernels the stream holds the order.
    rows = rows[~np.isin(ops["stream"][rows], ops["stream"][compute])]
    launch = ops["launch_row"][rows]
    order = np.argsort(calls["start_ns"][launch], kind="stable")
    rows, launch = rows[order], launch[order]
    record = _record_behind(facts, gpu, log, rows, launch)
    rows, record = rows[record >= 0], record[record >= 0]
    at = log.at[record]
    launched = np.sort(calls["start_ns"][ops["launch_row"][compute]])
    stream = ops["stream"][rows]
    waited = np.minimum(log.waited_at[record], _next(_queries(facts, gpu), at))
    synchronised = np.full(rows.size, NEVER, np.int64)
    for one in np.unique(stream).tolist():
        own = stream == one
        times = _synchronised(facts, gpu, int(one), launched)
        synchronised[own] = _next(times, at[own])
    return Ends(rows, stream, waited, synchronised, _next(launched, at))


def _described(facts: Facts, gpu: Gpu, mine: Array) -> Array:
    """What collectives launched, the last operation of each: in a group of one rank, where NCCL
    copies, it does not count as communication."""
    ops, hosts = facts.trace.gpu_ops, facts.trace.host_ops
    record = (hosts["source"] == gpu.source) & hosts.known("external_id")
    record &= hosts["name"] == facts.trace.strings.code(COLLECTIVE)
    rows = mine[np.isin(ops["external_id"][mine], hosts["external_id"][record])]
    launched = facts.trace.launches["start_ns"][ops["launch_row"][rows]]
    rows = rows[np.argsort(launched, kind="stable")][::-1]
    _, last = np.unique(ops["external_id"][rows], return_index=True)
    found: Array = np.sort(rows[last])
    return found


def _has_result(facts: Facts, rows: Array) -> Mask:
    """Whether somebody reads it, as far as is known: nobody does of a send and a barrier."""
    table = facts.trace.collectives
    silent = facts.trace.strings.where(lambda text: text.lower() in ("send", "barrier"))
    without = np.append(silent, False)
    without = without[table["name"]] | without[table["collective"]]
    return ~np.isin(rows, table["gpu_op_row"][without])


def _record_behind(facts: Facts, gpu: Gpu, log: EventLog, rows: Array, launch: Array) -> Array:
    """Row of the log: the first event recorded behind each launch within its description; -1."""
    trace = facts.trace
    ops, hosts, calls = trace.gpu_ops, trace.host_ops, trace.launches
    found = np.full(rows.size, -1, np.int64)
    code = trace.strings.code(COLLECTIVE)
    around = np.flatnonzero((hosts["source"] == gpu.source) & (hosts["name"] == code))
    around = around[np.argsort(hosts["external_id"][around], kind="stable")]
    if code < 0 or not around.size or not log:
        return found
    ids = hosts["external_id"][around]
    call = ops["external_id"][rows]
    place = np.minimum(np.searchsorted(ids, call), ids.size - 1)
    known = (ids[place] == call) & (call != NULL)
    until = hosts["end_ns"][around[place]]
    for thread in np.unique(log.thread).tolist():
        records = np.flatnonzero(log.thread == thread)
        own = np.flatnonzero(known & (calls["thread"][launch] == thread))
        next_ = np.searchsorted(log.at[records], calls["end_ns"][launch[own]])
        inside = next_ < records.size
        own, next_ = own[inside], records[next_[inside]]
        held = log.at[next_] < until[own]
        found[own[held]] = next_[held]
    return found


def _next(times: Array, after: Array) -> Array:
    """The first of some sorted times at or after each; ``NEVER``: none."""
    found: Array = np.append(times, NEVER)[np.searchsorted(times, after)]
    return found


def _synchronised(facts: Facts, gpu: Gpu, stream: int, launched: Array) -> Array:
    """When the host began to wait for the device or the stream; not the profiler at its end."""
    syncs, steps = facts.trace.syncs, facts.trace.steps
    own = syncs.take((syncs["source"] == gpu.source) & (syncs["device"] == gpu.device))
    device = own.strings.where(lambda text: text == "Context Sync")[own["sync_kind"]]
    one = own.strings.where(lambda text: text == "Stream Sync")[own["sync_kind"]]
    one &= ~own.known("stream") | (own["stream"] == stream)
    at = np.sort(own["start_ns"][device | one])
    until = max(
        int(steps["end_ns"][steps["source"] == gpu.source].max(initial=0)),
        int(launched[-1]) if launched.size else 0,
    )
    found: Array = at[at < until]
    return found


def _queries(facts: Facts, gpu: Gpu) -> Array:
    """When the job may have asked whether work is done: not the allocator, not NCCL's watchdog."""
    calls, hosts = facts.trace.launches, facts.trace.host_ops
    own = calls.take(calls["source"] == gpu.source)
    query = own.strings.where(lambda text: "EventQuery" in text)[own["name"]]
    busy = np.unique(own["thread"][own["call"] == Call.LAUNCH])
    query &= np.isin(own["thread"], busy)
    return np.sort(own["start_ns"][query & ~_of_operator(own, hosts, gpu)])


def _of_operator(calls: Table, hosts: Table, gpu: Gpu) -> Mask:
    """Calls from within an operator other than the description of a collective (``wait``)."""
    described = np.append(hosts.strings.where(lambda text: text == COLLECTIVE), False)
    own = (hosts["source"] == gpu.source) & hosts.known("external_id")
    operators = hosts["external_id"][own & ~described[hosts["name"]]]
    found: Mask = calls.known("external_id") & np.isin(calls["external_id"], operators)
    return found
