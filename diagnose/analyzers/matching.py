"""Which kernels on different GPUs are one collective.

Recordings carry no common number: each begins at another operation, and what was
launched before its window has no metadata. So operations are put into lanes
(``_lanes``), lanes are shifted against each other (``_shifts``), and every match is
then verified: same collective, same size where both are known, and the same end,
since nobody leaves a symmetric collective before the last has entered. What fails
stays unmatched, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers._lanes import Codes, Lanes, Mask, Unmatched, is_symmetric, lanes_of, packed
from diagnose.analyzers._shifts import (
    NO_FIT,
    Basis,
    Clocks,
    MatchingThresholds,
    Part,
    Placement,
    place,
)
from diagnose.grouped_intervals import sum_by
from diagnose.intervals import Array
from diagnose.schema import NO_ROW, NULL, Column, Detail, TableSchema
from diagnose.trace import Source, Table, Trace

MATCHED_COLLECTIVES = TableSchema(
    "matched_collectives",
    "one communication operation of one GPU, with the collective that it is a part of",
    (
        Column("gpu_op_row", "int64", "row of `gpu_ops`"),
        Column("source", "int32", "index into `Trace.sources`"),
        Column("device", "int32", "device number within its process"),
        Column("rank", "int64", "rank of the source", nullable=True),
        Column(
            "match", "int64", "number of the collective; the same on all its GPUs", nullable=True
        ),
        Column("lane", "int64", "number of the group or pair in which order counts", nullable=True),
        Column("collective", "int32", "the collective, as `all_reduce`", nullable=True, text=True),
        Column("bytes", "int64", "message size, from any GPU of the match", "bytes", nullable=True),
        Column("group", "int32", "process group name", nullable=True, text=True),
        Column("group_ranks", "int32", "its ranks as written", nullable=True, text=True),
        Column("group_size", "int64", "ranks in the group", nullable=True),
        Column("num_matched", "int64", "GPUs in this match; 0 if unmatched"),
        Column("step_row", "int64", "row of `steps` during which it was launched", nullable=True),
        Column("step_number", "int64", "number of the match's step", nullable=True),
        Column("symmetric", "bool", "whether no rank can leave before all have entered"),
        Column("inferred", "bool", "whether the group was concluded from the stream"),
        Column("basis", "int8", "what decided the match", choices=Basis),
        Column("reason", "int8", "why there is no match", choices=Unmatched),
    ),
    order=("gpu_op_row",),
)
UNMATCHED_COLLECTIVES = TableSchema(
    "unmatched_collectives",
    "the communication of one GPU that was matched with no other, by reason",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("device", "int32", "device number within its process"),
        Column("rank", "int64", "rank of the source", nullable=True),
        Column("reason", "int8", "why", choices=Unmatched),
        Column("num_ops", "int64", "operations"),
        Column("kernel_time_ns", "int64", "sum of their durations", "ns"),
    ),
    order=("source", "device", "reason"),
)


class Matches(NamedTuple):
    """All communication of a trace, matched. Per row of ``trace.collectives``.

    ``match`` is NO_ROW where there is none. ``start`` and ``end`` are unix time
    where the base of the source is known, else the source's clock.
    """

    lanes: Lanes
    match: Array
    num_matches: int
    reason: Codes
    basis: Codes
    symmetric: Mask
    start: Array
    end: Array


def clocks_of(first: Source, second: Source) -> Clocks:
    """What two sources' clocks have in common before anything is measured."""
    if first is second or (first.host == second.host and names_a_host(first.host)):
        return Clocks.SHARED
    # Kineto's base is the same round number on every host: unix time, but each host's own.
    return Clocks.WALL if (first.base_ns is None) == (second.base_ns is None) else Clocks.UNRELATED


def names_a_host(host: str | None) -> bool:
    """Whether a host name tells hosts apart."""
    return bool(host) and not str(host).startswith("localhost")


