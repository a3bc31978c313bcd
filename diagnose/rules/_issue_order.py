"""Where two GPUs of one process group issue its collectives in different order.

Two proofs. Equal sequence numbers of the group stand for one collective, so what differs under
one number was issued in another order. Without numbers: between two places at which both are known
to agree (the begin and end of a step, or two collectives that were matched), both issue the same
collectives, and not in the same order. A window that cuts off the first or last ones has no such
place on that side, so nothing is concluded there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._lanes import SAME_SIZE
from diagnose.analyzers.matching import Matches
from diagnose.schema import NO_ROW, NULL
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Difference(NamedTuple):
    """A stretch of one group on two GPUs: rows of ``trace.collectives``, by issue."""

    first: Array
    second: Array
    proven: bool
    """By sequence numbers, not by order."""


def comparable(trace: Trace, found: Matches) -> Mask:
    """Rows of ``trace.collectives`` whose kind and size are known and told by the trace.

    Sends and receives of a pipeline differ by design; parts of one batched call share their
    description, so their size is unknown.
    """
    lanes, table = found.lanes, trace.collectives
    strings = trace.strings
    exchange = strings.code("send_recv")
    fixed = np.append(strings.where(lambda word: word in SAME_SIZE), False)
    mask: Mask = (lanes.lane >= 0) & ~lanes.inferred & (lanes.content != NO_ROW)
    mask &= (lanes.content != exchange) | (exchange == NO_ROW)
    mask &= ~fixed[lanes.content] | (lanes.size != NULL)
    mask &= table["name"] != NO_ROW
    return mask


def signatures(trace: Trace, found: Matches) -> Array:
    """A number per row, equal for equal kind, size and element type."""
    columns = [found.lanes.content, found.lanes.size, trace.collectives["dtype"].astype(np.int64)]
    if not len(columns[0]):
        return np.empty(0, np.int64)
    _, number = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return np.asarray(number, np.int64).reshape(-1)


def differences(
    trace: Trace, found: Matches, signature: Array, usable: Mask, first: Array, second: Array
) -> Iterator[Difference]:
    """Of two GPUs' rows of one lane, each in order of issue."""
    number = trace.collectives["sequence"]
    if (number[first] != NULL).any() and (number[second] != NULL).any():
        yield from _by_number(found, signature, usable, number, first, second)
        return
    step = np.append(trace.steps["number"], NULL)[
        trace.gpu_ops["step_row"][trace.collectives["gpu_op_row"]]
    ]
    seen: set[int] = set()
    for a, b in (*_by_step(step, first, second), *_by_match(found.match, first, second)):
        whole = usable[a].all() and usable[b].all() and len(a) == len(b)
        if not whole or seen & {*a.tolist()}:
            continue
        one, other = signature[a], signature[b]
        if not np.array_equal(one, other) and np.array_equal(np.sort(one), np.sort(other)):
            seen |= {*a.tolist()}
            yield Difference(*_trimmed(a, b, one != other), False)


def _by_number(
    found: Matches, signature: Array, usable: Mask, number: Array, first: Array, second: Array
) -> Iterator[Difference]:
    """Numbers that stand for exactly one operation on both; runs of those that differ."""
    (a, b) = (_once(number, rows[number[rows] != NULL]) for rows in (first, second))
    _, at, to = np.intersect1d(number[a], number[b], return_indices=True)
    a, b = a[at], b[to]
    both = usable[a] & usable[b]
    a, b = a[both], b[both]
    unequal = signature[a] != signature[b]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], unequal, [False]])))
    for begin, end in edges.reshape(-1, 2).tolist():
        ours, theirs = a[begin:end], b[begin:end]
        content = found.lanes.content
        swapped = Counter(signature[ours].tolist()) == Counter(signature[theirs].tolist())
        # Sizes alone may differ by design: lists of uneven tensors.
        if swapped or (content[ours] != content[theirs]).any():
            yield Difference(ours, theirs, True)


def _once(number: Array, rows: Array) -> Array:
    """Rows whose number no other has: several share one in a batched call."""
    _, first, count = np.unique(number[rows], return_index=True, return_counts=True)
    found: Array = rows[first[count == 1]]
    return found


def _by_step(step: Array, first: Array, second: Array) -> Iterator[tuple[Array, Array]]:
    common = np.intersect1d(step[first], step[second])
    for number in common[common != NULL].tolist():
        yield first[step[first] == number], second[step[second] == number]


def _by_match(match: Array, first: Array, second: Array) -> Iterator[tuple[Array, Array]]:
    """What stands between two matched collectives on both."""
    ours, theirs = (np.flatnonzero(match[rows] != NO_ROW) for rows in (first, second))
    _, at, to = np.intersect1d(match[first[ours]], match[second[theirs]], return_indices=True)
    order = np.argsort(ours[at], kind="stable")
    ours, theirs = ours[at][order], theirs[to][order]
    gaps = zip(ours[:-1], ours[1:], theirs[:-1], theirs[1:], strict=True)
    for low, high, begin, end in gaps:
        if high - low > 1 and end - begin == high - low:
            yield first[low + 1 : high], second[begin + 1 : end]


def _trimmed(a: Array, b: Array, unequal: Mask) -> tuple[Array, Array]:
    """From the first place that differs to the last one."""
    places = np.flatnonzero(unequal)
    cut = slice(int(places[0]), int(places[-1]) + 1)
    return a[cut], b[cut]
