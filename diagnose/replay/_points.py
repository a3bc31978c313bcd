"""A model as moments in queues: what ``_schedule`` orders and ``_scan`` computes.

A *point* is a moment that is to be found: the begin of an operation, for a member of a
collective also when all its members have begun, the start of a call, for one that
waits also its return. A collective itself is a point (its *hub*) in a queue of its own: so n
members need 2n dependencies, not n(n-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.replay.model import Array, Kind, Mask, Model


class Ties(NamedTuple):
    """Dependencies between points: ``moment[to] >= moment[of] + weight``. Equal lengths."""

    of: Array
    to: Array
    is_launch: Mask
    passes: Array
    """How many passes earlier ``of`` is."""


@dataclass(frozen=True)
class Points:
    """Every point has its place in its queue; queues stand one after the other.

    ``op_order`` and ``call_order`` sort operations and calls by queue and place;
    ``op_first``, ``op_last``, ``call_first``, ``call_last`` are their points (the same
    where there is one only), shape (ops,) and (calls,).
    """

    num: int
    is_head: Mask
    """First of its queue. Shape (points,)."""
    op_order: Array
    call_order: Array
    op_first: Array
    op_last: Array
    call_first: Array
    call_last: Array
    ties: Ties
    dependency: Array
    """For each of ``ties`` the dependency of the model; -1: begin to hub, or hub to member."""


def points_of(model: Model) -> Points:
    """The points of a model and what ties them, without durations."""
    ops, calls = model.operations, model.calls
    hub, num_hubs = _hubs(ops.match)
    op_order = np.lexsort((ops.place, ops.stream))
    call_order = np.lexsort((calls.place, calls.thread))
    op_first, op_last, num = _laid_out(op_order, hub >= 0, 0)
    call_first, call_last, num = _laid_out(call_order, calls.waits, num)
    is_head = np.zeros(num + num_hubs, bool)
    is_head[op_first[op_order[_heads(ops.stream[op_order])]]] = True
    is_head[call_first[call_order[_heads(calls.thread[call_order])]]] = True
    is_head[num:] = True
    ties, dependency = _ties(model, op_first, op_last, call_first, call_last)
    members = np.flatnonzero(hub >= 0)
    zero = np.zeros(2 * members.size, np.int64)
    hubs = Ties(
        np.concatenate([op_first[members], num + hub[members]]),
        np.concatenate([num + hub[members], op_last[members]]),
        zero.astype(bool),
        zero,
    )
    return Points(
        num + num_hubs,
        is_head,
        op_order,
        call_order,
        op_first,
        op_last,
        call_first,
        call_last,
        Ties(*(np.concatenate(pair) for pair in zip(ties, hubs, strict=True))),
        np.concatenate([dependency, zero - 1]),
    )


def _hubs(match: Array) -> tuple[Array, int]:
    """The number of the collective of each operation (-1: has no other member), and how many."""
    members = np.flatnonzero(match >= 0)
    codes, which, count = np.unique(match[members], return_inverse=True, return_counts=True)
    shared = count >= 2
    number = np.where(shared, np.cumsum(shared) - 1, -1)
    hub = np.full(match.size, -1, np.int64)
    hub[members] = number[which.reshape(-1)] if codes.size else 0
    return hub, int(shared.sum())


def _heads(queue: npt.NDArray[np.integer[Any]]) -> Mask:
    head = np.ones(queue.size, bool)
    head[1:] = queue[1:] != queue[:-1]
    return head


def _laid_out(order: Array, is_double: Mask, base: int) -> tuple[Array, Array, int]:
    """First and last point of each thing, and the next free point."""
    count = 1 + is_double[order].astype(np.int64)
    after = base + np.cumsum(count)
    first, last = np.empty(order.size, np.int64), np.empty(order.size, np.int64)
    first[order], last[order] = after - count, after - 1
    return first, last, int(after[-1]) if order.size else base


def _ties(
    model: Model, op_first: Array, op_last: Array, call_first: Array, call_last: Array
) -> tuple[Ties, Array]:
    dependencies, num_ops = model.dependencies, model.num_ops
    kind = dependencies.kind
    into_return = kind == Kind.HOST_WAIT
    can_wait = np.concatenate([np.zeros(num_ops, bool), model.calls.waits])
    kept = np.flatnonzero(~into_return | can_wait[dependencies.to_node])
    node_first = np.concatenate([op_first, call_first])
    node_last = np.concatenate([op_last, call_last])
    of, to = dependencies.from_node[kept], dependencies.to_node[kept]
    by_start = (of >= num_ops) & (kind[kept] != Kind.HANDOFF)
    return Ties(
        np.where(by_start, node_first[of], node_last[of]),
        np.where(into_return[kept], node_last[to], node_first[to]),
        kind[kept] == Kind.LAUNCH,
        dependencies.steps_ahead[kept].astype(np.int64),
    ), kept


@dataclass(frozen=True)
class Weights:
    """Least times between points, in ns. int64.

    ``step``: from the point before in the queue (a head: from the last point of its queue
    in the pass before), shape (points,). ``tie``: of each of ``Points.ties``.
    """

    step: Array
    tie: Array


def weights_of(model: Model, points: Points) -> Weights:
    """What ``model`` says of the distances of its points."""
    ops, calls, num_ops = model.operations, model.calls, model.num_ops
    step = np.zeros(points.num, np.int64)
    before = _before(points.op_order, ops.stream)
    ahead = np.where(before >= 0, ops.duration_ns[before], 0)
    step[points.op_first] = ahead + ops.pause_ns
    before = _before(points.call_order, calls.thread)
    own = np.where(calls.waits, 0, calls.call_ns)
    step[points.call_first] = np.where(before >= 0, own[before], 0) + calls.work_ns
    step[points.call_last[calls.waits]] = calls.call_ns[calls.waits]
    dependencies = model.dependencies
    tie = np.zeros(points.dependency.size, np.int64)
    real = points.dependency >= 0
    rows = points.dependency[real]
    of = dependencies.from_node[rows]
    # By start for a launch, by return for a handoff, by end for an operation.
    own = np.concatenate([ops.duration_ns, own])[of]
    counts = (of < num_ops) | (dependencies.kind[rows] == Kind.HANDOFF)
    tie[real] = dependencies.lag_ns[rows] + np.where(counts, own, 0)
    return Weights(step, tie)


def _before(order: Array, queue: npt.NDArray[np.integer[Any]]) -> Array:
    """For each thing the one before it in its queue; for the first one the last (next pass)."""
    before = np.empty(order.size, np.int64)
    if not order.size:
        return before
    head = _heads(queue[order])
    before[order[1:]] = order[:-1]
    firsts = np.flatnonzero(head)
    lasts = np.append(firsts[1:], order.size) - 1
    before[order[firsts]] = order[lasts]
    return before
