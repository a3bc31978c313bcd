"""Which communication belongs together, before anything is compared in time.

A lane is one ordered sequence of communication among the same GPUs: the
collectives of one process group, or what one rank sends to another. The nth
operation of a lane on one GPU and the nth on another are the same collective,
up to where each recording begins.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.schema import NO_ROW, NULL, Kind
from diagnose.trace import Strings, Trace

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank can leave before every rank has entered: they end together."""

SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv")
"""Collectives whose message size is the same on every rank (uneven all-to-alls differ)."""

_PAIR, _EXCHANGE = 1, 2


class Unmatched(IntEnum):
    """Why an operation was matched with none on another GPU."""

    MATCHED = 0
    NO_COLLECTIVE = 1
    """A copy of which the trace does not say to which collective it belongs."""
    NO_GROUP = 2
    """No metadata, and its stream serves several process groups or none that is known."""
    PEER_UNKNOWN = 3
    """A send or receive that does not say with whom, or on a source of unknown rank."""
    GROUP_OF_ONE = 4
    """The group has one rank: there is nobody to match."""
    PEERS_MISSING = 5
    """No other GPU of the group is in the trace."""
    OUTSIDE_WINDOW = 6
    """The others' recordings do not reach this operation."""
    CONTENT_DIFFERS = 7
    """What would be its match is another collective or another size."""
    ENDS_DIFFER = 8
    """What would be its match ends at another time, beyond any clock offset."""
    AMBIGUOUS = 9
    """Several ways to match fit equally well: a periodic trace without marks or common clock."""


class Lanes(NamedTuple):
    """Per row of ``trace.collectives``, and per lane.

    ``lane``: NO_ROW where unknown (then ``reason`` says why). ``position``: place
    in the order of issue within lane and GPU. ``gpu`` indexes ``trace.gpus``.
    ``content``: code of the collective (two sides of a send have one content),
    NO_ROW where unknown. ``size``: bytes where all ranks must agree, else NULL.
    ``inferred``: the group was concluded from the stream. ``group``, ``ranks``,
    ``group_size`` are per lane.
    """

    lane: Array
    position: Array
    gpu: Array
    content: Array
    size: Array
    inferred: Mask
    reason: Codes
    group: Array
    ranks: Array
    group_size: Array

    @property
    def num_lanes(self) -> int:
        return len(self.group)


def lanes_of(trace: Trace) -> Lanes:
    """The lanes of a trace."""
    table, ops = trace.collectives, trace.gpu_ops
    row = table["gpu_op_row"]
    gpu = _gpu_of(trace, row)
    stream, kernel = ops["stream"][row], ops["name"][row]
    content = _content(trace, kernel, gpu)
    reason = np.zeros(len(table), np.int8)
    named = (table["group"] >= 0) | (table["group_ranks"] >= 0)
    identity, keys = _identities(trace, gpu, named)
    inferred = ~named
    identity = _infer(identity, gpu, stream, content)
    if not keys:
        # Nothing names a group: take all for the job's default group; ends will tell.
        identity, keys = np.zeros(len(table), np.int64), [(NO_ROW, NO_ROW)]
    reason[identity < 0] = Unmatched.NO_GROUP
    is_copy = (ops["kind"][row] != Kind.KERNEL) & (table["collective"] < 0)
    reason[is_copy] = Unmatched.NO_COLLECTIVE
    form, low, high = _pairs(trace, gpu, content, reason)
    usable = reason == Unmatched.MATCHED
    lane_key = packed(identity[usable], form[usable], low[usable], high[usable])
    _, first, number = np.unique(lane_key, return_index=True, return_inverse=True)
    identity_of, form_of = identity[usable][first], form[usable][first]
    lane = np.full(len(table), NO_ROW, np.int64)
    lane[usable] = number
    position = _positions(lane, gpu, _issue_order(trace, row, gpu, stream))
    names = np.array(keys, np.int64).reshape(-1, 2)[identity_of]
    size = np.where(_is_one_of(trace.strings, SAME_SIZE)[content], table["bytes"], NULL)
    size = np.where(content >= 0, size, NULL)
    group_size = _group_sizes(trace, lane, len(first), form_of == _PAIR)
    reason[usable & (np.append(group_size, NULL)[lane] == 1)] = Unmatched.GROUP_OF_ONE
    lane[reason != Unmatched.MATCHED] = NO_ROW
    return Lanes(
        lane, position, gpu, content, size, inferred, reason, names[:, 0], names[:, 1], group_size
    )


