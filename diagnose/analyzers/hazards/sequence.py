"""What the host of one process did, in order: launches, records, waits, and its own accesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards import nccl
from diagnose.analyzers.hazards.annotations import CALLS, EventCall, EventCalls, event_calls, named
from diagnose.analyzers.hazards.host_waits import host_waits
from diagnose.analyzers.hazards.order import Act, Action
from diagnose.analyzers.hazards.streams import Lanes, lanes_of, waiting_streams
from diagnose.trace import Trace

Rows = npt.NDArray[np.int64]

MOST_LANES = 512
"""Streams of a process; more are not of this world, and their clocks would fill the memory."""

_WAITS = rf"{CALLS[EventCall.STREAM_WAITS]}|(?:cuda|cu|hip)Stream(?:WaitValue|BatchMemOp)"
"""A value in memory is waited for as well as an event."""


@dataclass(frozen=True)
class Sequence:
    """The actions of one source; nodes are its rows of ``gpu_ops``, then its host accesses."""

    actions: tuple[Action, ...]
    num_lanes: int
    gpu_rows: Rows


def launched(trace: Trace, source: int) -> Rows:
    """Rows of ``gpu_ops`` that are nodes: their launch and stream are known."""
    ops = trace.gpu_ops
    known = ops.known("launch_row") & ops.known("stream")
    return np.flatnonzero((ops["source"] == source) & known).astype(np.int64)


def can_follow(trace: Trace, source: int) -> bool:
    """Whether one source has no more streams than can be followed."""
    return lanes_of(trace, source, event_calls(trace, source)).count <= MOST_LANES


def sequence_of(trace: Trace, source: int, touched: Rows) -> Sequence:
    """The sequence of one source that can be followed.

    ``touched``: rows of ``host_ops`` that access host memory.
    """
    gpu_rows = launched(trace, source)
    calls = event_calls(trace, source)
    lanes = lanes_of(trace, source, calls)
    actions = list(_touches(trace, source, touched, len(gpu_rows)))
    actions += _launches(trace, gpu_rows, lanes)
    actions += _events(calls, lanes)
    actions += _unnamed_records(trace, source, calls)
    actions += _unnamed_waits(trace, source, calls, lanes)
    actions += host_waits(trace, source, calls, lanes, gpu_rows, touched)
    return Sequence(tuple(actions), lanes.count, gpu_rows)


def unnamed_waits(trace: Trace, source: int) -> int:
    """How many waits of streams nothing names the event of, NCCL's own left out."""
    return len(_unnamed(trace, source, event_calls(trace, source), _WAITS)[0])


def unnamed_records(trace: Trace, source: int) -> int:
    """How many records of an event nothing names, NCCL's own left out."""
    calls = event_calls(trace, source)
    return len(_unnamed(trace, source, calls, CALLS[EventCall.RECORDED])[0])


def _touches(trace: Trace, source: int, touched: Rows, node: int) -> Iterator[Action]:
    begun = trace.host_ops["start_ns"][touched]
    own = np.flatnonzero(trace.launches["source"] == source)
    # Behind calls that were over by then, before those that begin then.
    before = np.searchsorted(trace.launches["start_ns"][own], begun) + (own[0] if len(own) else 0)
    for at_ns, call in zip(begun.tolist(), before.tolist(), strict=True):
        yield Action(at_ns, Act.TOUCH, node=node, call=call)
        node += 1


def _launches(trace: Trace, gpu_rows: Rows, lanes: Lanes) -> Iterator[Action]:
    ops = trace.gpu_ops
    calls = ops["launch_row"][gpu_rows]
    at = trace.launches["start_ns"][calls]
    # One call may launch many (a graph): they keep the order of their starts.
    by = np.lexsort((ops["start_ns"][gpu_rows], at))
    rows = gpu_rows[by]
    columns = (ops[name][rows].tolist() for name in ("device", "stream", "end_ns"))
    for node, at_ns, call, device, stream, end_ns in zip(
        by.tolist(), at[by].tolist(), calls[by].tolist(), *columns, strict=True
    ):
        lane = (lanes.of_stream((device, stream)),)
        yield Action(at_ns, Act.LAUNCH, lane, node, end_ns=end_ns, call=call)


def _events(calls: EventCalls, lanes: Lanes) -> Iterator[Action]:
    columns = (c.tolist() for c in (calls.call_row, calls.start_ns, calls.end_ns, calls.kind))
    for place, (row, start_ns, end_ns, kind, event, handle) in enumerate(
        zip(*columns, calls.event, calls.stream, strict=True)
    ):
        if kind == EventCall.RECORDED:
            yield Action(start_ns, Act.RECORD, lanes.of_handle(handle), event=event, call=row)
        elif kind == EventCall.STREAM_WAITS:
            waiting = lanes.of_wait(row, handle)
            yield Action(start_ns, Act.STREAM_WAITS, waiting, event=event, call=row)
        else:
            call = row if row >= 0 else -2 - place
            yield Action(start_ns, Act.HOST_BEGINS_EVENT, event=event, call=call)
            yield Action(end_ns, Act.HOST_GOES_ON, end_ns=end_ns, call=call)


def _unnamed_records(trace: Trace, source: int, calls: EventCalls) -> Iterator[Action]:
    rows, _ = _unnamed(trace, source, calls, CALLS[EventCall.RECORDED])
    for row in rows.tolist():
        yield Action(int(trace.launches["start_ns"][row]), Act.RECORD_UNNAMED, call=row)


def _unnamed_waits(trace: Trace, source: int, calls: EventCalls, lanes: Lanes) -> Iterator[Action]:
    starts, streams = trace.launches["start_ns"], waiting_streams(trace, source)
    rows, of_nccl = _unnamed(trace, source, calls, _WAITS)
    communicating = nccl.communication_lanes(trace, source, lanes)
    for row in of_nccl.tolist():
        at_ns, place = int(starts[row]), streams.get(int(trace.launches["correlation"][row]))
        waiting = communicating if place is None else (lanes.of_stream(place),)
        yield Action(at_ns, Act.RECORD, communicating, event=nccl.EVENT, call=row)
        yield Action(at_ns, Act.STREAM_WAITS, waiting, event=nccl.EVENT, call=row)
    for row in rows.tolist():
        place = streams.get(int(trace.launches["correlation"][row]))
        waiting = () if place is None else (lanes.of_stream(place),)
        yield Action(int(starts[row]), Act.STREAM_WAITS_UNNAMED, waiting, call=row)


def _unnamed(trace: Trace, source: int, calls: EventCalls, pattern: str) -> tuple[Rows, Rows]:
    """Rows of ``launches`` of that name without an annotation; those that are NCCL's own apart."""
    launches = trace.launches
    wanted = (launches["source"] == source) & named(launches, "name", pattern)
    wanted[calls.call_row[calls.call_row >= 0]] = False
    rows = np.flatnonzero(wanted)
    # Where nothing is annotated, PyTorch's own calls inside of a collective are not either.
    own = nccl.own_calls(trace, source, rows) if len(calls.call_row) else np.zeros(len(rows), bool)
    return rows[~own], rows[own]
