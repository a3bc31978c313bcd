"""Collectives off the compute stream: on one of their own, beside compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.intervals import covered_length, union
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._edit import usual_event_lag, with_further
from diagnose.replay.changes._gradients import gradient_reductions
from diagnose.replay.changes._optimizer_steps import calls_in_optimizer
from diagnose.replay.changes._slowdown import PRIOR, slowdowns
from diagnose.replay.changes._which import (
    NO_COMMUNICATION,
    is_communication,
    is_compute,
    last_where,
    launch_place,
    next_where,
    stream_order,
)
from diagnose.replay.execute import Times, execute
from diagnose.replay.model import Array, Kind, Mask, Model
from diagnose.schema import NO_ROW

CONSUMERS = (
    "What uses the result of a collective is not in a trace: gradients are taken to be used first "
    "by the optimizer or after a wait of the host, other results at once (most gain: at the end of "
    "the step)."
)


@dataclass(frozen=True, kw_only=True)
class CommunicationStream(Change):
    """Collectives that sit on the compute stream run on a stream of their own beside it.

    Each begins when the operation before it on its old stream has ended, and what follows no
    longer waits until something uses the result. A trace does not say what does: for
    reductions of gradients it is taken to be the first operation launched by the optimizer or
    after a wait of the host; without either, and for other collectives, the next operation.
    Most gain: the end of the step. Compute that gets to run beside them is slowed for the least
    gain by what contention measured here (else 18.9 %), and not at all for the others.
    """

    id = "communication-stream"
    title = "communication on its own stream"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        communication = is_communication(model)
        if not communication.any():
            return NO_COMMUNICATION
        ops = model.operations
        computing = np.zeros(int(ops.stream.max()) + 1, bool)
        computing[ops.stream[is_compute(model)]] = True
        chosen = communication & computing[ops.stream]
        if not chosen.any():
            return Unavailable("no collective runs on a stream that computes")
        moved = np.flatnonzero(chosen)
        changed = _moved(model, moved, chosen)
        consumer, passes = _consumers(model, moved, chosen, assume)
        known = consumer >= 0
        changed = with_further(
            changed,
            moved[known],
            consumer[known],
            usual_event_lag(model),
            Kind.EVENT_WAIT,
            passes[known],
        )
        if assume == Assume.LEAST:
            changed = _slowed(model, changed)
        return changed.remarked(CONSUMERS)


def _moved(model: Model, moved: Array, chosen: Mask) -> Model:
    """The collectives on streams of their own, each after what was before it on the old one."""
    ops = model.operations
    producer = last_where(model, ~chosen)
    stream = ops.stream.copy()
    # One new stream for each old one, so that collectives keep their order on every rank.
    _, new = np.unique(ops.stream[moved], return_inverse=True)
    stream[moved] = int(ops.stream.max()) + 1 + new.reshape(-1)
    of = producer[moved]
    # What has nothing before it in the window follows the end of its stream, a pass earlier.
    passes = (of < 0).astype(np.int8)
    order, _ = stream_order(model)
    rest = order[~chosen[order]]
    last = np.full(int(ops.stream.max()) + 1, NO_ROW, np.int64)
    np.maximum.at(last, ops.stream[rest], np.arange(rest.size))
    last = last[ops.stream[moved]]
    of = np.where(of < 0, np.where(last >= 0, rest[np.maximum(last, 0)], NO_ROW), of)
    known = of >= 0
    changed = model.with_operations(stream=stream)
    lag = usual_event_lag(model)
    return with_further(changed, of[known], moved[known], lag, Kind.EVENT_WAIT, passes[known])


def _consumers(
    model: Model, moved: Array, chosen: Mask, assume: Assume
) -> tuple[Array, npt.NDArray[np.int8]]:
    """For each moved collective the first operation that needs it, and how many passes later."""
    ops = model.operations
    order, _ = stream_order(model)
    rest = order[~chosen[order]]
    # The first other operation of each stream in each step.
    first = np.full((int(ops.stream.max()) + 1, model.num_steps), NO_ROW, np.int64)
    keys, begins = np.unique(
        ops.stream[rest].astype(np.int64) * model.num_steps + ops.step[rest], return_index=True
    )
    first.reshape(-1)[keys] = rest[begins]
    late = ops.step[moved] + 1 == model.num_steps
    end = first[ops.stream[moved], np.where(late, 0, ops.step[moved] + 1)]
    following = next_where(model, ~chosen)[moved]
    user = next_where(model, ~chosen & _uses(model))[moved]
    user = np.where((user >= 0) & (ops.step[user] == ops.step[moved]), user, following)
    use = np.where(gradient_reductions(model)[moved], user, following)
    if assume == Assume.MOST:
        use = end
    use = np.where(use >= 0, use, end)
    return use, (late & (use == end)).astype(np.int8)


def _uses(model: Model) -> Mask:
    """Operations launched first by an optimizer step, or first after a wait of the host."""
    ops, calls, call = model.operations, model.calls, model.launch_call()
    inside = np.append(calls_in_optimizer(model), False)[call]
    place = launch_place(model)
    sources = np.array([gpu.source for gpu in model.trace.gpus], np.int64)[ops.gpu]
    waited = np.zeros(model.num_ops, np.int64)
    for source in np.unique(sources).tolist():
        waits = np.sort(calls.place[(calls.source == source) & calls.waits])
        mine = sources == source
        waited[mine] = np.searchsorted(waits, place[mine])
    found = np.zeros(model.num_ops, bool)
    order = np.lexsort((place, ops.step, sources))
    same = np.zeros(order.size, bool)
    same[1:] = (sources[order][1:] == sources[order][:-1]) & (
        ops.step[order][1:] == ops.step[order][:-1]
    )
    begins = np.zeros(order.size, bool)
    begins[1:] = same[1:] & (
        (inside[order][1:] & ~inside[order][:-1]) | (waited[order][1:] > waited[order][:-1])
    )
    found[order[begins]] = True
    return found


def _slowed(old: Model, changed: Model) -> Model:
    """With compute slowed where it runs beside communication now and did not before."""
    times, before = execute(changed), execute(old)
    if isinstance(times, Unavailable) or isinstance(before, Unavailable):
        return changed
    known = slowdowns(old.trace).overall
    factor = PRIOR[Assume.LIKELY] if known is None else known[Assume.LIKELY]
    further = np.maximum(_beside(changed, times) - _beside(old, before), 0)
    more = np.rint(further * (1 - 1 / factor) * factor).astype(np.int64)
    return changed.with_operations(duration_ns=changed.operations.duration_ns + more)


def _beside(model: Model, times: Times) -> Array:
    """How long each compute operation runs beside communication of its GPU."""
    ops = model.operations
    begin, end = times.begin_ns, times.end_ns
    found = np.zeros(model.num_ops, np.int64)
    communication, compute = is_communication(model), is_compute(model)
    for gpu in np.unique(ops.gpu).tolist():
        moving = communication & (ops.gpu == gpu)
        mine = np.flatnonzero(compute & (ops.gpu == gpu))
        start = end[moving] - ops.duration_ns[moving]
        found[mine] = covered_length(union(start, end[moving]), begin[mine], end[mine])
    return found


CHANGES = (CommunicationStream,)
