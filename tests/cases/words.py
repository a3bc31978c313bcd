"""From the words of the cases to the names of this project."""

from __future__ import annotations

from diagnose.errors import DamagedInputError, EmptyInputError, InputError, NotATraceError
from diagnose.schema import Activity

NOTES = {
    "text-repaired": "text-repaired",
    "value-not-finite": "value-not-finite",
    "invalid-timestamp": "invalid-timestamp",
    "truncated": "truncated",
    "unmatched-begin": "unmatched-begin",
    "no-gpu-events": "no-gpu-events",
    "rank-unknown": "rank-unknown",
    "duplicate-rank": "duplicate-rank",
    "same-stream-overlap": "same-stream-overlap",
}
"""Warning of a case -> code of a note."""

FALSE_ALARMS = {
    "text-repaired",
    "value-not-finite",
    "invalid-timestamp",
    "truncated",
    "unmatched-begin",
    "same-stream-overlap",
}
"""Warnings of damage: wrong where the case does not ask for them."""

LEFT_OUT = ("invalid-timestamp", "unmatched-begin")
"""Notes that count GPU events which were left out."""

ERRORS: dict[str, type[InputError]] = {
    "truncated": DamagedInputError,
    "empty-file": EmptyInputError,
    "not-a-trace": NotATraceError,
}
"""Refusal of a case -> class of the error. Its ``code`` is the case's word."""

CLASSES = {
    "compute": Activity.COMPUTE,
    "communication": Activity.COMMUNICATION,
    "memory": Activity.MEMORY,
}

COLLECTIVES = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
"""Collective as a case writes it -> the one spelling of this project."""

METRICS = {
    "gpu_event_count": "num_ops",
    "compute_us": "compute_ns",
    "comm_us": "communication_ns",
    "memory_us": "memory_ns",
    "overlapped_us": "overlapped_ns",
    "exposed_comm_us": "exposed_communication_ns",
    "overlap_pct": "overlap_pct",
    "busy_us": "busy_ns",
    "window_us": "window_ns",
    "idle_us": "idle_ns",
    "step_us": "step_ns",
}
"""Metric of a case -> column of ``overlap``."""

CONTENTION = {
    "alone_us": "alone_ns",
    "overlapped_us": "overlapped_duration_ns",
    "cost_us": "cost_ns",
    "slowdown": "slowdown",
    "coverage_pct": "coverage_pct",
    "num_alone": "num_alone",
    "num_overlapped": "num_overlapped",
    "num_paired": "num_paired",
}
"""Figure of a kernel beside communication in a case -> column of ``contention_kernels``."""

BANDWIDTHS = {"algbw_GBps": "algbw_gb_per_s", "busbw_GBps": "busbw_gb_per_s"}

EVIDENCE = {
    "comm_us": "communication_ns",
    "count": "num_waits",
    "cost_us": "cost_ns",
    "exposed_comm_us": "exposed_communication_ns",
    "host_wait_us": "host_wait_ns",
    "idle_us": "idle_ns",
    "lost_us_per_step": "lost_per_step_ns",
    "op": "operator",
    "slowdown": "slowdown_ratio",
}
"""Figure of a finding in a case -> key of its evidence. Times are per step, or of the window."""
