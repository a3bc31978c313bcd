"""Changes of what the host does: waiting for the GPU, allocating, collecting garbage."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import removed
from diagnose.replay.changes._host_gaps import HostSpan, taken_by, without_host_time
from diagnose.replay.changes._host_spans import spans_around, without_spans
from diagnose.replay.changes._which import call_kinds, is_from_host, is_pageable, next_call, of_rows
from diagnose.replay.model import Mask, Model
from diagnose.schema import NO_ROW, Call

BLOCKING_SHARE = 0.9
"""Of the launches: as many return only after their kernel has ended where launches block. Else
the launch takes microseconds and its kernel begins after it has returned."""
BRINGS_VALUES = re.compile(r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$")
"""Operators of PyTorch that are there to bring a value, or a number of elements, to the host."""
LAUNCH_CALL_NS = (10_000, 5_000, 2_000)
"""What a launch takes the host when it does not block (least, likely, most gain): 2 us is the
least known for cudaLaunchKernel on current hosts, 5 us the median of the recordings of one H200
with the profiler watching, 10 us leaves room for slower hosts."""


def waits_of_pageable_copies(model: Model) -> Mask:
    """Calls that wait for a copy from pageable memory: the copy itself, and the
    synchronisation that PyTorch puts right behind it. Shape (calls,)."""
    call = model.launch_call()
    copying = is_from_host(model) & is_pageable(model) & (call >= 0)
    found = np.zeros(model.calls.row.size, bool)
    found[call[copying]] = True
    behind = next_call(model)[np.flatnonzero(found)]
    behind = behind[behind >= 0]
    found[behind[call_kinds(model)[behind] == Call.SYNCHRONIZE]] = True
    return found & model.calls.waits


@dataclass(frozen=True, kw_only=True)
class NoHostSync(Change):
    """The host no longer waits for the GPU: no .item(), .cpu() or synchronize() within the step.

    The calls that wait, and copies to the host that block, return at once. The operators that
    exist to bring a value to the host (aten::item, aten::_local_scalar_dense, aten::is_nonzero,
    aten::nonzero) are taken out with their waits: their host time, launches, kernels and copies
    (least gain: all that stays, as where the value is still needed, only later). What
    computes the value stays, and so does the work on the host before and after. With
    ``keep_last=true`` the last wait of each step stays. Where every launch blocked
    (CUDA_LAUNCH_BLOCKING=1) launches return after 5 us (2 to 10 us). Copies from pageable memory
    go on waiting (see pinned-copies), and so do allocations (see no-allocator-calls).
    Assumes that the host does not need the values to go on.
    """

    id = "no-host-sync"
    title = "host synchronisations removed"
    keep_last: bool = False

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        calls = model.calls
        freed = calls.waits & (call_kinds(model) != Call.ALLOCATE)
        freed &= ~waits_of_pageable_copies(model)
        if self.keep_last:
            freed &= ~_last_waits(model)
        blocking = _blocking_launches(model)
        if not freed.any() and not blocking.any():
            return Unavailable("no host call of the replayed steps waits for the GPU")
        changed = model if assume == Assume.LEAST else _without_reading(model, freed, assume)
        call_ns = changed.calls.call_ns
        call_ns = np.where(blocking, np.minimum(call_ns, LAUNCH_CALL_NS[assume]), call_ns)
        return changed.with_calls(waits=calls.waits & ~freed, call_ns=call_ns)


def _without_reading(model: Model, freed: Mask, assume: Assume) -> Model:
    """The same without the operators that only brought values to the host, by ``freed`` calls."""
    rows, inside = spans_around(model, BRINGS_VALUES, freed, model.calls.waits & ~freed)
    if not rows.size:
        return model
    shorter = without_spans(model, rows, assume)
    bare = removed(shorter, np.append(inside, False)[shorter.launch_call()])
    return bare.with_calls(call_ns=np.where(inside, 0, bare.calls.call_ns))


def _last_waits(model: Model) -> Mask:
    """The last call that waits of each process in each step."""
    calls = model.calls
    waits = np.flatnonzero(calls.waits)
    order = waits[np.lexsort((calls.place[waits], calls.step[waits], calls.source[waits]))]
    last = np.ones(order.size, bool)
    last[:-1] = (calls.step[order][1:] != calls.step[order][:-1]) | (
        calls.source[order][1:] != calls.source[order][:-1]
    )
    found = np.zeros(calls.row.size, bool)
    found[order[last]] = True
    return found


def _blocking_launches(model: Model) -> Mask:
    """Launches that returned only when their kernel had ended, if nearly all did."""
    call, trace = model.launch_call(), model.trace
    ops = np.flatnonzero((call >= 0) & (model.operations.row >= 0))
    row = model.calls.row[call[ops]]
    launches = (row >= 0) & (of_rows(trace.launches, "call", row, NO_ROW) == Call.LAUNCH)
    ops, row = ops[launches], row[launches]
    found = np.zeros(model.calls.row.size, bool)
    if not ops.size:
        return found
    ended = trace.gpu_ops["end_ns"][model.operations.row[ops]]
    blocked = trace.launches["end_ns"][row] >= ended
    if blocked.mean() >= BLOCKING_SHARE:
        found[call[ops[blocked]]] = True
    return found


@dataclass(frozen=True, kw_only=True)
class NoAllocatorCalls(Change):
    """No calls into the GPU's allocator (cudaMalloc, cudaFree, cudaHostAlloc) within the step.

    They take no time and wait for nothing; a synchronisation right before one (as
    torch.cuda.empty_cache() makes) does not wait either. Memory that is kept does not go back
    to others. The host's work around the calls stays.
    """

    id = "no-allocator-calls"
    title = "allocator calls removed"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        calls, kinds = model.calls, call_kinds(model)
        allocates = kinds == Call.ALLOCATE
        if not allocates.any():
            return Unavailable("no call of the replayed steps allocates or frees GPU memory")
        following = next_call(model)
        implied = (
            (kinds == Call.SYNCHRONIZE) & (following >= 0) & np.append(allocates, 0)[following]
        )
        gone = allocates | implied.astype(bool)
        return model.with_calls(waits=calls.waits & ~gone, call_ns=np.where(gone, 0, calls.call_ns))


@dataclass(frozen=True, kw_only=True)
class NoGarbageCollection(Change):
    """Python collects no garbage within the step.

    The time of recorded collections is taken out of the work between calls. They are seen
    where the profiler recorded Python functions or garbage collection.
    """

    id = "no-garbage-collection"
    title = "garbage collection kept out of the step"
    effort = 1

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        collecting = taken_by(model, HostSpan.GARBAGE)
        if not collecting.any():
            return Unavailable(
                "no garbage collection was recorded between the calls of the replayed steps",
                "record with Python functions (with_stack=True)",
            )
        return without_host_time(model, collecting)


CHANGES = (NoHostSync, NoAllocatorCalls, NoGarbageCollection)
