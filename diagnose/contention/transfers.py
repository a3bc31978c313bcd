"""``communication_slowdown``: the reverse, how much slower bytes move while compute runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.analyzers._waits import Waits, analyse, compute_of
from diagnose.analyzers.ranks import nothing_matched
from diagnose.contention._changes import Runs
from diagnose.contention._figures import (
    LEAST_PAIRS,
    Columns,
    pairs_by_label,
    slowdown_columns,
    table_of,
)
from diagnose.contention._measured import Fate, Measured
from diagnose.contention._occurrences import Floats, Mask, Occurrences, packed
from diagnose.contention._pairing import ALONE_SHARE, pair
from diagnose.contention._rates import Estimate
from diagnose.contention._tables import COMMUNICATION_SLOWDOWN
from diagnose.contention._twins import Twins, find_twins, quantile_by
from diagnose.contention.slowdown import other_trace
from diagnose.intervals import Array, covered_length
from diagnose.schema import NO_ROW, NULL
from diagnose.trace import Table, Trace

_KEY = ("group", "collective", "bytes", "group_size")


def communication_slowdown(trace: Trace, *, alone: Any = None) -> Table | Unavailable:
    """How much slower collectives move bytes beside compute. A table of ``COMMUNICATION_SLOWDOWN``.

    What is compared is the transfer of each matched collective: its shortest duration over
    ranks, so that waiting for late ranks is no part of it. Its overlapped share is the mean
    over the ranks. Twins are collectives of the same kind, size and group beside no compute;
    with ``alone``, those of that recording. A row per kind and size, and one per kind.

    Unavailable with one GPU, where waiting cannot be told from moving bytes, and with
    fewer than three overlapped collectives that have twins.
    """
    other = other_trace(alone)
    transfers = _Transfers(trace)
    if not len(transfers.match):
        missing = nothing_matched(trace)
        return Unavailable(
            f"{missing.because}, and one rank alone cannot tell waiting from moving bytes",
            missing.remedy,
        )
    theirs = None if other is None else _Transfers(other)
    known = transfers.paired(theirs)
    if len(known.paired) < LEAST_PAIRS:
        overlapped = int(np.count_nonzero(known.is_overlapped))
        where = "this recording" if other is None else "the recording given as --alone"
        return Unavailable(
            f"of {overlapped:,} matched collectives beside compute {len(known.paired)} have a twin "
            f"(the same kind, size and group) beside none in {where}; {LEAST_PAIRS} are needed",
            "record the same job with communication serialised and give it as --alone",
        )
    return transfers.table(known)


class _Transfers:
    """The matched collectives of a trace, each once for all ranks."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        waits = analyse(trace).waits
        size = trace.collectives["group_size"][waits.row]
        whole = (size == NULL) | (waits.num_matched[waits.match] >= size)
        known = trace.collectives.known("bytes")[waits.row] & (waits.transfer > 0)
        self._entry = np.flatnonzero(whole & known)
        self._waits: Waits = waits
        _, self._first, self._place = np.unique(
            waits.match[self._entry], return_index=True, return_inverse=True
        )
        self._place = self._place.reshape(-1)
        self.match = waits.match[self._entry][self._first]
        self._row = waits.row[self._entry][self._first]
        self._transfer = waits.transfer[self._entry][self._first]
        self._compute = {
            gpu: compute_of(trace, gpu) for gpu in np.unique(waits.gpu[self._entry]).tolist()
        }

    def key(self, name: str) -> Array:
        return self.trace.collectives[name][self._row].astype(np.int64)

    def beside(self, length: Floats) -> Floats:
        """Mean over ranks of the time beside compute, in the first ``length`` of each transfer."""
        waits, entry = self._waits, self._entry
        rows = self.trace.collectives["gpu_op_row"][waits.row[entry]]
        start = self.trace.gpu_ops["start_ns"][rows] + waits.wait[entry]
        end = start + np.rint(length).astype(np.int64)[self._place]
        covered = np.zeros(len(entry), np.int64)
        for gpu, compute in self._compute.items():
            own = np.flatnonzero(waits.gpu[entry] == gpu)
            covered[own] = covered_length(compute, start[own], end[own])
        number = np.bincount(self._place)
        return np.bincount(self._place, covered) / number

    def seen(self) -> Occurrences:
        """As work of one class, compute, beside it."""
        num = len(self.match)
        zero = np.zeros(num, np.int64)
        start = self._waits.first_arrival[self.match]
        group = packed(*(self.key(name) for name in _KEY))
        _, first = np.unique(group, return_index=True)
        beside = np.rint(self.beside(self._transfer.astype(np.float64))).astype(np.int64)
        return Occurrences(
            row=np.arange(num),
            gpu=zero,
            group=group,
            start=start,
            end=start + self._transfer,
            beside=beside[:, None],
            crowded=zero,
            classes=np.zeros(1, np.int64),
            unclear=np.zeros(num, bool),
            group_row=first,
            group_shapes=np.full(len(first), NO_ROW),
        )

    def paired(self, theirs: _Transfers | None) -> Measured:
        seen = self.seen()

        def expose(expected: Floats) -> Floats:
            length = np.maximum(np.where(np.isnan(expected), seen.duration, expected), 1)
            found: Floats = (self.beside(length) / length)[:, None]
            return found

        given = None if theirs is None else self._twins_of(seen, theirs)
        return pair(seen, _runs(seen), np.ones(len(seen.row), bool), expose, given=given)

    def _twins_of(self, seen: Occurrences, theirs: _Transfers) -> tuple[Twins, Mask]:
        ours = {key: group for group, key in enumerate(self._keys(seen))}
        other = theirs.seen()
        same = np.array([ours.get(key, NO_ROW) for key in theirs._keys(other)], np.int64)
        group = same[other.group]
        free = other.beside.sum(1) <= ALONE_SHARE * other.duration
        rows = np.flatnonzero(free & (group >= 0))
        runs = _runs(other).take(rows)._replace(group=group[rows])
        duration = other.duration[rows].astype(np.float64)
        twins, _, disagree = find_twins(runs, duration, seen.num_groups)
        return twins, disagree

    def _keys(self, seen: Occurrences) -> list[tuple[object, ...]]:
        first = seen.group_row
        texts = [self.trace.strings.decode(self.key(name)[first]) for name in _KEY[:2]]
        numbers = [self.key(name)[first].tolist() for name in _KEY[2:]]
        return list(zip(*texts, *numbers, strict=True))

    def table(self, known: Measured) -> Table:
        """A row per kind, then per kind and size."""
        kind, size = self.key("collective"), self.key("bytes")
        parts = []
        for whole in (True, False):
            label = packed(kind) if whole else packed(kind, size)
            _, first = np.unique(label, return_index=True)
            columns: Columns = {
                "collective": kind[first],
                "bytes": np.full(len(first), NULL) if whole else size[first],
            }
            parts.append(columns | _columns(known, label, len(first)))
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        keep = np.flatnonzero(joined["num_overlapped"] > 0)
        strings = self.trace.strings
        kinds = [strings[code] if code >= 0 else "" for code in joined["collective"].tolist()]
        keep = keep[np.lexsort((joined["bytes"][keep], np.array(kinds)[keep]))]
        picked = {name: column[keep] for name, column in joined.items()}
        return table_of(COMMUNICATION_SLOWDOWN, picked, strings)


def _columns(known: Measured, label: Array, num: int) -> Columns:
    rows = known.paired
    columns = pairs_by_label(known, label, num)
    split = known.by_label(rows, label[rows], num)
    few = columns["num_paired"] < LEAST_PAIRS
    rate, ratio = known.rates(split), known.ratios(split)
    columns |= slowdown_columns(
        Estimate(*(np.where(few, np.nan, one) for one in rate)),
        Estimate(*(np.where(few, np.nan, one) for one in ratio)),
        None,
    )
    duration = known.seen.duration.astype(np.float64)
    twin = np.flatnonzero(np.isin(known.seen.group, known.seen.group[rows]))
    twin = twin[known.fate[twin] == Fate.ALONE]
    columns["alone_ns"] = quantile_by(label[twin], duration[twin], 0.5, num)
    columns["overlapped_transfer_ns"] = quantile_by(label[rows], duration[rows], 0.5, num)
    return columns


def _runs(seen: Occurrences) -> Runs:
    nothing = np.zeros(len(seen.row))
    return Runs(seen.group, seen.gpu, seen.start, nothing, np.zeros(len(seen.row), np.int64))
