"""How far apart the clocks of the hosts are, from the collectives themselves.

Nobody leaves an all-reduce, all-gather, reduce-scatter, all-to-all or barrier
before the last rank has entered, and all leave within microseconds of each other.
So the ends of matched kernels are common events, and what their times differ by
is the clocks. Sources of one host share a clock and get one offset; where no
group holds all ranks, offsets are carried along the groups that overlap.

An arrival can be compared across ranks only as well as the residual says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._lanes import Mask, packed
from diagnose.analyzers._shifts import Fit, fit_clock
from diagnose.analyzers.matching import Matches, match_collectives, median_by, names_a_host
from diagnose.intervals import Array
from diagnose.schema import NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace

Floats = npt.NDArray[np.float64]


class Alignment(IntEnum):
    """How a source's clock was brought to the reference's."""

    REFERENCE = 0
    """Its clock is the common one."""
    SHARED = 1
    """It runs on the host of the reference: the same clock, offset 0."""
    ALIGNED = 2
    """Measured from collectives that end together."""
    DOUBTFUL = 3
    """Measured, but from few collectives, or two such clocks may differ by more than a typical
    transfer takes: who came last is not to be trusted."""
    IMPOSSIBLE = 4
    """No matched collective ties it to the reference: its times cannot be compared."""


@dataclass(frozen=True, kw_only=True)
class ClockThresholds:
    """When an alignment is doubted."""

    min_points: int = 5
    """Collectives below which a median of ends is doubted (judgement)."""
    shared_limit_ns: int = 50_000
    """Processes of one host whose ends lie further apart than this do not share a clock
    (measured: within 15 us)."""


CLOCK_OFFSETS = TableSchema(
    "clock_offsets",
    "one source: what to add to its times to compare them with the reference's",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("rank", "int64", "rank of the source", nullable=True),
        Column("clock", "int64", "number of its clock: sources of one host share one"),
        Column("alignment", "int8", "how it was found", choices=Alignment),
        Column(
            "offset_ns",
            "int64",
            "to be added to unix times of the source (to its own times where no base is known)",
            "ns",
            nullable=True,
        ),
        Column("drift", "float64", "nanoseconds of offset gained per nanosecond; 0: none found"),
        Column("drift_origin_ns", "int64", "time at which the offset holds", "ns", nullable=True),
        Column("num_collectives", "int64", "matched symmetric collectives it took part in"),
        Column(
            "residual_mad_ns",
            "float64",
            "median distance of its ends to the common end of their collectives",
            "ns",
            nullable=True,
        ),
        Column("residual_p95_ns", "float64", "95th percentile of the same", "ns", nullable=True),
    ),
    order=("source",),
)


class ClockModel(NamedTuple):
    """Per source: the columns of ``clock_offsets``. Times + offset = reference times."""

    clock: Array
    alignment: Array
    offset: Array
    drift: Floats
    origin: Array
    num_points: Array
    mad: Floats
    p95: Floats

    def correction(self, source: Array, time: Array) -> Array:
        """What to add to ``time`` (as in ``Matches.start``) of each source; 0 if impossible."""
        known = self.offset[source] != NULL
        moved = np.where(known, self.offset[source], 0)
        slope = self.drift[source]
        if np.any(slope != 0):
            since = (time - self.origin[source]).astype(np.float64)
            moved = moved + np.round(np.where(known, slope * since, 0.0)).astype(np.int64)
        return moved


class _Ends(NamedTuple):
    """The ends that tie clocks together: one entry per operation of a symmetric match."""

    match: Array
    source: Array
    end: Array
    duration: Array


def align_clocks(
    trace: Trace, matches: Matches, thresholds: ClockThresholds | None = None
) -> ClockModel:
    """Offsets of all sources against the lowest rank of the largest connected set."""
    thresholds = thresholds or ClockThresholds()
    source = trace.gpu_ops["source"][trace.collectives["gpu_op_row"]].astype(np.int64)
    used = np.flatnonzero((matches.match >= 0) & matches.symmetric)
    duration = (matches.end - matches.start)[used]
    ends = _Ends(matches.match[used], source[used], matches.end[used], duration)
    clock = _clocks(trace, ends, thresholds)
    num_clocks = int(clock.max(initial=-1)) + 1
    num_sources = np.bincount(clock, minlength=num_clocks)
    offset, drift, origin, reached = _solve(ends, clock[ends.source], num_clocks, num_sources)
    model = ClockModel(
        clock,
        np.zeros(len(clock), np.int8),
        np.where(reached[clock], offset[clock], NULL),
        np.where(reached[clock], drift[clock], 0.0),
        origin[clock],
        np.bincount(ends.source, minlength=len(clock)),
        np.full(len(clock), np.nan),
        np.full(len(clock), np.nan),
    )
    return _judged(trace, model, ends, matches.num_matches, reached, thresholds)


def _clocks(trace: Trace, ends: _Ends, thresholds: ClockThresholds) -> Array:
    """Number of each source's clock. One host is one clock unless its ends say otherwise."""
    first_of: dict[str, int] = {}
    clock = np.arange(len(trace.sources))
    for number, one in enumerate(trace.sources):
        if names_a_host(one.host):
            clock[number] = first_of.setdefault(str(one.host), number)
    shared = np.flatnonzero(np.bincount(clock, minlength=len(clock))[clock] > 1)
    if shared.size and ends.match.size:
        # The end of a match on a host: the median over the host's sources.
        at_host = clock[ends.source]
        _, key = np.unique(packed(ends.match, at_host), return_inverse=True)
        distance = ends.end - median_by(key, ends.end, int(key.max()) + 1)[key]
        usual = median_by(ends.source, distance, len(clock))
        clock = np.where(np.abs(usual) > thresholds.shared_limit_ns, np.arange(len(clock)), clock)
    _, dense = np.unique(clock, return_inverse=True)
    return dense.reshape(-1)


