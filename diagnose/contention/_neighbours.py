"""Other processes of the recording on the same physical GPU (MPS): a company that twins must share.

Compute of another rank slows a kernel whether or not communication runs beside it. If it
ran beside the twins and not beside the overlapped kernel, or the reverse, their ratio is of
both. Ranks that run in step compute at the same time where nothing separates them, and drift
apart where communication does, so this is the rule rather than chance: on one H200 that two
ranks shared, additions beside point-to-point traffic appeared 10 % *faster* than alone.
"""

from __future__ import annotations

import numpy as np

from diagnose.contention._clock import sharing
from diagnose.contention._occurrences import Floats, Mask, Occurrences
from diagnose.contention._twins import quantile_by
from diagnose.intervals import Array, covered_length, union
from diagnose.schema import Activity
from diagnose.trace import Gpu, Trace

_SAME_SHARE = 0.1
"""How far the share of a kernel's time may lie from that of its twins."""


def company(trace: Trace, seen: Occurrences) -> Floats:
    """Share of each kernel's time in which another process computed on its GPU.

    As far as the trace shows: other ranks whose environment names the same GPU of the same
    host. 0 where there are none.
    """
    found = np.zeros(len(seen.row))
    for number, gpu in enumerate(trace.gpus):
        base = trace.sources[gpu.source].base_ns
        others = [] if base is None else sharing(trace, gpu)
        if not others:
            continue
        parts = [_compute(trace, one, base or 0) for one in trace.gpus if one.source in others]
        begin, stop = (np.concatenate(part) for part in zip(*parts, strict=True))
        own = np.flatnonzero((seen.gpu == number) & (seen.duration > 0))
        length = covered_length(union(begin, stop), seen.start[own], seen.end[own])
        found[own] = length / seen.duration[own]
    return found


def _compute(trace: Trace, gpu: Gpu, base_ns: int) -> tuple[Array, Array]:
    """When a GPU's compute kernels ran, in nanoseconds since ``base_ns``; empty if not known."""
    own = trace.sources[gpu.source].base_ns
    ops = trace.gpu_ops.take(trace.on(gpu))
    computes = (ops["activity"] == Activity.COMPUTE) & (own is not None)
    offset = (own or 0) - base_ns
    return ops["start_ns"][computes] + offset, ops["end_ns"][computes] + offset


def usual(group: Array, share: Floats, num_groups: int) -> Floats:
    """The company that twins of each group had: the median. NaN without twins."""
    return quantile_by(group, share, 0.5, num_groups)


def same_company(share: Floats, of_twins: Floats) -> Mask:
    """Whether each kernel had the company of its twins; true where nothing is known of them."""
    found: Mask = ~(np.abs(share - of_twins) > _SAME_SHARE)
    return found
