"""Copies from the host to one GPU, per step, for several rules."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import Cause, copy_causes
from diagnose.intervals import union_length
from diagnose.rules._facts import Facts
from diagnose.schema import Activity
from diagnose.trace import Gpu, Table


class Memory(Enum):
    """What kind of host memory is copied from."""

    PAGEABLE = Cause.COPY_HTOD_PAGEABLE
    PINNED = Cause.COPY_HTOD_PINNED


class Copies(NamedTuple):
    """Figures are per step."""

    number: float
    length_ns: float
    """Of their union."""
    alone_ns: float
    """Of it, without compute or communication beside."""
    num_bytes: float
    streams: tuple[int, ...]


def copies_on(
    facts: Facts, gpu: Gpu, memory: Memory, *, least_bytes: int = 0, compute_stream: bool = False
) -> Copies:
    """Copies from one kind of host memory, of ``least_bytes`` or more each.

    ``compute_stream``: only those in the queue that carries most of the compute. Copies whose
    size was not recorded count as large enough.
    """
    ops, cause = facts.operations_per_step(gpu), _causes(facts, gpu)
    chosen = cause == memory.value
    chosen &= ~ops.known("bytes") | (ops["bytes"] >= least_bytes)
    if compute_stream:
        main = _main_stream(ops)
        chosen &= ops.known("stream") & (ops["stream"] == main) if main is not None else False
    copies, number = ops.take(chosen), facts.steps[gpu].number
    length = union_length(copies["start_ns"], copies["end_ns"])
    working = ops.take(ops["activity"] != Activity.MEMORY)
    start = np.concatenate([copies["start_ns"], working["start_ns"]])
    end = np.concatenate([copies["end_ns"], working["end_ns"]])
    alone = union_length(start, end) - union_length(working["start_ns"], working["end_ns"])
    sizes = copies["bytes"][copies.known("bytes")]
    return Copies(
        number=len(copies) / number,
        length_ns=length / number,
        alone_ns=alone / number,
        num_bytes=float(sizes.sum()) / number,
        streams=tuple(np.unique(copies["stream"][copies.known("stream")]).tolist()),
    )


def _causes(facts: Facts, gpu: Gpu) -> npt.NDArray[np.int8]:
    """What kind of copy each row of ``operations_per_step`` is."""
    causes = copy_causes(facts.trace)
    known = np.isin(facts.trace.gpu_ops["op_id"], facts.operations_per_step(gpu)["op_id"])
    found: npt.NDArray[np.int8] = causes[known]
    return found


def _main_stream(ops: Table) -> int | None:
    compute = ops.take((ops["activity"] == Activity.COMPUTE) & ops.known("stream"))
    if not len(compute):
        return None
    streams, at = np.unique(compute["stream"], return_inverse=True)
    lengths = np.bincount(at.reshape(-1), compute["end_ns"] - compute["start_ns"])
    return int(streams[lengths.argmax()])