def is_symmetric(trace: Trace, content: Array) -> Mask:
    """Which operations cannot be left before every rank has entered."""
    found: Mask = _is_one_of(trace.strings, SYMMETRIC)[content] & (content >= 0)
    return found


def packed(*columns: Array) -> Array:
    """One int64 per row, equal exactly where all columns are equal, in the columns' order.

    Sorting it is many times faster than sorting rows.
    """
    key = np.zeros(len(columns[0]), np.int64)
    if not len(key):
        return key
    size = 1
    for column in columns:
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span > 2**31:
            distinct, column = np.unique(column, return_inverse=True)
            low, span = 0, len(distinct)
        if size > 2**62 // span:
            distinct, key = np.unique(key, return_inverse=True)
            size = len(distinct)
        key = key * span + (column - low)
        size *= span
    return key


def _is_one_of(strings: Strings, words: tuple[str, ...]) -> Mask:
    codes = [code for word in words if (code := strings.code(word)) >= 0]
    # One entry more than there are strings: the code "unknown" (-1) must index something.
    found = np.zeros(len(strings) + 1, bool)
    found[codes] = True
    return found


def _gpu_of(trace: Trace, row: Array) -> Array:
    source, device = trace.gpu_ops["source"][row], trace.gpu_ops["device"][row]
    index = {(gpu.source, gpu.device): number for number, gpu in enumerate(trace.gpus)}
    key = packed(source.astype(np.int64), device.astype(np.int64))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    pairs = zip(source[first].tolist(), device[first].tolist(), strict=True)
    number = np.array([index[pair] for pair in pairs], np.int64)
    return number[inverse] if len(row) else np.empty(0, np.int64)


def _content(trace: Trace, kernel: Array, gpu: Array) -> Array:
    """The collective of each row; for a bare SendRecv kernel what its named twins do.

    NCCL runs all-to-alls with the kernel of sends and receives, so that kernel's
    name alone does not tell them apart.
    """
    table = trace.collectives
    content: Array = table["collective"].astype(np.int64)
    exchange = trace.strings.code("send_recv")
    bare = (content == exchange) & (table["name"] < 0)
    if exchange == NO_ROW or not bare.any():
        return content
    told = (table["name"] >= 0) & (content >= 0)
    key = packed(gpu, kernel.astype(np.int64))
    found = _only(key[told], content[told], key[bare])
    content = content.copy()
    content[bare] = np.where(found >= 0, found, exchange)
    return content


def _identities(trace: Trace, gpu: Array, named: Mask) -> tuple[Array, list[tuple[int, int]]]:
    """Number of the process group of each row (NO_ROW: not said), and (name, ranks) of each.

    A group is its name and its ranks as written (also a shortened list begins
    the same on every member). Where the members call the same complete list by
    different names, the list alone counts. Where some members do not write the
    list, the name alone does, if it stands for one list.
    """
    table = trace.collectives
    columns = [gpu, table["group"].astype(np.int64), table["group_ranks"].astype(np.int64)]
    columns = [column[named] for column in columns]
    _, first, inverse = np.unique(packed(*columns), return_index=True, return_inverse=True)
    distinct = np.stack(columns, 1)[first]
    names_of: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    lists_of: dict[int, set[int]] = defaultdict(set)
    for member, name, ranks in distinct.tolist():
        if ranks >= 0:
            names_of[ranks][member].add(name)
            lists_of[name].add(ranks)
    by_list = {
        ranks
        for ranks, members in names_of.items()
        if "..." not in trace.strings[ranks] and len({frozenset(n) for n in members.values()}) > 1
    }
    keys: dict[tuple[int, int], int] = {}
    number = np.empty(len(distinct), np.int64)
    for index, (_, name, ranks) in enumerate(distinct.tolist()):
        if ranks < 0 and len(lists_of.get(name, ())) == 1:
            (ranks,) = lists_of[name]
        key = (NO_ROW, ranks) if ranks in by_list else (name, ranks)
        number[index] = keys.setdefault(key, len(keys))
    identity = np.full(len(table), NO_ROW, np.int64)
    identity[named] = number[inverse]
    return identity, list(keys)


