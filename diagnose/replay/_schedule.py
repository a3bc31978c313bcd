"""In which order the points of a model can be found, many at a time.

Points are put into *levels* so that a dependency between queues always leads to a higher
level, and along a queue the level never falls. All points of one level are then found
together, by one running maximum over the stretches of queues in it (``_scan``). How
many levels there are is how often work goes back and forth between queues at most, not how
many operations there are: a thousand launches in a row and their thousand kernels are two.

Levels can change only at a *gate*: the first point of a queue and points that wait for
another queue; of the launches from one stretch of a thread to one stream only the first
matters. Gates are few, so they are ordered one by one (Kahn's algorithm).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.replay._points import Points
from diagnose.replay.model import Array, Mask


class ContradictoryOrderError(Exception):
    """The dependencies lead around in a circle: some work would have to wait for itself."""


@dataclass(frozen=True)
class Schedule:
    """Points in the order of levels. ``slot`` gives each point's place, shape (points,).

    A *run* is the stretch of a queue within a level. Everything below speaks of slots.
    """

    slot: Array
    run: Array
    """Number of each slot's run within its level, from 0. Shape (points,)."""
    head: Array
    """First slots of runs that follow an earlier level of their queue."""
    head_before: Array
    """The slots right before those in their queues."""
    queue_head: Array
    """First slots of the queues."""
    queue_last: Array
    """Last slots of the same queues."""
    tie: Array
    """Ties of the same pass, in the order of the slot that they lead to."""
    tie_of: Array
    target: Array
    """Slots that ties lead to, each once, rising."""
    first_tie: Array
    """Where the ties of each target begin. Shape (targets + 1,)."""
    past_tie: Array
    """Ties from earlier passes."""
    past_of: Array
    past_to: Array
    past_passes: Array
    slots: Array
    """Where each level begins. Shape (levels + 1,), as the next two."""
    targets: Array
    heads: Array

    @property
    def num_levels(self) -> int:
        return self.slots.size - 1


def schedule_of(points: Points) -> Schedule:
    """The schedule of a model's points.

    Raises:
        ContradictoryOrderError: the dependencies of one pass contain a circle.
    """
    same = np.flatnonzero(points.ties.passes == 0)
    level = _levels(points, same)
    order = np.argsort(level, kind="stable")
    slot = np.empty(points.num, np.int64)
    slot[order] = np.arange(points.num)
    level = level[order]
    num_levels = int(level[-1]) + 1 if level.size else 0
    slots = np.searchsorted(level, np.arange(num_levels + 1))
    begins = points.is_head[order]
    # Within a level the queues stand one after the other: a run begins where order jumps.
    begins[1:] |= (order[1:] != order[:-1] + 1) | (level[1:] != level[:-1])
    run: Array = np.cumsum(begins).astype(np.int64)
    run -= np.repeat(run[slots[:-1]], np.diff(slots))
    head = np.flatnonzero(begins & ~points.is_head[order])
    same = same[np.argsort(slot[points.ties.to[same]], kind="stable")]
    to = slot[points.ties.to[same]]
    target, first_tie = np.unique(to, return_index=True)
    past = np.flatnonzero(points.ties.passes > 0)
    queue_head = np.flatnonzero(points.is_head)
    queue_last = np.append(queue_head[1:], points.num) - 1
    return Schedule(
        slot,
        run,
        head,
        slot[order[head] - 1],
        slot[queue_head],
        slot[queue_last[: queue_head.size]],
        same,
        slot[points.ties.of[same]],
        target,
        np.append(first_tie, same.size),
        past,
        slot[points.ties.of[past]],
        slot[points.ties.to[past]],
        points.ties.passes[past],
        slots,
        np.searchsorted(target, slots),
        np.searchsorted(head, slots),
    )


def _levels(points: Points, same: Array) -> Array:
    """The level of each point. int64, shape (points,)."""
    of, to = points.ties.of[same], points.ties.to[same]
    is_launch = points.ties.is_launch[same]
    gate = points.is_head.copy()
    gate[to[~is_launch]] = True
    needed = np.concatenate(
        [np.flatnonzero(~is_launch), _first_launches(points, gate, of, to, is_launch)]
    )
    gate[to[needed]] = True
    stretch = np.cumsum(gate) - 1
    level = _level_of_stretches(points.is_head[gate], stretch[of[needed]], stretch[to[needed]])
    of_point: Array = level[stretch]
    return of_point


def _first_launches(points: Points, gate: Mask, of: Array, to: Array, is_launch: Mask) -> Array:
    """Of the launches from one stretch of a thread to one stream the first on the stream."""
    launches = np.flatnonzero(is_launch)
    launches = launches[np.argsort(to[launches], kind="stable")]
    stretch, queue = np.cumsum(gate), np.cumsum(points.is_head)
    key = stretch[of[launches]] * (points.num + 1) + queue[to[launches]]
    _, first = np.unique(key, return_index=True)
    chosen: Array = launches[first]
    return chosen


def _level_of_stretches(is_head: Mask, of: Array, to: Array) -> Array:
    """Longest chain of dependencies that leads to each stretch: Kahn's algorithm."""
    num = is_head.size
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], np.arange(num + 1)).tolist()
    targets = to[order].tolist()
    open_ties = np.bincount(to, minlength=num) + ~is_head
    follows = np.append(~is_head[1:], False).tolist()
    ready = np.flatnonzero(open_ties == 0).tolist()
    missing, level = open_ties.tolist(), [0] * num
    found = 0
    while ready:
        stretch = ready.pop()
        found += 1
        here = level[stretch]
        if follows[stretch]:
            after = stretch + 1
            if level[after] < here:
                level[after] = here
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
        here += 1
        for after in targets[first[stretch] : first[stretch + 1]]:
            if level[after] < here:
                level[after] = here
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    if found < num:
        raise ContradictoryOrderError(
            f"{num - found} of {num} stretches of work wait for themselves"
        )
    return np.array(level, np.int64)
