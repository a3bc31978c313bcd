"""When each GPU operation could have begun, and how long it was held after that.

An operation can begin when it is launched, the one before it on its stream has ended, and what a
recorded stream wait covers has ended. A wait covers work launched before it; work that had not
ended when the operation began cannot have been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Intervals, union
from diagnose.rules._facts import Facts
from diagnose.rules._stream_waits import Lanes, Waits, waited_for, waits_on
from diagnose.schema import NULL, Activity, Call
from diagnose.trace import Gpu, Table

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_NEVER = NULL
_KNOWN: WeakKeyDictionary[Facts, dict[Gpu, Queued]] = WeakKeyDictionary()
"""Worked out once a diagnosis: several rules ask for it."""


@dataclass(frozen=True)
class Queued:
    """The operations of one GPU whose launch is known, in order of launch. Arrays align."""

    ops: Table
    rows: Array
    """Of ``gpu_ops``."""
    launched_ns: Array
    """Begin of the call that launched it."""
    own_ns: Array
    """End of the operation before it on its stream; the smallest int64 where there is none."""
    before: Array
    """Place of the operation before it on its stream; -1: none."""
    waited_ns: Array
    """End of what recorded waits made it wait for; the smallest int64: of nothing."""
    free_ns: Array
    """When neither its launch nor a recorded wait held it any more; at most its start."""
    ready_ns: Array
    """When nothing known held it any more; at most its start."""
    in_steps: Mask
    """Whether it belongs to the steps that figures are means over."""
    waits: Waits

    @property
    def waits_recorded(self) -> bool:
        """Whether any wait of a stream was: without, data may order what nothing recorded does."""
        return bool(self.waits)

    @property
    def held_ns(self) -> Array:
        """From ready to start: nothing that was recorded explains this time."""
        held: Array = self.ops["start_ns"] - self.ready_ns
        return held

    @property
    def communicates(self) -> Mask:
        """Which operations are communication."""
        found: Mask = self.ops["activity"] == Activity.COMMUNICATION
        return found

    @property
    def computes(self) -> Mask:
        """Which operations are compute."""
        found: Mask = self.ops["activity"] == Activity.COMPUTE
        return found

    def during(self, wanted: Mask) -> Intervals:
        """When any of some operations runs."""
        return union(self.ops["start_ns"][wanted], self.ops["end_ns"][wanted])


def queued_on(facts: Facts, gpu: Gpu) -> Queued:
    """The operations of a GPU launched one by one; those of CUDA graphs are left out."""
    known = _KNOWN.setdefault(facts, {})
    if gpu not in known:
        known[gpu] = _queued(facts, gpu)
    return known[gpu]


def _queued(facts: Facts, gpu: Gpu) -> Queued:
    trace = facts.trace
    ops = trace.gpu_ops.take(trace.on(gpu))
    rows = np.arange(trace.on(gpu).start, trace.on(gpu).stop)
    row = ops["launch_row"]
    single = ops.known("launch_row") & ops.known("stream")
    single &= trace.launches["call"][np.where(row >= 0, row, 0)] != Call.GRAPH_LAUNCH
    chosen = np.flatnonzero(single)
    call = row[chosen]
    chosen = chosen[np.lexsort((ops["start_ns"][chosen], trace.launches["start_ns"][call]))]
    ops, rows = ops.take(chosen), rows[chosen]
    launched = trace.launches["start_ns"][ops["launch_row"]]
    returned = trace.launches["end_ns"][ops["launch_row"]]
    lanes = Lanes(ops, launched)
    own, before = _before_on_stream(ops, lanes)
    start = ops["start_ns"]
    waits = waits_on(facts, gpu)
    waited = waited_for(waits, ops, lanes, own)
    free = np.minimum(np.maximum(returned, waited), start)
    steps = np.isin(ops["op_id"], facts.operations_per_step(gpu)["op_id"])
    return Queued(
        ops=ops,
        rows=rows,
        launched_ns=launched,
        own_ns=own,
        before=before,
        waited_ns=waited,
        free_ns=free,
        ready_ns=np.minimum(np.maximum(free, own), start),
        in_steps=steps,
        waits=waits,
    )


def _before_on_stream(ops: Table, lanes: Lanes) -> tuple[Array, Array]:
    """End and place of the operation before each on its stream."""
    own = np.full(len(ops), _NEVER, np.int64)
    before = np.full(len(ops), -1, np.int64)
    for stream, mine in lanes.rows.items():
        own[mine[1:]] = lanes.ends[stream][:-1]
        before[mine[1:]] = mine[:-1]
    return own, before