class _Line(NamedTuple):
    """What to add to a clock's times: ``offset + drift * (time - origin)``."""

    offset: int
    drift: float
    origin: int

    def at(self, time: int) -> int:
        return self.offset + round(self.drift * (time - self.origin))


def _solve(
    ends: _Ends, clock: Array, num_clocks: int, num_sources: Array
) -> tuple[Array, Floats, Array, Mask]:
    """Offset, drift, its origin, and whether it was reached, of each clock."""
    offset, drift = np.zeros(num_clocks, np.int64), np.zeros(num_clocks)
    origin, reached = np.zeros(num_clocks, np.int64), np.zeros(num_clocks, bool)
    lines = _carried(_edges(ends, clock, num_clocks), num_clocks, num_sources)
    for number, line in lines.items():
        offset[number], drift[number], origin[number] = line
        reached[number] = True
    usable = reached[clock]
    match, end, at = ends.match[usable], ends.end[usable], clock[usable]
    if not at.size:
        return offset, drift, origin, reached
    num_matches = int(match.max()) + 1
    order = np.argsort(at, kind="stable")
    cuts = np.searchsorted(at[order], np.arange(num_clocks + 1))
    # Lines were carried from neighbour to neighbour; settle them against all peers at once.
    for _ in range(2):
        drifted = np.round(drift[at] * (end - origin[at])).astype(np.int64)
        aligned = end + offset[at] + drifted
        difference = _centre(match, at, aligned, num_matches, num_clocks) - aligned
        for number in range(num_clocks):
            rows = order[cuts[number] : cuts[number + 1]]
            if rows.size:
                offset[number] += round(float(np.median(difference[rows])))
    reference = min(lines)
    offset[reached] -= offset[reference]
    return offset, drift, origin, reached


def _centre(match: Array, at: Array, aligned: Array, num_matches: int, num_clocks: int) -> Array:
    """The common end of each operation's match: the mean over clocks of their median ends."""
    pair = match * num_clocks + at
    distinct, key = np.unique(pair, return_inverse=True)
    per_clock = median_by(key, aligned, len(distinct))
    owner = distinct // num_clocks
    first = median_by(owner, per_clock, num_matches)
    total = np.bincount(owner, per_clock - first[owner], minlength=num_matches)
    count = np.maximum(np.bincount(owner, minlength=num_matches), 1)
    common: Array = first + np.round(total / count).astype(np.int64)
    return common[match]


