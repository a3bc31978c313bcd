"""Collectives in the order in which their results are needed."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.changes._which import NO_COMMUNICATION, is_communication, stream_order
from diagnose.replay.execute import Times, execute
from diagnose.replay.model import Array, Kind, Model

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class CommPriority(Change):
    """Collectives of a stream run in the order in which their results are needed.

    Whenever a stream is free, of the collectives whose input is ready the one whose consumer
    begins first goes next: critical ones before those that can be deferred. Readiness and
    need are taken from executing the steps as they are. The order is the same on all ranks;
    collectives keep their step. A collective that has begun is not interrupted.
    """

    id = "comm-priority"
    title = "collectives in the order of need"

    def apply(self, model: Model, assume: Assume) -> Model | Unavailable:
        if not is_communication(model).any():
            return NO_COMMUNICATION
        times = execute(model)
        if isinstance(times, Unavailable):
            return times
        streams = _streams(model)
        ready, need = _ready(model, times), _need(model, times)
        place = model.operations.place.copy()
        moved = False
        for lane in _lanes(model, streams):
            order = _scheduled(model, lane, ready, need)
            for members in lane:
                new = members[order]
                moved |= bool((new != members).any())
                place[new] = model.operations.place[members]
        if not moved:
            return Unavailable("the collectives run in the order of need already")
        return model.with_operations(place=place)


def _streams(model: Model) -> list[Array]:
    """The collectives of each stream that holds nothing else, in order."""
    ops, communication = model.operations, is_communication(model)
    order, _ = stream_order(model)
    parts = np.split(order, np.flatnonzero(np.diff(ops.stream[order])) + 1)
    return [part for part in parts if part.size > 1 and communication[part].all()]


def _lanes(model: Model, streams: list[Array]) -> list[list[Array]]:
    """Streams of all ranks that carry the same collectives in the same order, together.

    Step by step; a stream whose collectives are spread over several streams elsewhere is left.
    """
    ops = model.operations
    of_match: dict[int, set[int]] = {}
    for number, rows in enumerate(streams):
        for match in ops.match[rows][ops.match[rows] >= 0].tolist():
            of_match.setdefault(match, set()).add(number)
    lanes: dict[tuple[int, tuple[int, ...]], list[Array]] = {}
    for rows in streams:
        for step in np.unique(ops.step[rows]).tolist():
            mine = rows[ops.step[rows] == step]
            if (ops.match[mine] >= 0).all() or (ops.match[mine] < 0).all():
                known = tuple(ops.match[mine].tolist())
                own = known if known[0] >= 0 else tuple((-2 - mine).tolist())
                lanes.setdefault((step, own), []).append(mine)
    members = [len(of_match.get(key[1][0], {0})) for key in lanes]
    return [lane for lane, num in zip(lanes.values(), members, strict=True) if len(lane) == num]


def _ready(model: Model, times: Times) -> Array:
    """When each operation could begin for all that it waits for on other queues."""
    dependencies, num_ops = model.dependencies, model.num_ops
    rows = np.flatnonzero((dependencies.to_node < num_ops) & (dependencies.steps_ahead == 0))
    of = dependencies.from_node[rows]
    moment = np.concatenate([times.end_ns, times.start_ns])[of] + dependencies.lag_ns[rows]
    ready = np.full(num_ops, np.iinfo(np.int64).min)
    np.maximum.at(ready, dependencies.to_node[rows], moment)
    return ready


def _need(model: Model, times: Times) -> Array:
    """When the first that waits for each operation begins; never: nothing does."""
    dependencies, num_ops = model.dependencies, model.num_ops
    kept = (dependencies.from_node < num_ops) & (dependencies.kind != Kind.ROOM)
    kept &= dependencies.kind != Kind.QUEUE_LIMIT
    rows = np.flatnonzero(kept & (dependencies.steps_ahead == 0))
    begins = np.concatenate([times.begin_ns, times.start_ns])[dependencies.to_node[rows]]
    need = np.full(num_ops, _NEVER)
    np.minimum.at(need, dependencies.from_node[rows], begins)
    return need


def _scheduled(model: Model, lane: list[Array], ready: Array, need: Array) -> Array:
    """The order of a lane's collectives, as places in the old one."""
    duration = np.max([model.operations.duration_ns[rows] for rows in lane], axis=0)
    begins = np.max([ready[rows] for rows in lane], axis=0).tolist()
    needed = np.min([need[rows] for rows in lane], axis=0)
    # A wait covers what ran before on the stream: who has no consumer has the next one's.
    for one in range(needed.size - 2, -1, -1):
        if needed[one] == _NEVER:
            needed[one] = needed[one + 1]
    coming = sorted(range(len(begins)), key=lambda one: (begins[one], one))
    waiting: list[tuple[int, int]] = []
    order: list[int] = []
    now, at = min(begins, default=0), 0
    while len(order) < len(begins):
        while at < len(coming) and begins[coming[at]] <= now:
            heapq.heappush(waiting, (int(needed[coming[at]]), coming[at]))
            at += 1
        if not waiting:
            now = begins[coming[at]]
            continue
        _, one = heapq.heappop(waiting)
        order.append(one)
        now += int(duration[one])
    return np.array(order, np.int64)


CHANGES = (CommPriority,)
