"""What a recording does, as durations and dependencies: the thing that a change edits.

A ``Model`` holds the work of the replayed steps as *operations* (GPU) and *calls* (host),
each in a queue (a stream of a GPU, a thread of a process) and in order in it, and the
*dependencies* between queues. It holds no start times: those come from executing it
(``diagnose.replay.execute``). With b, e the begin and end of an operation, s and r the
start and return of a call:

    b(op)   >= e(op before it on its stream) + pause(op)
    b(op)   >= moment of each dependency into it + lag
    e(op)    = max(b(op), begin of the last member of its collective) + duration(op)
    s(call) >= r(call before it on its thread) + work(call)
    s(call) >= moment of each dependency into it + lag, HOST_WAIT excepted
    r(call) >= s(call) + call_ns(call)
    r(call) >= moment of each HOST_WAIT into it + lag, if the call waits

and everything happens as early as these allow. The moment of a dependency is the end of
an operation that it comes from; of a call the return for HANDOFF, else the start. A call
that the full launch queue held back starts when there is room (QUEUE_LIMIT). Pauses, work
and lags below zero are allowed: programmatic dependent launches begin before the
operation ahead has ended.

When the steps repeat, the first operation or call of each queue follows the last one of
the pass before, with the same pause or work. A change returns a new ``Model``; it never
touches the arrays of the one that it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.schema import NO_ROW
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Kind(IntEnum):
    """Why one thing waits for another on another queue."""

    LAUNCH = 0
    """An operation for the start of the call that launched it."""
    EVENT_WAIT = 1
    """An operation for an operation of another stream, by a recorded stream wait."""
    OBSERVED_ORDER = 2
    """The same, concluded from the times where waits are not recorded."""
    ROOM = 3
    """An operation for one that held the multiprocessors it needed."""
    HANDOFF = 4
    """A call for the return of one on another thread, which handed it the work (backward).
    The lag is the host's work on both threads in between."""
    HOST_WAIT = 5
    """The return of a call for the end of an operation."""
    QUEUE_LIMIT = 6
    """A call for the end of an operation far ahead of its own on its stream: the host cannot
    run ahead without end."""


