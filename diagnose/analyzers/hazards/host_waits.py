"""Where the host of one process waits for its GPU, or learns that something there is over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards.annotations import CALLS, EventCall, EventCalls, named
from diagnose.analyzers.hazards.order import CLOCK_ERROR_NS, Act, Action
from diagnose.analyzers.hazards.streams import Lanes, waiting_devices, waiting_streams
from diagnose.schema import Call, Kind
from diagnose.trace import Trace

Rows = npt.NDArray[np.int64]

DEVICE = r"(?:cuda|cu|hip)(?:DeviceSynchronize|CtxSynchronize|ThreadSynchronize|Free(?:Host)?$)"
"""``cudaFree`` waits for the device, by CUDA's programming guide."""
STREAM = r"(?:cuda|cu|hip)StreamSynchronize"
ASKS = r"(?:cuda|cu|hip)(?:EventQuery|StreamQuery|EventElapsedTime)"


def host_waits(
    trace: Trace, source: int, calls: EventCalls, lanes: Lanes, gpu_rows: Rows, touched: Rows
) -> Iterator[Action]:
    """The waits of one source.

    ``gpu_rows``: rows of ``gpu_ops`` in the order of nodes; ``touched``: rows of ``host_ops`` that
    access memory of the host. What a thread asks that neither launches nor touches anything (NCCL's
    watchdog) says nothing to the others, nor does what PyTorch's allocator asks, but of memory that
    it gives out: which is known (``reuse``) unless storages are resized.
    """
    launches = trace.launches
    own = launches["source"] == source
    own[calls.call_row[calls.call_row >= 0]] = False
    streams, devices = waiting_streams(trace, source), waiting_devices(trace, source)
    starts, ends = launches["start_ns"], launches["end_ns"]
    for row in np.flatnonzero(own & named(launches, "name", DEVICE)).tolist():
        waited = lanes.of_device(devices.get(int(launches["correlation"][row])))
        yield Action(int(starts[row]), Act.HOST_BEGINS_LANES, waited, call=row)
        yield Action(int(ends[row]), Act.HOST_GOES_ON, end_ns=int(ends[row]), call=row)
    for row in np.flatnonzero(own & named(launches, "name", STREAM)).tolist():
        place = streams.get(int(launches["correlation"][row]))
        if place is None:
            yield Action(int(ends[row]), Act.HOST_SEES, end_ns=int(ends[row]), call=row)
            continue
        waited = (lanes.of_stream(place),)
        yield Action(int(starts[row]), Act.HOST_BEGINS_LANES, waited, call=row)
        yield Action(int(ends[row]), Act.HOST_GOES_ON, end_ns=int(ends[row]), call=row)
    busy = own & np.isin(launches["call"], (Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY))
    threads = np.union1d(launches["thread"][busy], trace.host_ops["thread"][touched])
    asks = own & named(launches, "name", ASKS) & np.isin(launches["thread"], threads)
    if not _allocates_unseen(trace, source):
        asks &= ~np.isin(launches["external_id"], _of_operators(trace, source))
    asks |= own & named(launches, "name", CALLS[EventCall.HOST_WAITS])
    for row in np.flatnonzero(asks).tolist():
        yield Action(int(ends[row]), Act.HOST_SEES, end_ns=int(ends[row]), call=row)
    yield from _blocking_copies(trace, gpu_rows)


def _allocates_unseen(trace: Trace, source: int) -> bool:
    """Whether storages were resized from Python, or nothing tells: no operator shows that."""
    hosts = trace.host_ops
    own = hosts["source"] == source
    functions = own & named(hosts, "category", r"python_function$")
    resized = functions & named(hosts, "name", r"<built-in method resize_ of")
    return bool(resized.any()) or not functions.any()


def _of_operators(trace: Trace, source: int) -> Rows:
    """External ids of PyTorch's operators: within them nobody but its allocator asks."""
    hosts = trace.host_ops
    own = (hosts["source"] == source) & named(hosts, "name", r"aten::") & hosts.known("external_id")
    found: Rows = np.unique(hosts["external_id"][own])
    return found


def _blocking_copies(trace: Trace, gpu_rows: Rows) -> Iterator[Action]:
    """Copies whose call returned when they were over, where that is no chance.

    An asynchronous copy of pinned memory may be over by then as well.
    """
    ops, launches = trace.gpu_ops, trace.launches
    pinned = named(ops, "name", r".*(?:Pinned|Device -> Device)")[gpu_rows]
    asynchronous = named(launches, "name", r".*Async")[ops["launch_row"][gpu_rows]]
    blocks = (ops["kind"][gpu_rows] == Kind.MEMCPY) & ~(pinned & asynchronous)
    for node in np.flatnonzero(blocks).tolist():
        row = int(ops["launch_row"][gpu_rows[node]])
        end = int(launches["end_ns"][row])
        if ops["end_ns"][gpu_rows[node]] <= end + CLOCK_ERROR_NS:
            yield Action(end, Act.HOST_HAS_NODE, node=node, call=row)