def match_collectives(trace: Trace, thresholds: MatchingThresholds | None = None) -> Matches:
    """Match the communication of all GPUs of a trace."""
    thresholds = thresholds or MatchingThresholds()
    lanes = lanes_of(trace)
    row = trace.collectives["gpu_op_row"]
    base = np.array([source.base_ns or 0 for source in trace.sources], np.int64)
    base = base[trace.gpu_ops["source"][row]]
    start, end = trace.gpu_ops["start_ns"][row] + base, trace.gpu_ops["end_ns"][row] + base
    index = np.full(len(row), NULL)
    reason, basis = lanes.reason.copy(), np.full(len(row), Basis.NONE, np.int8)
    aligned_end = end.copy()
    for rows_of_parts in _parts(lanes):
        placements = _place_all(trace, lanes, rows_of_parts, start, end, thresholds)
        for rows, placement in zip(rows_of_parts, placements, strict=True):
            if placement is None:
                reason[rows] = Unmatched.AMBIGUOUS
                continue
            index[rows], basis[rows] = placement.places, placement.basis
            aligned_end[rows] -= placement.fit.at(end[rows])
            lost = Unmatched.ENDS_DIFFER if placement.basis == Basis.NONE else Unmatched.MATCHED
            reason[rows] = lost
    symmetric = is_symmetric(trace, lanes.content)
    match = _number(lanes.lane, np.where(reason == Unmatched.MATCHED, index, NULL))
    match = _verify(lanes, match, reason, symmetric, aligned_end, end - start, thresholds)
    match, num_matches = _renumber(match)
    basis[match == NO_ROW] = Basis.NONE
    return Matches(lanes, match, num_matches, reason, basis, symmetric, start, end)


def _parts(lanes: Lanes) -> Iterator[list[Array]]:
    """For each lane: the rows of each of its GPUs, in order of issue."""
    order = np.lexsort((lanes.position, lanes.gpu, lanes.lane))
    order = order[lanes.lane[order] >= 0]
    if not order.size:
        return
    lane, gpu = lanes.lane[order], lanes.gpu[order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(lane) != 0) | (np.diff(gpu) != 0)]))
    pieces = np.split(order, first[1:])
    lane_of_piece = lane[first]
    begin = 0
    for cut in [*(np.flatnonzero(np.diff(lane_of_piece)) + 1).tolist(), len(pieces)]:
        yield pieces[begin:cut]
        begin = cut


def _place_all(
    trace: Trace,
    lanes: Lanes,
    rows_of_parts: list[Array],
    start: Array,
    end: Array,
    thresholds: MatchingThresholds,
) -> list[Placement | None]:
    """Place every GPU of one lane against the one that knows most of its operations."""
    table = trace.collectives
    step_row = trace.gpu_ops["step_row"][table["gpu_op_row"]]
    number = np.append(trace.steps["number"], NULL)
    parts = [
        Part(
            lanes.content[rows],
            lanes.size[rows],
            table["sequence"][rows],
            number[step_row[rows]],
            start[rows],
            end[rows],
            ~lanes.inferred[rows],
        )
        for rows in rows_of_parts
    ]
    chosen = max(range(len(parts)), key=lambda i: (int(parts[i].told.sum()), len(parts[i].end), -i))
    sources = [trace.sources[trace.gpus[int(lanes.gpu[rows[0]])].source] for rows in rows_of_parts]
    placed: list[Placement | None] = []
    for i, part in enumerate(parts):
        if i == chosen:
            own = np.arange(len(part.end))
            placed.append(Placement(own, Basis.REFERENCE, NO_FIT))
        else:
            clocks = clocks_of(sources[chosen], sources[i])
            placed.append(place(parts[chosen], part, clocks, thresholds))
    return placed