def _infer(identity: Array, gpu: Array, stream: Array, content: Array) -> Array:
    """Fill in the group of rows without metadata where their stream leaves no choice.

    In turn: the stream's only group; the only group that does this collective on
    this stream; the GPU's only group; the only group of the trace.
    """
    identity = identity.copy()
    known = identity >= 0
    nothing = np.zeros_like(gpu)
    for key in (
        packed(gpu, stream),
        packed(gpu, stream, content),
        gpu,
        nothing,
    ):
        open_rows = identity < 0
        if not open_rows.any() or not known.any():
            break
        identity[open_rows] = _only(key[known], identity[known], key[open_rows])
    return identity


def _only(key: Array, value: Array, wanted: Array) -> Array:
    """For each wanted key: its value where all rows of that key have the same, else NO_ROW."""
    _, inverse = np.unique(np.concatenate([key, wanted]), return_inverse=True)
    known, asked = inverse[: len(key)], inverse[len(key) :]
    least = np.full(int(inverse.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    most = np.full(len(least), np.iinfo(np.int64).min)
    np.minimum.at(least, known, value)
    np.maximum.at(most, known, value)
    found: Array = np.where(least[asked] == most[asked], least[asked], NO_ROW)
    return found


def _pairs(trace: Trace, gpu: Array, content: Array, reason: Codes) -> tuple[Array, Array, Array]:
    """Form of each row's lane and, for sends and receives, (sender, receiver). Sets reasons."""
    table, strings = trace.collectives, trace.strings
    form, low, high = (np.zeros(len(table), np.int64) for _ in range(3))
    exchange = content == strings.code("send_recv")
    if strings.code("send_recv") == NO_ROW or not exchange.any():
        return form, low, high
    form[exchange] = _EXCHANGE
    written = table["name"]
    # One entry more: see _is_one_of.
    sends = np.append(strings.where(lambda w: w.lower().endswith("send")), False)[written]
    receives = np.append(strings.where(lambda w: "recv" in w.lower()), False)[written]
    told = exchange & (sends | receives)
    rank = np.array([NULL if g.rank is None else g.rank for g in trace.gpus], np.int64)[gpu]
    peer = table["peer"]
    complete = told & (rank != NULL) & (peer != NULL)
    form[complete] = _PAIR
    low[complete] = np.where(sends, rank, peer)[complete]
    high[complete] = np.where(sends, peer, rank)[complete]
    reason[told & ~complete] = Unmatched.PEER_UNKNOWN
    return form, low, high


def _issue_order(trace: Trace, row: Array, gpu: Array, stream: Array) -> Array:
    """Sort key of the order of issue on each GPU: by correlation id, by start where that fails.

    Streams run side by side, so starts do not give the order in which a group's
    collectives were issued; correlation ids do, as long as they rise along
    every stream.
    """
    ops = trace.gpu_ops
    start, correlation = ops["start_ns"][row], ops["correlation"][row]
    order = np.lexsort((ops["op_id"][row], start, stream, gpu))
    same = (np.diff(gpu[order]) == 0) & (np.diff(stream[order]) == 0)
    falls = same & (np.diff(correlation[order]) < 0)
    bad = np.zeros(len(trace.gpus), bool)
    bad[gpu[order][1:][falls]] = True
    bad[gpu[correlation == NULL]] = True
    primary = np.where(bad[gpu], start, correlation)
    ranked = np.lexsort((ops["op_id"][row], start, primary, gpu))
    place = np.empty(len(row), np.int64)
    place[ranked] = np.arange(len(row))
    return place


def _positions(lane: Array, gpu: Array, issue: Array) -> Array:
    order = np.lexsort((issue, gpu, lane))
    new = np.ones(len(lane), bool)
    new[1:] = (np.diff(lane[order]) != 0) | (np.diff(gpu[order]) != 0)
    first = np.flatnonzero(new)
    position = np.empty(len(lane), np.int64)
    position[order] = np.arange(len(lane)) - first[np.cumsum(new) - 1] if len(lane) else 0
    return position


def _group_sizes(trace: Trace, lane: Array, num_lanes: int, pair: Mask) -> Array:
    size = np.full(num_lanes, NULL)
    known = (lane >= 0) & (trace.collectives["group_size"] != NULL)
    np.maximum.at(size, lane[known], trace.collectives["group_size"][known])
    size[pair] = 2
    return size
