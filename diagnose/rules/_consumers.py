"""Which operation first uses the result of each operation on a stream, as recorded waits say.

A wait for an event whose record is known is for the last operation launched before it. Else, where
an operation follows a single wait and begins as an operation of the stream ends, it needs that one;
in all other cases it may need everything launched before the wait.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._queues import Queued
from diagnose.schema import NULL

Array = npt.NDArray[np.int64]
_SWITCH_NS = 10_000
"""Longest pause between the end of what is waited for and the start of who waits."""
NEVER = np.iinfo(np.int64).max


class Consumers(NamedTuple):
    """Of one stream. ``needed`` and ``consumer`` align: who began as what it needs ended."""

    lane: Array
    """Places of the stream's operations in the queue, in order of launch."""
    first_use_ns: Array
    """Start of the first that may use it, by place in ``lane``; ``NEVER``: none was recorded."""
    needed: Array
    """Place in ``lane``."""
    consumer: Array
    """Place in the queue."""


class _Ties(NamedTuple):
    """Waits of other streams for one: the operation behind each wait, and what it may need."""

    consumer: Array
    needed: Array
    """Place in the lane of the last that it covers; -1: none."""
    is_sure: npt.NDArray[np.bool_]
    """Whether it needs that one, rather than any up to it."""


def consumers_of(queued: Queued, stream: int) -> Consumers:
    """The uses of what runs on a stream, by operations of other streams that compute."""
    ops = queued.ops
    lane = np.flatnonzero(ops["stream"] == stream)
    computing = np.setdiff1d(np.unique(ops["stream"][queued.computes]), [stream])
    ties = [_ties(queued, stream, lane, other) for other in computing.tolist()]
    none = np.empty(0, np.int64)
    consumer = np.concatenate([none, *(one.consumer for one in ties)])
    needed = np.concatenate([none, *(one.needed for one in ties)])
    sure = np.concatenate([np.empty(0, bool), *(one.is_sure for one in ties)])
    consumer, needed, sure = consumer[needed >= 0], needed[needed >= 0], sure[needed >= 0]
    use, begun = np.full(lane.size, NEVER, np.int64), ops["start_ns"][consumer]
    np.minimum.at(use, needed[~sure], begun[~sure])
    # Whoever may need one may need all before it, too.
    use = np.minimum.accumulate(use[::-1])[::-1].copy()
    np.minimum.at(use, needed[sure], begun[sure])
    # A wait covers what ran before on the stream: who has no consumer has the next one's.
    own = np.where(use != NEVER, np.arange(use.size), use.size)
    use = np.append(use, NEVER)[np.minimum.accumulate(own[::-1])[::-1]]
    end = ops["end_ns"][lane[needed]]
    held = sure & (begun >= end) & (begun - end <= _SWITCH_NS)
    return Consumers(lane, use, needed[held], consumer[held])


def _ties(queued: Queued, stream: int, lane: Array, other: int) -> _Ties:
    """The waits of one other stream."""
    waits, ops = queued.waits, queued.ops
    mine = (waits.stream == other) & np.isin(waits.event_stream, (stream, NULL))
    at, told = waits.at[mine], waits.told_at[mine]
    exact = (told != NULL) & (waits.event_stream[mine] == stream)
    behind = np.flatnonzero(ops["stream"] == other)
    place = np.searchsorted(queued.launched_ns[behind], at)
    some = place < behind.size
    consumer, at, told, exact = behind[place[some]], at[some], told[some], exact[some]
    launched, start = queued.launched_ns[lane], ops["start_ns"][consumer]
    until = np.searchsorted(launched, np.where(exact, told, at)) - 1
    ends = np.maximum.accumulate(ops["end_ns"][lane])
    last = np.minimum(until, np.searchsorted(ends, start, side="right") - 1)
    _, which, number = np.unique(consumer, return_inverse=True, return_counts=True)
    single = number[which.reshape(-1)] == 1
    close = (last >= 0) & (start - ends[np.maximum(last, 0)] <= _SWITCH_NS)
    close &= queued.own_ns[consumer] < ends[np.maximum(last, 0)]
    guessed = ~exact & single & close
    return _Ties(consumer, np.where(guessed, last, until), exact | guessed)
