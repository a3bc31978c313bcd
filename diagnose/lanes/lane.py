"""What a lane is, and which lanes a trace has: GPUs, their streams, host threads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.schema import NULL
from diagnose.timeline.step_times import of_source
from diagnose.trace import Table, Trace


class Category(IntEnum):
    """What a colour stands for.

    On a ``STATES`` lane the first four exclude each other, as in ``breakdown``. On a
    ``STREAM`` lane ``COMPUTE``, ``OVERLAPPED`` and ``COPIES`` are operations: computing,
    communicating, moving memory; ``EXPOSED`` are the parts of the communication during
    which nothing on the GPU computes, and lies over it.
    """

    COMPUTE = 0
    OVERLAPPED = 1
    EXPOSED = 2
    COPIES = 3
    HOST = 4
    """Operators and annotations of a host thread."""
    CALL = 5
    """Calls of a host thread into the GPU runtime."""


class LaneKind(IntEnum):
    """What a lane shows."""

    STATES = 0
    """A GPU: what it was doing at each instant. No operations."""
    STREAM = 1
    THREAD = 2


class OpTable(IntEnum):
    """The table of the trace that an operation is a row of."""

    NONE = 0
    """A state, or several operations drawn as one."""
    GPU_OPS = 1
    HOST_OPS = 2
    LAUNCHES = 3

    @property
    def label(self) -> str:
        """Its name as ``diagnose.schema`` has it: ``gpu_ops``."""
        return self.name.lower()


@dataclass(frozen=True)
class Lane:
    """One lane. ``key`` stays the same for the same trace and fits into an address.

    ``"g0.1"`` is device 1 of source 0, ``"g0.1s7"`` its stream 7, ``"g0.1s-"`` its unknown
    stream, ``"h0.2"`` thread number 2 of source 0 (threads numbered by process and thread
    id). ``parent`` is the key of the GPU a stream belongs to; of a thread: the first GPU of
    its process, if it has one. ``num_ops`` counts operations; a ``STATES`` lane has none.
    """

    key: str
    kind: LaneKind
    source: int
    device: int | None
    stream: int | None
    thread: str | None
    label: str
    parent: str | None
    num_ops: int


class Op(NamedTuple):
    """One operation: its table and its row there."""

    table: OpTable
    row: int


def lanes_of(trace: Trace) -> tuple[Lane, ...]:
    """The lanes by rank, sources of unknown rank last: each GPU and its streams, then threads."""
    order = sorted(
        range(len(trace.sources)),
        key=lambda s: (trace.sources[s].rank is None, trace.sources[s].rank or 0, s),
    )
    found: list[Lane] = []
    for source in order:
        gpus = [gpu for gpu in trace.gpus if gpu.source == source]
        for gpu in gpus:
            found += _gpu_lanes(trace, source, gpu.device, trace.on(gpu))
        first = f"g{source}.{gpus[0].device}" if gpus else None
        found += _thread_lanes(trace, source, first)
    return tuple(found)


def _gpu_lanes(trace: Trace, source: int, device: int, rows: slice) -> list[Lane]:
    key = f"g{source}.{device}"
    label = f"{trace.sources[source].label}, GPU {device}"
    streams, count = np.unique(trace.gpu_ops["stream"][rows], return_counts=True)
    numbered = list(zip(streams.tolist(), count.tolist(), strict=True))
    numbered.sort(key=lambda pair: (pair[0] == NULL, pair[0]))
    lanes = [Lane(key, LaneKind.STATES, source, device, None, None, label, None, 0)]
    for stream, num_ops in numbered:
        known = stream != NULL
        lanes.append(
            Lane(
                key=f"{key}s{stream}" if known else f"{key}s-",
                kind=LaneKind.STREAM,
                source=source,
                device=device,
                stream=stream if known else None,
                thread=None,
                label=f"stream {stream}" if known else "unknown stream",
                parent=key,
                num_ops=num_ops,
            )
        )
    return lanes


def _thread_lanes(trace: Trace, source: int, parent: str | None) -> list[Lane]:
    counts: dict[int, int] = {}
    for table in (trace.host_ops, trace.launches):
        codes = table["thread"][of_source(table, source)]
        used = np.bincount(codes) if codes.size else np.empty(0, np.int64)
        for code in np.flatnonzero(used).tolist():
            counts[code] = counts.get(code, 0) + int(used[code])
    threads = sorted(counts, key=lambda code: _by_number(trace.strings[code]))
    several = len({pid for code in threads if (pid := _process(trace.strings[code]))}) > 1
    marked = set(trace.steps["thread"][of_source(trace.steps, source)].tolist())
    lanes = []
    for number, code in enumerate(threads):
        written = trace.strings[code]
        label = written
        if _process(written):
            label = f"thread {written if several else written.partition('/')[2]}"
        label += " (marks the steps)" if code in marked else ""
        lanes.append(
            Lane(
                key=f"h{source}.{number}",
                kind=LaneKind.THREAD,
                source=source,
                device=None,
                stream=None,
                thread=written,
                label=label,
                parent=parent,
                num_ops=counts[code],
            )
        )
    return lanes


def _process(written: str) -> str:
    """The process id in ``pid/tid``; "" for what the profiler writes in their place."""
    pid, _, tid = written.partition("/")
    return pid if pid.isdigit() and tid.isdigit() else ""


def _by_number(written: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort ``pid/tid`` by number where they are numbers, else by text after those."""

    def part(text: str) -> tuple[bool, int, str]:
        number = text.isascii() and text.isdigit()
        return (not number, int(text) if number else 0, text)

    return tuple(part(text) for text in written.split("/", 1))


def rows_on_stream(trace: Trace, lane: Lane) -> npt.NDArray[np.int64]:
    """Rows of ``gpu_ops`` of a stream lane, by start."""
    gpu = next(g for g in trace.gpus if (g.source, g.device) == (lane.source, lane.device))
    on_gpu = trace.on(gpu)
    stream = NULL if lane.stream is None else lane.stream
    rows: npt.NDArray[np.int64] = (
        np.flatnonzero(trace.gpu_ops["stream"][on_gpu] == stream) + on_gpu.start
    )
    return rows


def rows_on_thread(trace: Trace, lane: Lane, table: Table) -> npt.NDArray[np.int64]:
    """Rows of ``host_ops`` or ``launches`` of a thread lane, by start."""
    within = of_source(table, lane.source)
    code = trace.strings.code(lane.thread or "")
    rows: npt.NDArray[np.int64] = np.flatnonzero(table["thread"][within] == code) + within.start
    return rows
