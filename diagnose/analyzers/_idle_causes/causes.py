"""The causes that a stall can have, and how sure one is."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from diagnose.schema import Kind
from diagnose.trace import Trace

LAUNCH_LATENCY_NS = 15_000
"""Start - launch below which nothing was queued (HolisticTraceAnalysis' launch statistics)."""
SWITCH_NS = 10_000
"""Longest pause between dependent kernels that needs no further reason."""
COPY_SWITCH_NS = 20_000
"""The same where one of the two is a copy: another engine takes over."""
ABSENT_NS = 1_000_000
"""A host that was away this long before a step is late on its own, even after a synchronisation."""

TAKEN_BYTES = 1 << 20
"""Copied to the host since the last kernel, from which on a host that is away before a step is
taken to work on what it was given (a checkpoint), not to wait for input; a loss is smaller."""


class Cause(IntEnum):
    """Why a GPU neither computed nor communicated."""

    HOST_SYNC = 0
    """The host waited for the GPU, and launched too late afterwards."""
    DATA_LOADING = 1
    """The host waited for input."""
    ALLOCATION = 2
    """The host allocated or freed GPU or pinned memory."""
    GARBAGE_COLLECTION = 3
    """Python collected garbage."""
    LOCK = 4
    """The launching thread waited for a lock."""
    PYTHON = 5
    """The launching thread was between operators: Python, or nothing recorded."""
    HOST_OP = 6
    """The host was busy in operators and launches: launch-bound when kernels are short."""
    LAUNCH_LATENCY = 7
    """Launched just before; the few microseconds from call to start."""
    STREAM_WAIT = 8
    """Launched early, but made to wait for work of another stream."""
    COPY_WAIT = 9
    """Waited for a copy: of another stream, or one that held up the host."""
    SWITCH = 10
    """The pause between one operation and the next on a stream."""
    LAUNCHED_BEFORE_WINDOW = 11
    """The next operation's launch was not recorded."""
    WINDOW_EDGE = 12
    """Nothing comes before or after within the window."""
    UNEXPLAINED = 13
    """Launched early, and nothing in the trace says what it waited for."""
    GRAPH_PAUSE = 14
    """The pause between two operations of one CUDA graph replay, longer than a switch."""
    COPY_HTOD_PAGEABLE = 15
    """Only a copy from pageable host memory ran."""
    COPY_HTOD_PINNED = 16
    """Only a copy from pinned host memory ran."""
    COPY_HTOD = 17
    """Only a copy from host memory ran; which kind of memory is not recorded."""
    COPY_DTOH = 18
    """Only a copy to the host ran."""
    COPY_DTOD = 19
    """Only a copy within the GPU ran."""
    COPY_OTHER = 20
    """Only another copy ran."""
    FILL = 21
    """Only a fill (memset) ran."""


class Confidence(IntEnum):
    """How sure a cause is."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


def copy_causes(trace: Trace) -> npt.NDArray[np.int8]:
    """The cause that a memory operation is when it runs alone. int8, shape (gpu_ops,)."""
    ops = trace.gpu_ops
    cause = np.full(len(ops), Cause.COPY_OTHER, np.int8)

    def named(*parts: str) -> npt.NDArray[np.bool_]:
        hit = trace.strings.where(
            lambda text: any(part in text.lower().replace(" ", "") for part in parts)
        )
        found: npt.NDArray[np.bool_] = hit[ops["name"]]
        return found

    if len(ops):
        cause[named("dtod", "devicetodevice")] = Cause.COPY_DTOD
        cause[named("dtoh", "devicetohost")] = Cause.COPY_DTOH
        up = named("htod", "hosttodevice")
        cause[up] = Cause.COPY_HTOD
        cause[up & named("pageable")] = Cause.COPY_HTOD_PAGEABLE
        cause[up & named("pinned")] = Cause.COPY_HTOD_PINNED
        cause[ops["kind"] == Kind.MEMSET] = Cause.FILL
    return cause


def taken_bytes(trace: Trace, causes: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    """Bytes copied to the host since the last kernel of the GPU, up to each operation's end.

    ``causes`` are ``copy_causes``. int64, shape (gpu_ops,); copies of unknown size count as 0.
    """
    ops = trace.gpu_ops
    to_host = (ops["kind"] == Kind.MEMCPY) & (causes == Cause.COPY_DTOH) & ops.known("bytes")
    total = np.cumsum(np.where(to_host, ops["bytes"], 0), dtype=np.int64)
    before = np.zeros(len(ops), np.int64)
    for gpu in trace.gpus:
        mine = trace.on(gpu)
        kernel = ops["kind"][mine] == Kind.KERNEL
        begun = int(total[mine.start - 1]) if mine.start else 0
        since = np.maximum.accumulate(np.where(kernel, total[mine], begun))
        before[mine] = since
    return total - before