def _number(lane: Array, index: Array) -> Array:
    """One number per (lane, index), NO_ROW where the index is NULL."""
    number = np.full(len(lane), NO_ROW)
    usable = index != NULL
    if usable.any():
        low = int(index[usable].min())
        span = int(index[usable].max()) - low + 1
        number[usable] = lane[usable] * span + (index[usable] - low)
    return _renumber(number)[0]


def _renumber(number: Array) -> tuple[Array, int]:
    distinct, inverse = np.unique(number[number >= 0], return_inverse=True)
    dense = np.full(len(number), NO_ROW)
    dense[number >= 0] = inverse.reshape(-1)
    return dense, len(distinct)


def _verify(
    lanes: Lanes,
    match: Array,
    reason: Codes,
    symmetric: Mask,
    aligned_end: Array,
    duration: Array,
    thresholds: MatchingThresholds,
) -> Array:
    """Take out of their match all rows that contradict it. Sets reasons; returns the matches."""
    match = match.copy()
    num = int(match.max(initial=-1)) + 1

    def drop(bad: Array, why: Unmatched) -> None:
        reason[bad] = why
        match[bad] = NO_ROW

    for value, unknown in ((lanes.content, NO_ROW), (lanes.size, NULL)):
        inside = np.flatnonzero((match >= 0) & (value != unknown))
        usual = median_by(match[inside], value[inside], num)
        drop(inside[value[inside] != usual[match[inside]]], Unmatched.CONTENT_DIFFERS)
    inside = np.flatnonzero(match >= 0)
    shortest = np.full(num, np.iinfo(np.int64).max)
    np.minimum.at(shortest, match[inside], duration[inside])
    allowed = np.maximum(shortest, thresholds.end_tolerance_ns)
    held = np.flatnonzero((match >= 0) & symmetric)
    usual = median_by(match[held], aligned_end[held], num)
    late = np.abs(aligned_end[held] - usual[match[held]]) > allowed[match[held]]
    drop(held[late], Unmatched.ENDS_DIFFER)
    inside = np.flatnonzero(match >= 0)
    alone = inside[np.bincount(match[inside], minlength=num)[match[inside]] == 1]
    gpus = _gpus_of_lanes(lanes)
    drop(alone, Unmatched.OUTSIDE_WINDOW)
    reason[alone[gpus[lanes.lane[alone]] == 1]] = Unmatched.PEERS_MISSING
    # Left without a partner because the partner contradicted: the same reason holds for it.
    unplaced = (lanes.lane >= 0) & (match < 0) & (reason == Unmatched.MATCHED)
    reason[unplaced] = Unmatched.OUTSIDE_WINDOW
    return match


def _gpus_of_lanes(lanes: Lanes) -> Array:
    used = lanes.lane >= 0
    _, first = np.unique(packed(lanes.lane[used], lanes.gpu[used]), return_index=True)
    return np.bincount(lanes.lane[used][first], minlength=lanes.num_lanes)


def median_by(key: Array, value: Array, num_keys: int) -> Array:
    """The lower median of the values of each key: int64, exact; 0 where a key has none."""
    order = np.lexsort((value, key))
    count = np.bincount(key, minlength=num_keys)
    middle = np.cumsum(count) - count + np.maximum(count - 1, 0) // 2
    found = np.zeros(num_keys, np.int64)
    some = count > 0
    found[some] = value[order][middle[some]]
    return found


def matched_collectives(trace: Trace) -> Table | Unavailable:
    """Which kernels on different GPUs are one collective: a row per operation.

    ``match`` numbers the collectives; ``reason`` says why an operation has none.
    """
    if not len(trace.collectives):
        return Unavailable("the trace holds no communication")
    return matched_table(trace, match_collectives(trace))


