"""A model from a trace: durations, dependencies and lags such that the recording comes out.

The dependencies are those of the critical path's graph
(``analyzers.critical_path.graph``), and the launch queue (``_launch_queue``). What was
waited for last *binds*: its lag, or the pause or work after what came before in the
queue, is what was measured, so executing the unchanged model gives the recorded
begins. The others could have let go later; their lag is the usual one of their kind
(``_lags``), at most what was measured. A delay that no dependency explains is thereby
replayed as it was; its share on the critical path is ``Model.unexplained_ns``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers.critical_path.graph import DependencyGraph
from diagnose.analyzers.critical_path.graph import build as build_graph
from diagnose.analyzers.critical_path.peers import Peers, find_peers
from diagnose.replay._calls import HostPart, host_part
from diagnose.replay._launch_queue import held_calls
from diagnose.replay._operations import GpuPart, gpu_part
from diagnose.replay._recorded import Queues, queues_of
from diagnose.replay._repeated import repeated
from diagnose.replay._unexplained import unexplained
from diagnose.replay._window import Part, Window, part_of, window_of
from diagnose.replay.execute import prepared
from diagnose.replay.model import Array, Calls, Model, Operations
from diagnose.replay.overhead import calibrated
from diagnose.schema import NULL, Activity
from diagnose.trace import Trace

MAX_STEPS = 5
"""Steps replayed: what varies from step to step is averaged, and the cost is bounded."""

UNMATCHED = (
    "{part} of the communication kernels are matched with no other rank: their whole "
    "duration counts as transfer, so waiting for late ranks in them cannot be taken out."
)

CLOCKS = (
    "The clocks of some ranks could not be aligned well: the replayed window may differ from the "
    "recorded one. What repeats does not depend on clocks."
)
TANGLED = Unavailable(
    "the order of the recorded work contradicts itself",
    "it may be damaged: see the notes on the recording, or replay a recording of fewer ranks",
)
NO_STEP_BEFORE = (
    "The step before the only replayed one was not recorded: each step is taken to begin when "
    "the host marks it, and to wait for nothing of the one before."
)


class _Recorded(NamedTuple):
    """Everything known of the replayed steps, before it is numbered as a model."""

    part: Part
    graph: DependencyGraph
    window: Window
    ops: Queues
    calls: Queues
    gpu: GpuPart
    host: HostPart


def build(trace: Trace, max_steps: int = MAX_STEPS) -> Model | Unavailable:
    """The model of the last ``max_steps`` steps in a row that have a time on every GPU.

    Only these and the step before are looked at: the cost does not grow with the recording.
    """
    window = window_of(trace, max_steps)
    if isinstance(window, Unavailable):
        return window
    part = part_of(trace, window)
    peers = find_peers(part.trace)
    graph = build_graph(part.trace, peers)
    ops, calls = queues_of(part.trace, graph, window)
    held = held_calls(part.trace, ops, calls)
    gpu = gpu_part(part.trace, graph, ops, calls)
    host = host_part(part.trace, graph, ops, calls, held)
    recorded = _Recorded(part, graph, window, ops, calls, gpu, host)
    dependencies, entries = repeated(ops, calls, gpu, host, held, window.num_steps)
    begin = _aligned(trace, window, peers)
    origin = int(begin[begin != NULL].min())
    model = Model(
        trace=trace,
        num_steps=window.num_steps,
        operations=_operations(trace, recorded, origin),
        calls=_calls(recorded, origin),
        dependencies=dependencies,
        measured_step_ns=_measured(window),
        unexplained_ns=unexplained(trace, part, graph, window),
        entries=entries._replace(moment_ns=entries.moment_ns - origin),
        begin_ns=np.where(begin != NULL, begin - origin, NULL),
        remarks=_remarks(recorded, peers),
    )
    execution = prepared(model)
    if isinstance(execution, Unavailable):
        return TANGLED
    return replace(model, profiler=calibrated(model, execution))


def _aligned(trace: Trace, window: Window, peers: Peers) -> Array:
    """When the first replayed step began on each GPU, on the common clock."""
    source = np.array([gpu.source for gpu in trace.gpus], np.int64)
    known = window.begin_ns != NULL
    begin = np.full(source.size, NULL)
    begin[known] = peers.aligned(source[known], window.begin_ns[known])
    return begin


def _measured(window: Window) -> npt.NDArray[np.float64]:
    known = window.begin_ns != NULL
    total = np.where(known, window.end_ns - np.where(known, window.begin_ns, 0), 0)
    return np.where(known, total / window.num_steps, np.nan)


def _operations(trace: Trace, recorded: _Recorded, origin: int) -> Operations:
    ops, gpu, part = recorded.ops, recorded.gpu, recorded.part
    at = ops.chosen
    row = ops.row[at]
    table = part.trace.gpu_ops
    place_of = {(g.source, g.device): place for place, g in enumerate(trace.gpus)}
    pairs = zip(table["source"][row].tolist(), table["device"][row].tolist(), strict=True)
    return Operations(
        part.gpu_op_row[row],
        np.array([place_of[pair] for pair in pairs], np.int32),
        _dense(ops.queue[at]),
        (ops.begin_ns[at] - origin).astype(np.float64),
        ops.step[at].astype(np.int32),
        table["activity"][row],
        gpu.duration_ns[at],
        gpu.pause_ns[at],
        gpu.match[at],
        gpu.bytes[at],
    )


def _calls(recorded: _Recorded, origin: int) -> Calls:
    calls, host, part = recorded.calls, recorded.host, recorded.part
    at = calls.chosen
    row = calls.row[at]
    return Calls(
        part.call_row[row],
        part.trace.launches["source"][row],
        _dense(calls.queue[at]),
        (calls.begin_ns[at] - origin).astype(np.float64),
        calls.step[at].astype(np.int32),
        host.work_ns[at],
        host.call_ns[at],
        host.waits[at],
        host.num_events[at],
        host.profiler_ns[at],
    )


def _dense(queue: Array) -> npt.NDArray[np.int32]:
    return np.unique(queue, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _remarks(recorded: _Recorded, peers: Peers) -> tuple[str, ...]:
    remarks = []
    at = recorded.ops.chosen
    activity = recorded.part.trace.gpu_ops["activity"][recorded.ops.row[at]]
    communication = activity == Activity.COMMUNICATION
    alone = communication & (recorded.gpu.match[at] < 0)
    if alone.any():
        remarks.append(UNMATCHED.format(part=f"{alone.sum()} of {communication.sum()}"))
    if not (recorded.window.step_of == -1).any():
        remarks.append(NO_STEP_BEFORE)
    if not peers.comparable.all():
        remarks.append(CLOCKS)
    return tuple(remarks)