def _edges(ends: _Ends, clock: Array, num_clocks: int) -> list[tuple[int, int, Fit]]:
    """Pairs of clocks that share matches: (one, other, what to add to the other's times).

    Each match ties its first clock to all others: enough to connect them, and
    linear in the number of operations.
    """
    order = np.lexsort((clock, ends.match))
    match, at, end = ends.match[order], clock[order], ends.end[order]
    new = np.ones(len(order), bool)
    new[1:] = np.diff(match) != 0
    first = np.flatnonzero(new)[np.cumsum(new) - 1] if len(order) else np.empty(0, np.int64)
    tied = np.flatnonzero(at != at[first])
    pair = at[first][tied] * num_clocks + at[tied]
    tied = tied[np.argsort(pair, kind="stable")]
    distinct, begin = np.unique(np.sort(pair), return_index=True)
    found = []
    for key, rows in zip(distinct.tolist(), np.split(tied, begin[1:]), strict=False):
        fit = fit_clock(end[rows], end[first[rows]] - end[rows])
        found.append((key // num_clocks, key % num_clocks, fit))
    return found


def _carried(
    edges: list[tuple[int, int, Fit]], num_clocks: int, num_sources: Array
) -> dict[int, _Line]:
    """Corrections of the connected set of clocks with the most sources, against its lowest.

    Neighbours with the most common collectives first. Empty if no two sources are tied.
    """
    ties: dict[int, list[tuple[int, int, Fit]]] = {}
    for one, other, fit in edges:
        back = Fit(-fit.offset_ns, -fit.drift, fit.origin_ns + fit.offset_ns, 0.0, fit.num_points)
        ties.setdefault(one, []).append((fit.num_points, other, fit))
        ties.setdefault(other, []).append((fit.num_points, one, back))
    seen: set[int] = set()
    best: dict[int, _Line] = {}
    best_size = 1
    for begin in range(num_clocks):
        if begin in seen:
            continue
        carried = {begin: _Line(0, 0.0, 0)}
        queue = [begin]
        for node in queue:
            for _, other, fit in sorted(ties.get(node, ()), key=lambda tie: (-tie[0], tie[1])):
                if other in carried:
                    continue
                line = carried[node]
                offset = fit.offset_ns + line.at(fit.origin_ns + fit.offset_ns)
                carried[other] = _Line(offset, fit.drift + line.drift, fit.origin_ns)
                queue.append(other)
        seen |= carried.keys()
        size = int(sum(num_sources[node] for node in carried))
        if size > best_size:
            best, best_size = carried, size
    return best


def _judged(
    trace: Trace,
    model: ClockModel,
    ends: _Ends,
    num_matches: int,
    reached: Mask,
    thresholds: ClockThresholds,
) -> ClockModel:
    aligned = ends.end + model.correction(ends.source, ends.end)
    shortest = np.full(num_matches, np.iinfo(np.int64).max)
    np.minimum.at(shortest, ends.match, ends.duration)
    # Of an even number (often two) take the mean of the middle ones.
    low = median_by(ends.match, aligned, num_matches)
    high = -median_by(ends.match, -aligned, num_matches)
    middle = low + (high - low) // 2
    distance = np.abs(aligned - middle[ends.match])
    reference_clock = int(np.flatnonzero(reached)[0]) if reached.any() else -1
    reference_source: int | None = None
    order = np.argsort(ends.source, kind="stable")
    cuts = np.searchsorted(ends.source[order], np.arange(len(model.clock) + 1))
    for source in _by_rank(trace):
        rows = order[cuts[source] : cuts[source + 1]]
        connected = bool(rows.size) and bool(reached[model.clock[source]])
        if rows.size:
            model.mad[source] = float(np.median(distance[rows]))
            model.p95[source] = float(np.percentile(distance[rows], 95))
        if not connected and (reference_clock < 0 or model.clock[source] != reference_clock):
            model.alignment[source] = Alignment.IMPOSSIBLE
            model.offset[source] = NULL
        elif model.clock[source] == reference_clock:
            first = reference_source is None
            reference_source = source if reference_source is None else reference_source
            model.alignment[source] = Alignment.REFERENCE if first else Alignment.SHARED
        else:
            typical = float(np.median(shortest[ends.match[rows]]))
            poor = rows.size < thresholds.min_points or 2 * model.p95[source] > typical
            model.alignment[source] = Alignment.DOUBTFUL if poor else Alignment.ALIGNED
    return model


def _by_rank(trace: Trace) -> list[int]:
    def key(source: int) -> tuple[bool, int, int]:
        rank = trace.sources[source].rank
        return rank is None, rank or 0, source

    return sorted(range(len(trace.sources)), key=key)


def clock_offsets(trace: Trace) -> Table | Unavailable:
    """What to add to the times of each source to compare them with the reference's.

    Unavailable where no collective was matched: then nothing ties clocks together.
    """
    if len(trace.sources) < 2:
        return Unavailable("there is one source only: nothing to align", "give all ranks' traces")
    matches = match_collectives(trace)
    if not matches.num_matches:
        return Unavailable(
            "no collective of one source was matched with another's: nothing ties clocks together",
            "record the same steps on all ranks, with collectives in them",
        )
    return clock_table(trace, align_clocks(trace, matches))


def clock_table(trace: Trace, model: ClockModel) -> Table:
    """The model as a table."""
    ranks = [NULL if source.rank is None else source.rank for source in trace.sources]
    columns = {
        "source": np.arange(len(trace.sources)),
        "rank": np.array(ranks, np.int64),
        "clock": model.clock,
        "alignment": model.alignment,
        "offset_ns": model.offset,
        "drift": model.drift,
        "drift_origin_ns": np.where(model.drift != 0, model.origin, NULL),
        "num_collectives": model.num_points,
        "residual_mad_ns": model.mad,
        "residual_p95_ns": model.p95,
    }
    typed = {c.name: columns[c.name].astype(c.dtype) for c in CLOCK_OFFSETS.columns}
    return Table(CLOCK_OFFSETS, typed, trace.strings)


ANALYZERS = (Analyzer("clock_offsets", Detail.GPU, CLOCK_OFFSETS, clock_offsets),)
