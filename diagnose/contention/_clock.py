"""The clock of the multiprocessors at each kernel, as telemetry sampled it.

Between two samples it is interpolated: changes within one interval are not seen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.contention._occurrences import Floats, Mask, Occurrences
from diagnose.intervals import Array
from diagnose.trace import Gpu, Trace

_FARTHEST_NS = 250_000_000
"""A kernel farther than this from every sample has no clock."""
_LEAST_KNOWN = 0.9
"""Share of kernels that need a clock before it is divided out."""


class Clocks(NamedTuple):
    """The clock at each compute kernel, in MHz; NaN where unknown."""

    mhz: Floats
    interval_ns: float
    """Median time between two samples; NaN without any."""

    def told(self, gpu: Array) -> Mask:
        """For each GPU whether enough is known to divide changes out; ``gpu``: of each kernel."""
        num = int(gpu.max(initial=-1)) + 1
        known = np.bincount(gpu, np.isfinite(self.mhz), num)
        found: Mask = known >= _LEAST_KNOWN * np.bincount(gpu, minlength=num)
        return found

    def logarithm(self, gpu: Array) -> Floats:
        """Minus the natural logarithm of the clock in GHz.

        Of kernels without a clock the middle of their GPU's; 0 on GPUs that are not told.
        """
        logs, told = -np.log(self.mhz / 1000), self.told(gpu)
        for number in np.unique(gpu).tolist():
            own = gpu == number
            if not told[number]:
                logs[own] = 0.0
            elif np.isnan(logs[own]).any():
                logs[own & np.isnan(logs)] = np.nanmedian(logs[own])
        return logs


def clocks(trace: Trace, seen: Occurrences) -> Clocks:
    """The clock in the middle of each compute kernel."""
    mhz = np.full(len(seen.row), np.nan)
    gaps = []
    for number, gpu in enumerate(trace.gpus):
        time, clock = readings(trace, gpu, "sm_clock_mhz")
        time, clock = time[clock > 0], clock[clock > 0]
        if len(time) < 2:
            continue
        gaps.append(float(np.median(np.diff(time))))
        rows = np.flatnonzero(seen.gpu == number)
        middle = (seen.start[rows] + seen.end[rows]) // 2
        place = np.searchsorted(time, middle)
        before = middle - time[np.maximum(place - 1, 0)]
        after = time[np.minimum(place, len(time) - 1)] - middle
        near = np.minimum(np.abs(before), np.abs(after)) <= _FARTHEST_NS
        mhz[rows] = np.where(near, np.interp(middle, time, clock), np.nan)
    return Clocks(mhz, float(np.median(gaps)) if gaps else float("nan"))


def readings(trace: Trace, gpu: Gpu, column: str) -> tuple[Array, Floats]:
    """When a sensor of a GPU was read, on the clock of its process, and what it said.

    Telemetry belongs to a process; one that used several GPUs does not say whose it is.
    Processes that share one GPU (the same UUID on the same host) share its telemetry.
    """
    nothing = np.zeros(0, np.int64), np.zeros(0)
    base = trace.sources[gpu.source].base_ns
    if base is None or [one.source for one in trace.gpus].count(gpu.source) > 1:
        return nothing
    known = np.isfinite(trace.samples[column])
    sampled = [gpu.source, *sharing(trace, gpu)]
    for source in sampled:
        own = (trace.samples["source"] == source) & known
        if own.any():
            # Exact in int64 first: unix nanoseconds do not fit a float.
            return trace.samples["unix_ns"][own] - base, trace.samples[column][own]
    return nothing


def sharing(trace: Trace, gpu: Gpu) -> list[int]:
    """Other sources that used this physical GPU and no other, as environment or manifest say."""
    own = _identity(trace, gpu)
    if own is None:
        return []
    sources = [one.source for one in trace.gpus]
    return [
        one.source
        for one in trace.gpus
        if one.source != gpu.source
        and sources.count(one.source) == 1
        and _identity(trace, one) == own
    ]


def _identity(trace: Trace, gpu: Gpu) -> tuple[object, str] | None:
    source = trace.sources[gpu.source]
    return None if source.gpu_uuid is None else (source.host, source.gpu_uuid)
