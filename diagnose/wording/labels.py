"""What causes of stalls, what a GPU does, and GPUs are called."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.analyzers.power.doing import Doing
from diagnose.trace import Trace
from diagnose.wording.plain import plain

CAUSE_LABELS = {
    Cause.HOST_SYNC: "host synchronisation",
    Cause.DATA_LOADING: "data loading",
    Cause.ALLOCATION: "allocation",
    Cause.GARBAGE_COLLECTION: "garbage collection",
    Cause.LOCK: "lock",
    Cause.PYTHON: "Python between operators",
    Cause.HOST_OP: "host busy in operators",
    Cause.LAUNCH_LATENCY: "launch latency",
    Cause.STREAM_WAIT: "wait for another stream",
    Cause.COPY_WAIT: "wait for a copy",
    Cause.SWITCH: "switch between kernels",
    Cause.LAUNCHED_BEFORE_WINDOW: "launch not recorded",
    Cause.WINDOW_EDGE: "edge of the window",
    Cause.UNEXPLAINED: "unexplained",
    Cause.GRAPH_PAUSE: "pause in a CUDA graph",
    Cause.COPY_HTOD_PAGEABLE: "copy from pageable memory",
    Cause.COPY_HTOD_PINNED: "copy from pinned memory",
    Cause.COPY_HTOD: "copy from the host",
    Cause.COPY_DTOH: "copy to the host",
    Cause.COPY_DTOD: "copy within the GPU",
    Cause.COPY_OTHER: "another copy",
    Cause.FILL: "fill",
}
FIRST_COPY = Cause.COPY_HTOD_PAGEABLE
"""From here on a cause is a copy or fill that ran alone: the GPU was not idle."""


def cause_label(name: str) -> str:
    """The label of a cause by its name, as ``host_sync``."""
    return CAUSE_LABELS[Cause[name.upper()]]


DOING_LABELS = {
    Doing.COMPUTE: "compute alone",
    Doing.OVERLAPPED: "compute + comm.",
    Doing.COMMUNICATION: "comm. alone",
    Doing.COPIES: "copies alone",
    Doing.IDLE: "idle",
}
GPU_WIDTH = 40
"""Characters of the name of a GPU; only that of a file is longer."""


def gpu_labels(trace: Trace) -> Mapping[tuple[int, int], str]:
    """``rank 3``; with the GPU's number where a process has several, the file without a rank."""
    gpus = trace.gpus
    several = {gpu.source for gpu in gpus if sum(g.source == gpu.source for g in gpus) > 1}
    return {
        (gpu.source, gpu.device): plain(trace.sources[gpu.source].label, GPU_WIDTH)
        + (f", GPU {gpu.device}" if gpu.source in several else "")
        for gpu in gpus
    }