class Dependencies(NamedTuple):
    """Equal-length arrays. A node is an operation (its place in ``Model``) or ``num_ops`` + call.

    From an operation counts its end; from a call its start, for HANDOFF its return.
    Into an operation: its begin; into a call: its start, for HOST_WAIT its return.
    HOST_WAIT into a call that does not wait counts for nothing.
    """

    from_node: Array
    to_node: Array
    lag_ns: Array
    kind: npt.NDArray[np.int8]
    steps_ahead: npt.NDArray[np.int8]
    """How many passes over the replayed steps earlier the ``from_node`` is (0: the same pass)."""

    def take(self, which: npt.NDArray[Any]) -> Dependencies:
        """Those at ``which`` (indices or a mask)."""
        return Dependencies(*(column[which] for column in self))

    @staticmethod
    def joined(parts: list[Dependencies]) -> Dependencies:
        """All of ``parts``, one after the other."""
        return Dependencies(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Operations:
    """GPU operations, in the order of (stream, place). Every array has shape (ops,)."""

    row: Array
    """Row of ``Trace.gpu_ops``; NO_ROW for one that a change added."""
    gpu: npt.NDArray[np.int32]
    """Place of its GPU in ``Trace.gpus``."""
    stream: npt.NDArray[np.int32]
    """Number of its queue; streams of all GPUs are numbered through."""
    place: npt.NDArray[np.float64]
    """Its order within the stream."""
    step: npt.NDArray[np.int32]
    """Which of the replayed steps launched it, from 0."""
    activity: npt.NDArray[np.int8]
    """``schema.Activity``."""
    duration_ns: Array
    """For a member of a matched collective the transfer: without waiting for late ranks."""
    pause_ns: Array
    """Least time after the operation before it on the stream."""
    match: Array
    """The collective that it is part of, across ranks; -1: none."""
    bytes: Array
    """Message size as nccl-tests counts it, bytes copied; ``schema.NULL``: unknown."""


@dataclass(frozen=True)
class Calls:
    """Host calls that launch work or wait, in order of (thread, place). Shape (calls,)."""

    row: Array
    """Row of ``Trace.launches``; NO_ROW for one that a change added."""
    source: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    """Number of its queue; threads of all processes are numbered through."""
    place: npt.NDArray[np.float64]
    step: npt.NDArray[np.int32]
    work_ns: Array
    """What the host did since the return of the call before it on the thread."""
    call_ns: Array
    """The call itself, without waiting for the GPU."""
    waits: Mask
    """Whether it returns only when the GPU has got somewhere."""
    num_events: Array
    """Events that the profiler recorded during work (or handoff) and call: what it cost."""
    profiler_ns: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of work and call, what the profiler took in one piece: for buffers, to feed a CUDA graph
    node by node. Empty: nothing."""


class ProfilerCost(NamedTuple):
    """What the profiler cost the host for every event that it recorded, in ns.

    See ``diagnose.replay.overhead``.
    """

    low_ns: float
    likely_ns: float
    high_ns: float
    basis: tuple[str, ...] = ()
    """How that was found, in whole sentences."""
    gpu_share: float = 1.0
    """Time that the GPU takes without the profiler, over what it took in the window."""


NO_COST = ProfilerCost(0.0, 0.0, 0.0)


class Entries(NamedTuple):
    """What the replayed steps found when they began, as recorded: equal-length arrays.

    A call may not start and an operation not begin before ``moment_ns``, which stems from
    work before the replayed steps. Nodes as in ``Dependencies``, and from ``num_ops +
    num_calls`` on returns of calls. For the window as recorded only; a change need not keep them.
    """

    node: Array
    moment_ns: Array


def no_entries() -> Entries:
    """For a model that is not a window."""
    return Entries(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class Model:
    """See the module. ``trace`` is what it was made of: names, sizes, telemetry."""

    trace: Trace
    num_steps: int
    operations: Operations
    calls: Calls
    dependencies: Dependencies
    measured_step_ns: npt.NDArray[np.float64]
    """Mean measured time of the replayed steps per GPU, shape (gpus,). NaN: not known."""
    unexplained_ns: npt.NDArray[np.float64]
    """Per GPU and step: pauses on the critical path that no dependency explains; they are
    part of ``pause_ns`` or ``work_ns`` all the same. NaN: not known."""
    entries: Entries = field(default_factory=no_entries)
    begin_ns: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """When the first replayed step begins on each GPU, on the clock of ``entries``."""
    profiler: ProfilerCost = NO_COST
    remarks: tuple[str, ...] = field(default=())
    """What a change could not do, or had to assume, in whole sentences."""

    @property
    def num_ops(self) -> int:
        """Number of operations; nodes from here on are calls."""
        return len(self.operations.row)

    def with_operations(self, **columns: npt.NDArray[Any]) -> Model:
        """The same with other columns of ``operations``."""
        return replace(self, operations=replace(self.operations, **columns))

    def with_calls(self, **columns: npt.NDArray[Any]) -> Model:
        """The same with other columns of ``calls``."""
        return replace(self, calls=replace(self.calls, **columns))

    def with_dependencies(self, dependencies: Dependencies) -> Model:
        """The same with other dependencies."""
        return replace(self, dependencies=dependencies)

    def remarked(self, *sentences: str) -> Model:
        """The same with further remarks; a sentence that is there already is not repeated."""
        new = tuple(s for s in dict.fromkeys(sentences) if s not in self.remarks)
        return replace(self, remarks=self.remarks + new)

    def launch_call(self) -> Array:
        """For each operation the call that launched it; NO_ROW: none known. Shape (ops,)."""
        found = np.full(self.num_ops, NO_ROW, np.int64)
        launches = self.dependencies.take(self.dependencies.kind == Kind.LAUNCH)
        found[launches.to_node] = launches.from_node - self.num_ops
        return found
