"""Messages split into parts, each of which may begin when its share of the input is ready."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.replay.changes._backward import is_backward
from diagnose.replay.changes._edit import with_operations_like
from diagnose.replay.changes._which import is_communication, stream_order
from diagnose.replay.model import Array, Dependencies, Kind, Mask, Model
from diagnose.schema import NO_ROW

_WAITS = (Kind.EVENT_WAIT, Kind.OBSERVED_ORDER)


class _Inputs(NamedTuple):
    """How the input of each message comes about. Shape (ops,); NO_ROW: not known."""

    producer: Array
    """The operation of another stream that it waits for (the last one on that stream)."""
    lag_ns: Array
    begins: Array
    """Place in the order of the producer's stream after which its input is produced."""


def split(
    model: Model, parts: Array, latency: npt.NDArray[np.float64], chosen: Mask, *, early: bool
) -> Model:
    """Each message ``op`` as ``parts[op]`` ones, of which it becomes the last.

    ``latency``: ns of each that every part has; the rest of the duration is shared.
    ``chosen``: messages whose inputs follow each other. ``early``: parts begin as soon as their
    share of the input is there, by the number of operations; else when all of it is.
    """
    ops = model.operations
    order, before = stream_order(model)
    position = np.empty(order.size, np.int64)
    position[order] = np.arange(order.size)
    inputs = _inputs(model, chosen, position)
    fixed = np.minimum(latency, ops.duration_ns)
    each = np.rint(fixed + (ops.duration_ns - fixed) / parts).astype(np.int64)
    bytes_each = ops.bytes // parts
    like = np.repeat(np.flatnonzero(parts > 1), parts[parts > 1] - 1)
    first = np.zeros(like.size, bool)
    first[:1] = True
    first[1:] = like[1:] != like[:-1]
    number = np.arange(like.size)
    number -= np.maximum.accumulate(np.where(first, number, 0))
    share = (number + 1) / parts[like]
    ahead = before[like]
    low = np.where(ahead >= 0, ops.place[ahead], ops.place[like] - 1)
    # New numbers for the collectives that the parts form: the same on all ranks.
    match = np.where(
        ops.match[like] >= 0,
        int(ops.match.max(initial=-1)) + 1 + ops.match[like] * int(parts.max()) + number,
        NO_ROW,
    )
    ready = order[_ready_at(inputs, position, like, share)]
    ready = np.where((inputs.producer[like] >= 0), ready, NO_ROW)
    if not early:
        ready = np.where(ready >= 0, inputs.producer[like], NO_ROW)
    num = model.num_ops
    whole = parts > 1
    changed = model.with_operations(
        duration_ns=np.where(whole, each, ops.duration_ns),
        bytes=np.where(whole, ops.bytes - bytes_each * (parts - 1), ops.bytes),
    )
    changed = with_operations_like(
        changed,
        like,
        place=low + (ops.place[like] - low) * share,
        duration_ns=each[like],
        bytes=bytes_each[like],
        match=match,
    )
    return _tied(model, changed, num + np.arange(like.size), like, ready, inputs)


def _inputs(model: Model, chosen: Mask, position: Array) -> _Inputs:
    """For each chosen message the operation it waits for, and where its input begins."""
    ops, dependencies = model.operations, model.dependencies
    producer, lag = np.full(model.num_ops, NO_ROW, np.int64), np.zeros(model.num_ops, np.int64)
    begins = np.full(model.num_ops, NO_ROW, np.int64)
    communication = np.append(is_communication(model), np.zeros(model.calls.row.size, bool))
    rows = np.flatnonzero(
        np.isin(dependencies.kind, _WAITS)
        & (dependencies.steps_ahead == 0)
        & ~communication[dependencies.from_node]
    )
    to = dependencies.to_node[rows]
    rows = rows[chosen[to]]
    latest = np.argsort(-position[dependencies.from_node[rows]], kind="stable")
    messages, place = np.unique(dependencies.to_node[rows][latest], return_index=True)
    rows = rows[latest[place]]
    producer[messages], lag[messages] = dependencies.from_node[rows], dependencies.lag_ns[rows]
    start = _backward_begins(model, position)
    messages = np.flatnonzero(chosen & (producer >= 0))
    messages = messages[np.lexsort((ops.place[messages], ops.step[messages], ops.gpu[messages]))]
    last: dict[tuple[int, int], int] = {}
    for op in messages.tolist():
        stream, step = int(ops.stream[producer[op]]), int(ops.step[op])
        begins[op] = last.get((stream, step), start.get((stream, step), position[producer[op]]))
        last[stream, step] = int(position[producer[op]])
    return _Inputs(producer, lag, begins)


def _backward_begins(model: Model, position: Array) -> dict[tuple[int, int], int]:
    """By stream and step: the place before the first operation of the backward pass."""
    ops = model.operations
    found: dict[tuple[int, int], int] = {}
    launched = np.flatnonzero(is_backward(model))
    for op in launched[np.argsort(position[launched], kind="stable")].tolist():
        found.setdefault((int(ops.stream[op]), int(ops.step[op])), int(position[op]) - 1)
    return found


def _ready_at(
    inputs: _Inputs, position: Array, like: Array, share: npt.NDArray[np.float64]
) -> Array:
    """Place of the operation after which each part's share of the input is there."""
    end = position[np.maximum(inputs.producer[like], 0)]
    begin = np.minimum(np.where(inputs.begins[like] >= -1, inputs.begins[like], end), end)
    at: Array = begin + np.ceil((end - begin) * share).astype(np.int64)
    return np.clip(at, 0, max(position.size - 1, 0))


def _tied(
    old: Model, changed: Model, part: Array, like: Array, ready: Array, inputs: _Inputs
) -> Model:
    """The parts wait for their input, and are launched by the thread that launched it."""
    call = old.launch_call()
    num = changed.num_ops
    launches = np.flatnonzero(old.dependencies.kind == Kind.LAUNCH)
    launch_lag = np.zeros(old.num_ops, np.int64)
    launch_lag[old.dependencies.to_node[launches]] = old.dependencies.lag_ns[launches]
    own = call[like]
    by_input = np.where(ready >= 0, np.append(call, NO_ROW)[ready], NO_ROW)
    # Launched right behind the kernel that completes its input, if that is known.
    launcher = np.where((own >= 0) & (by_input >= 0), by_input, own)
    waits, launched = ready >= 0, launcher >= 0
    calls = old.calls
    further = Dependencies(
        np.concatenate([ready[waits], num + launcher[launched]]),
        np.concatenate([part[waits], part[launched]]),
        np.concatenate([inputs.lag_ns[like][waits], launch_lag[like][launched]]),
        np.repeat(np.array([Kind.EVENT_WAIT, Kind.LAUNCH], np.int8), [waits.sum(), launched.sum()]),
        np.zeros(int(waits.sum() + launched.sum()), np.int8),
    )
    call_ns = calls.call_ns.copy()
    # Another part takes another launch, but not within a graph.
    alone = np.bincount(call[call >= 0], minlength=calls.row.size) == 1
    launched &= np.append(alone, False)[own]
    np.add.at(call_ns, launcher[launched], calls.call_ns[own[launched]])
    # A call that waits stays as it is seen: its length is not that of a launch.
    call_ns = np.where(calls.waits, calls.call_ns, call_ns)
    joined = Dependencies.joined([changed.dependencies, further])
    return changed.with_calls(call_ns=call_ns).with_dependencies(joined)