def matched_table(trace: Trace, found: Matches) -> Table:
    """The table of ``matched_collectives``."""
    table, lanes, match = trace.collectives, found.lanes, found.match
    row = table["gpu_op_row"]
    gpus = trace.gpus
    rank = np.array([NULL if gpu.rank is None else gpu.rank for gpu in gpus], np.int64)
    step_row = trace.gpu_ops["step_row"][row]
    step = np.append(trace.steps["number"], NULL)[step_row]
    lane_known = lanes.lane >= 0
    inside = match >= 0
    count = np.bincount(match[inside], minlength=found.num_matches)

    def of_lane(values: Array, unknown: int) -> Array:
        return np.where(lane_known, np.append(values, unknown)[lanes.lane], unknown)

    columns = {
        "gpu_op_row": row,
        "source": trace.gpu_ops["source"][row],
        "device": trace.gpu_ops["device"][row],
        "rank": rank[lanes.gpu],
        "match": match,
        "lane": lanes.lane,
        "collective": _from_any(match, lanes.content, NO_ROW),
        "bytes": _from_any(match, table["bytes"], NULL),
        "group": of_lane(lanes.group, NO_ROW),
        "group_ranks": of_lane(lanes.ranks, NO_ROW),
        "group_size": of_lane(lanes.group_size, NULL),
        "num_matched": np.where(inside, np.append(count, 0)[match], 0),
        "step_row": step_row,
        "step_number": _from_any(match, step, NULL, always=True),
        "symmetric": found.symmetric,
        "inferred": lanes.inferred & lane_known,
        "basis": found.basis,
        "reason": found.reason,
    }
    # A match is a number, not a row: "unknown" is NULL in the table.
    columns["match"] = np.where(inside, match, NULL)
    columns["lane"] = np.where(lane_known, lanes.lane, NULL)
    typed = {c.name: columns[c.name].astype(c.dtype) for c in MATCHED_COLLECTIVES.columns}
    return Table(MATCHED_COLLECTIVES, typed, trace.strings)


def _from_any(match: Array, value: Array, unknown: int, *, always: bool = False) -> Array:
    """What any GPU of the match knows, for those that do not know (``always``: for all)."""
    value = value.astype(np.int64)
    known = np.flatnonzero((match >= 0) & (value != unknown))
    told = np.full(int(match.max(initial=-1)) + 2, unknown)
    told[match[known[::-1]]] = value[known[::-1]]
    missing = (match >= 0) if always else (match >= 0) & (value == unknown)
    return np.where(missing, told[match], value)


def unmatched_collectives(trace: Trace) -> Table | Unavailable:
    """What could not be matched across ranks, and why: a row per GPU and reason."""
    matched = matched_collectives(trace)
    if isinstance(matched, Unavailable):
        return matched
    return unmatched_of(trace, matched)


def unmatched_of(trace: Trace, matched: Table) -> Table:
    """The same from a table of ``matched_collectives``."""
    left = matched.take(matched["reason"] != Unmatched.MATCHED)
    row = left["gpu_op_row"]
    duration = trace.gpu_ops["end_ns"][row] - trace.gpu_ops["start_ns"][row]
    names = ("source", "device", "rank", "reason")
    keys = [left[name].astype(np.int64) for name in names]
    _, first, inverse = np.unique(packed(*keys), return_index=True, return_inverse=True)
    distinct = np.stack(keys, 1)[first]
    order = np.lexsort((distinct[:, 3], distinct[:, 1], distinct[:, 0]))
    columns: dict[str, Any] = {name: distinct[order, i] for i, name in enumerate(names)}
    columns["num_ops"] = np.bincount(inverse, minlength=len(distinct))[order]
    columns["kernel_time_ns"] = sum_by(inverse, duration, len(distinct))[order]
    typed = {c.name: columns[c.name].astype(c.dtype) for c in UNMATCHED_COLLECTIVES.columns}
    return Table(UNMATCHED_COLLECTIVES, typed, trace.strings)


ANALYZERS = (
    Analyzer("matched_collectives", Detail.GPU, MATCHED_COLLECTIVES, matched_collectives),
    Analyzer("unmatched_collectives", Detail.GPU, UNMATCHED_COLLECTIVES, unmatched_collectives),
)
