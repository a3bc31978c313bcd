"""Dependencies of the replayed steps among themselves, when the steps repeat, and on before.

What comes from the step before the first replayed one is for repetition taken to come from
the same place of the last replayed one, in the pass before. For the window as recorded
it is a moment that was given: an entry.
"""

from __future__ import annotations

import numpy as np

from diagnose.replay._calls import SPARSE, HostPart, Links
from diagnose.replay._lags import RETURN_NS, usual
from diagnose.replay._launch_queue import Held
from diagnose.replay._operations import GpuPart
from diagnose.replay._recorded import Queues
from diagnose.replay.model import Array, Dependencies, Entries, Kind, Mask
from diagnose.schema import NO_ROW

_MAX_PASSES = 8
"""Passes back that the launch queue is followed: a stream with fewer operations than an eighth
of the queue in all replayed steps does not fill it before another stream does."""


def repeated(
    ops: Queues, calls: Queues, gpu: GpuPart, host: HostPart, held: Held, num_steps: int
) -> tuple[Dependencies, Entries]:
    """All dependencies of a model, and what its steps found when they began."""
    found = Links.joined([gpu.links, host.links])
    num_ops = int(ops.chosen.size)
    to = _numbered(found.to, found.to_op, ops.number, calls.number, num_ops)
    of = _numbered(found.of, found.of_op, ops.number, calls.number, num_ops)
    inside = (to >= 0) & (of >= 0)
    outside = (to >= 0) & (of < 0)
    last_op = ops.counterpart(np.arange(ops.row.size), num_steps)
    last_call = calls.counterpart(np.arange(calls.row.size), num_steps)
    earlier = _numbered(found.of, found.of_op, last_op, last_call, num_ops)
    wraps = outside & (earlier >= 0) & (found.kind != Kind.QUEUE_LIMIT)
    dependencies = [
        _dependencies(of, to, found, inside, 0),
        _dependencies(earlier, to, found, wraps, 1),
        _queue_over_passes(ops, calls, host, held, gpu, num_ops),
    ]
    return Dependencies.joined(dependencies), _entries(ops, calls, found, to, outside, num_ops)


def _numbered(index: Array, is_op: Mask, op: Array, call: Array, num_ops: int) -> Array:
    """Node of each index into the queues, under the numbers given; -1: none."""
    number = np.full(index.size, NO_ROW, np.int64)
    number[is_op] = op[index[is_op]]
    host = ~is_op
    mine = call[index[host]]
    number[host] = np.where(mine >= 0, mine + num_ops, NO_ROW)
    return number


def _dependencies(of: Array, to: Array, found: Links, which: Mask, passes: int) -> Dependencies:
    size = int(which.sum())
    return Dependencies(
        of[which],
        to[which],
        found.lag_ns[which],
        found.kind[which].astype(np.int8),
        np.full(size, passes, np.int8),
    )


def _entries(
    ops: Queues, calls: Queues, found: Links, to: Array, outside: Mask, num_ops: int
) -> Entries:
    """Moments given by what came before: of heads of queues and what waited for earlier work."""
    num_calls = int(calls.chosen.size)
    nodes, moments = [], []
    for queues, base in ((ops, 0), (calls, num_ops)):
        chosen = queues.chosen
        before = queues.before[chosen]
        late = (before < 0) | (queues.number[before] < 0)
        nodes.append(base + np.flatnonzero(late))
        moments.append(queues.begin_ns[chosen[late]])
    bound = outside & found.binds
    returns = bound & (found.kind == Kind.HOST_WAIT)
    into_op, into_call = bound & found.to_op, bound & ~found.to_op & ~returns
    nodes += [to[into_op], to[into_call], to[returns] + num_calls]
    moments += [
        ops.begin_ns[found.to[into_op]],
        calls.begin_ns[found.to[into_call]],
        calls.end_ns[found.to[returns]],
    ]
    return Entries(np.concatenate(nodes), np.concatenate(moments))


def _queue_over_passes(
    ops: Queues, calls: Queues, host: HostPart, held: Held, gpu: GpuPart, num_ops: int
) -> Dependencies:
    """The launch queue when steps repeat: for operations launched passes before."""
    launch = gpu.links.take(gpu.links.kind == Kind.LAUNCH)
    call_of = np.full(ops.row.size, NO_ROW, np.int64)
    call_of[launch.to] = launch.of
    full = host.links.take(host.links.kind == Kind.QUEUE_LIMIT)
    lag = usual(full.lag_ns, full.binds, RETURN_NS)
    following = np.full(calls.row.size, NO_ROW, np.int64)
    known = np.flatnonzero(calls.before >= 0)
    following[calls.before[known]] = known
    of, to, passes = ([np.empty(0, np.int64)] for _ in range(3))
    chosen = ops.chosen
    begins = np.searchsorted(ops.queue[chosen], np.arange(held.distance.size + 1))
    for stream, distance in enumerate(held.distance.tolist()):
        mine = chosen[begins[stream] : begins[stream + 1]]
        if distance < 0 or mine.size * _MAX_PASSES < distance:
            continue
        place = np.arange(0, min(mine.size, distance), SPARSE)
        back = -((place - distance) // mine.size)
        after = following[call_of[mine[place]]]
        after = np.where((call_of[mine[place]] >= 0) & (after >= 0), calls.number[after], NO_ROW)
        kept = after >= 0
        of.append(ops.number[mine[(place - distance + back * mine.size)[kept]]])
        to.append(num_ops + after[kept])
        passes.append(back[kept])
    size = sum(part.size for part in to)
    return Dependencies(
        np.concatenate(of),
        np.concatenate(to),
        np.full(size, lag),
        np.full(size, Kind.QUEUE_LIMIT, np.int8),
        np.concatenate(passes).astype(np.int8),
    )
