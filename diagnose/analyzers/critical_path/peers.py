"""What the graph needs of other ranks: which operations are one collective, on one clock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.clocks import Alignment, ClockModel, align_clocks
from diagnose.analyzers.matching import match_collectives
from diagnose.schema import NO_ROW
from diagnose.trace import Trace

Array = npt.NDArray[np.int64]


class Peers(NamedTuple):
    """Matched operations, and the clock on which all sources are compared.

    ``gpu_op_row``, ``match`` and ``comparable`` have one entry per matched
    operation; ``comparable`` says whether arrivals can be compared across ranks.
    """

    gpu_op_row: Array
    match: Array
    comparable: npt.NDArray[np.bool_]
    base_ns: Array
    """Shape (sources,): added to the times of a source before the clocks' correction."""
    clocks: ClockModel | None

    def aligned(self, source: Array, time: Array) -> Array:
        """Times of sources on the common clock. int64 ns, same shape."""
        moved: Array = time + self.base_ns[source]
        return moved if self.clocks is None else moved + self.clocks.correction(source, moved)


def alone(trace: Trace) -> Peers:
    """No matches: every rank for itself, on its own clock."""
    nothing = np.empty(0, np.int64)
    zero = np.zeros(len(trace.sources), np.int64)
    return Peers(nothing, nothing, np.empty(0, bool), zero, None)


def find_peers(trace: Trace) -> Peers:
    """The matches and clocks of all ranks of a trace; alone where nothing matches."""
    if len(trace.gpus) < 2 or not len(trace.collectives):
        return alone(trace)
    matches = match_collectives(trace)
    if not matches.num_matches:
        return alone(trace)
    clocks = align_clocks(trace, matches)
    matched = np.flatnonzero(matches.match >= 0)
    row = trace.collectives["gpu_op_row"][matched].astype(np.int64)
    match = matches.match[matched]
    doubted = np.isin(clocks.alignment, (Alignment.DOUBTFUL, Alignment.IMPOSSIBLE))
    bad = np.zeros(matches.num_matches, bool)
    bad[match[doubted[trace.gpu_ops["source"][row]]]] = True
    base = np.array([source.base_ns or 0 for source in trace.sources], np.int64)
    return Peers(row, match, ~bad[match], base, clocks)


class Joins(NamedTuple):
    """Per GPU operation, shape (gpu_ops,). See ``DependencyGraph``."""

    match: Array
    join_ns: Array
    last_arrival: Array


def joins(num_ops: int, start: Array, end: Array, peers: Peers) -> Joins:
    """When each collective could begin to move bytes, and whose arrival allowed it.

    Transfer is the shortest duration over the ranks; what an operation lasts
    longer it waited. The last to arrive is named where clocks can be compared.
    """
    match = np.full(num_ops, NO_ROW, np.int64)
    join, last = start[:num_ops].copy(), np.arange(num_ops, dtype=np.int64)
    row = peers.gpu_op_row
    if not row.size:
        return Joins(match, join, last)
    codes, which = np.unique(peers.match, return_inverse=True)
    match[row] = which
    shortest = np.full(codes.size, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(shortest, which, end[row] - start[row])
    join[row] = end[row] - shortest[which]
    order = np.lexsort((row, start[row], which))
    ends = np.searchsorted(which[order], np.arange(codes.size), side="right") - 1
    latest = row[order[ends]][which]
    # Who has left before the last rank came did not wait for it (the root of a broadcast).
    behind = peers.comparable & (start[latest] < end[row]) & (start[latest] > start[row])
    last[row[behind]] = latest[behind]
    return Joins(match, join, last)
