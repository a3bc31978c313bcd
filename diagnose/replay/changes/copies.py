"""Changes of copies from the host: from pinned memory, and on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.contention._clock import sharing
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import removed_dependencies_of, usual_event_lag, with_further
from diagnose.replay.changes._which import (
    is_compute,
    is_copy,
    is_from_host,
    is_pageable,
    named,
    next_where,
)
from diagnose.replay.changes.host import waits_of_pageable_copies
from diagnose.replay.model import Array, Kind, Model
from diagnose.schema import NULL

LEAST_BYTES = 1 << 20
"""Copies below take longer to start than to run: their rate says nothing of the link."""
PCIE_GB_PER_S = {12: (25.0, 52.0, 57.0), 9: (25.0, 52.0, 57.0), 8: (12.0, 24.0, 26.0)}
"""Least, likely and most rate of a pinned copy in 10^9 bytes/s, by the major compute capability.
PCIe 5 x16 (Hopper and later) has 63 GB/s before framing and reaches 50 to 57 with CUDA's
bandwidthTest, PCIe 4 x16 (Ampere, Ada) 31.5 and 24 to 26; the least leaves room for a
second GPU behind the same link."""
UNKNOWN_GB_PER_S = (10.0, 25.0, 55.0)
"""Of a GPU whose link is not known: from PCIe 3 to PCIe 5."""

_MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PinnedCopies(Change):
    """Copies from pageable host memory come from pinned memory and do not block the host.

    The copy lasts bytes / rate, at most as long as before: the rate is that of pinned copies
    of 1 MiB and more in this recording, else what the PCIe generation of the GPU gives, as a
    range. The call that copies no longer waits, nor the synchronisation right behind it.
    Assumes that the data lies in pinned memory already (pin_memory=True of a DataLoader
    does that on its own thread) and non_blocking=True.
    """

    id = "pinned-copies"
    title = "copies from pinned memory, non-blocking"
    effort = 1

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        ops = model.operations
        chosen = is_from_host(model) & is_pageable(model)
        if not chosen.any():
            return Unavailable("no copy of the replayed steps is from pageable host memory")
        rate, remark = _pinned_rates(model, assume)
        known = chosen & (ops.bytes != NULL)
        new = np.where(known, ops.bytes, 0) / rate[ops.gpu]
        shorter = np.minimum(np.rint(new).astype(np.int64), ops.duration_ns)
        waits = model.calls.waits & ~waits_of_pageable_copies(model)
        changed = model.with_operations(
            duration_ns=np.where(known, shorter, ops.duration_ns)
        ).with_calls(waits=waits)
        return changed.remarked(remark)


def _pinned_rates(model: Model, assume: Assume) -> tuple[Floats, str]:
    """Of each GPU the rate of copies from pinned memory, in bytes/ns; how it was found."""
    ops = model.operations
    pinned = is_from_host(model) & named(model, "pinned") & (ops.bytes >= LEAST_BYTES)
    pinned &= ops.duration_ns > 0
    measured = ops.bytes[pinned] / np.maximum(ops.duration_ns[pinned], 1)
    if measured.size:
        quartiles = np.percentile(measured, (25, 50, 75))
        rate = float(quartiles[assume])
        told = f"the pinned copies of this recording: {quartiles[1]:.0f} GB/s (median)"
        return np.full(len(model.trace.gpus), rate), f"Copies are taken to be as fast as {told}."
    rates = np.array([_of_link(model, gpu.source) for gpu in model.trace.gpus])
    sharers = np.array([_sharers(model, number) for number in range(len(rates))])
    remark = (
        "No pinned copy of 1 MiB or more was recorded: "
        f"{' or '.join(f'{one:.0f}' for one in sorted(set(rates[:, 1])))} GB/s "
        f"({rates[:, 0].min():.0f} to {rates[:, 2].max():.0f}) are assumed, by the generation of "
        "the GPU."
    )
    if (sharers > 1).any():
        remark += (
            f" Up to {sharers.max()} ranks share a GPU: they are taken to copy at the same time "
            "and to share its link (most gain: one after the other)."
        )
    return rates[:, assume] / (1 if assume == Assume.MOST else sharers), remark


def _sharers(model: Model, number: int) -> int:
    """How many processes use this GPU: by its UUID, else by the share that MPS allows each."""
    gpu = model.trace.gpus[number]
    known = 1 + len(sharing(model.trace, gpu))
    variables = model.trace.sources[gpu.source].environment.get("env")
    said = variables.get(_MPS_SHARE) if isinstance(variables, dict) else None
    try:
        percent = float(str(said))
    except ValueError:
        return known
    return max(known, round(100 / percent)) if 1 <= percent <= 100 else known


def _of_link(model: Model, source: int) -> tuple[float, float, float]:
    said = model.trace.sources[source].environment.get("gpu")
    written = said.get("compute_capability") if isinstance(said, dict) else None
    try:
        major = int(str(written).split(".")[0])
    except ValueError:
        return UNKNOWN_GB_PER_S
    known = [rates for least, rates in PCIE_GB_PER_S.items() if major >= least]
    return known[0] if known else UNKNOWN_GB_PER_S


@dataclass(frozen=True, kw_only=True)
class CopyStream(Change):
    """Copies from the host leave the compute stream for one of their own, a step ahead.

    The copy made in a step is used in the next one: what follows it on its old stream waits
    for the copy of the step before. Needs memory for a second set of inputs. The call that
    copies still waits if it did: see pinned-copies.
    """

    id = "copy-stream"
    title = "copies from the host on a stream of their own, a step ahead"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        ops = model.operations
        computing = np.zeros(int(ops.stream.max(initial=0)) + 1, bool)
        computing[ops.stream[is_compute(model)]] = True
        chosen = is_copy(model) & is_from_host(model) & computing[ops.stream]
        if not chosen.any():
            return Unavailable("no copy from the host runs on a stream that computes")
        consumer = next_where(model, ~chosen)
        moved = np.flatnonzero(chosen)
        stream = ops.stream.copy()
        _, on_gpu = np.unique(ops.gpu[moved], return_inverse=True)
        stream[moved] = int(ops.stream.max()) + 1 + on_gpu.reshape(-1)
        # Its stream no longer orders it; a wait for an event of other streams is for buffers.
        changed = removed_dependencies_of(model, chosen, (Kind.OBSERVED_ORDER, Kind.ROOM))
        changed = changed.with_operations(stream=stream)
        of, to, passes = _a_step_later(model, moved, consumer)
        return with_further(changed, of, to, usual_event_lag(model), Kind.EVENT_WAIT, passes)


def _a_step_later(model: Model, moved: Array, consumer: Array) -> tuple[Array, Array, Array]:
    """Each copy for the consumer of its counterpart one step later; over the end, a pass later.

    Counterparts are the n-th copies of a step on one stream.
    """
    ops = model.operations
    order = moved[np.lexsort((ops.place[moved], ops.step[moved], ops.stream[moved]))]
    at: dict[tuple[int, int, int], int] = {}
    count: dict[tuple[int, int], int] = {}
    keys = []
    for op in order.tolist():
        stream, step = int(ops.stream[op]), int(ops.step[op])
        number = count.get((stream, step), 0)
        count[stream, step] = number + 1
        at[stream, step, number] = op
        keys.append((op, stream, step, number))
    of, to, passes = [], [], []
    for op, stream, step, number in keys:
        late = step + 1 == model.num_steps
        later = at.get((stream, 0 if late else step + 1, number))
        if later is not None and consumer[later] >= 0:
            of.append(op)
            to.append(int(consumer[later]))
            passes.append(int(late))
    return np.array(of, np.int64), np.array(to, np.int64), np.array(passes, np.int8)


CHANGES = (PinnedCopies, CopyStream)
