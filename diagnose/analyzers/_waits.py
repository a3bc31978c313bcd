"""Arrivals on one clock, and what each rank waited for in every matched collective."""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._lanes import Mask
from diagnose.analyzers.clocks import Alignment, ClockModel, align_clocks
from diagnose.analyzers.matching import Matches, match_collectives, median_by
from diagnose.intervals import Array, Intervals, covered_length, union
from diagnose.schema import NULL, Activity
from diagnose.trace import Trace

Floats = npt.NDArray[np.float64]


class Waits(NamedTuple):
    """One entry per matched operation, sorted by match; ``of_match`` arrays per match.

    ``row`` indexes ``trace.collectives``. Arrivals are on the reference's clock.
    ``last`` and ``second`` (per match) are entries: the last and the next-to-last
    to arrive; ``told_apart`` says whether the clocks can tell the two apart.
    ``lead`` (per match) is how far the last is behind the next, ``inherited`` the
    part of it that the last rank had itself spent waiting in other groups.
    ``exposed`` is the wait beside which the waiting GPU computed nothing;
    ``blocked`` the part of it that the last rank's own lateness caused.
    """

    row: Array
    match: Array
    gpu: Array
    arrival: Array
    duration: Array
    transfer: Array
    wait: Array
    exposed: Array
    blocked: Array
    num_matched: Array
    first_arrival: Array
    last_arrival: Array
    middle_arrival: Array
    last: Array
    second: Array
    lead: Array
    inherited: Array
    told_apart: Mask
    comparable: Mask
    uncertainty: Floats

    @property
    def own_lead(self) -> Array:
        """Per match: how far the last rank was behind through itself. 0 where not told apart."""
        return np.where(self.told_apart, self.lead - self.inherited, 0)


class Analysed(NamedTuple):
    """Everything that the tables across ranks are drawn from."""

    matches: Matches
    clocks: ClockModel
    waits: Waits


# The tables across ranks are drawn from one analysis. Only the last is kept, and only
# as long as its trace lives: traces are immutable, so it cannot go stale.
_last: tuple[weakref.ref[Trace], Analysed] | None = None


def analyse(trace: Trace) -> Analysed:
    """Match, align, and measure waits. Remembered for the last trace."""
    global _last
    known = _last
    if known is not None and known[0]() is trace:
        return known[1]
    found = _analyse(trace)
    _last = (weakref.ref(trace, _forget), found)
    return found


def _forget(reference: weakref.ref[Trace]) -> None:
    global _last
    if _last is not None and _last[0] is reference:
        _last = None


def _analyse(trace: Trace) -> Analysed:
    matches = match_collectives(trace)
    clocks = align_clocks(trace, matches)
    return Analysed(matches, clocks, _waits(trace, matches, clocks))


def _waits(trace: Trace, matches: Matches, clocks: ClockModel) -> Waits:
    num = matches.num_matches
    row = np.flatnonzero(matches.match >= 0)
    source = trace.gpu_ops["source"][trace.collectives["gpu_op_row"][row]].astype(np.int64)
    start, end = matches.start[row], matches.end[row]
    arrival = start + clocks.correction(source, start)
    order = np.lexsort((matches.lanes.gpu[row], arrival, matches.match[row]))
    row, source, start, end, arrival = (x[order] for x in (row, source, start, end, arrival))
    match, gpu, duration = matches.match[row], matches.lanes.gpu[row], end - start
    count = np.bincount(match, minlength=num)
    stop = np.cumsum(count)
    # Sorted by arrival within each match; every match has at least two entries.
    first, last = stop - count, stop - 1
    second, middle = stop - 2, stop - count + (count - 1) // 2
    shortest = np.full(num, np.iinfo(np.int64).max)
    np.minimum.at(shortest, match, duration)
    transfer = shortest[match]
    comparable, uncertainty = _trust(clocks, source, match, num)
    lead = arrival[last] - arrival[second] if num else np.empty(0, np.int64)
    told_apart = comparable & (lead > uncertainty)
    hidden = _Hidden(trace, gpu)
    local = trace.gpu_ops["start_ns"][trace.collectives["gpu_op_row"][row]]
    wait = duration - transfer
    exposed = hidden.exposed(local, local + wait)
    inherited = _inherited(matches, row, gpu, end, start, exposed, last, second, lead)
    own = np.where(told_apart, lead - inherited, 0)
    until = np.where(comparable[match], arrival[last][match] - arrival, 0) if num else wait
    until = np.minimum(until, duration)
    blocked = hidden.exposed(local + np.maximum(until - own[match], 0), local + until)
    return Waits(
        row=row,
        match=match,
        gpu=gpu,
        arrival=arrival,
        duration=duration,
        transfer=transfer,
        wait=wait,
        exposed=exposed,
        blocked=blocked,
        num_matched=count,
        first_arrival=arrival[first],
        last_arrival=arrival[last],
        middle_arrival=arrival[middle],
        last=last,
        second=second,
        lead=lead,
        inherited=inherited,
        told_apart=told_apart,
        comparable=comparable,
        uncertainty=uncertainty,
    )


def _trust(clocks: ClockModel, source: Array, match: Array, num: int) -> tuple[Mask, Floats]:
    """Per match: whether arrivals can be compared, and how well (ns)."""
    impossible = np.zeros(num, bool)
    impossible[match[clocks.alignment[source] == Alignment.IMPOSSIBLE]] = True
    residual = np.where(np.isnan(clocks.p95), 0.0, clocks.p95)
    worst = np.zeros(num)
    np.maximum.at(worst, match, residual[source])
    # The difference of two clocks, each off by its residual.
    return ~impossible, 2.0 * worst


class _Hidden:
    """How much of a time on a GPU its own compute covers."""

    def __init__(self, trace: Trace, gpu: Array) -> None:
        order = np.argsort(gpu, kind="stable")
        cuts = np.searchsorted(gpu[order], np.arange(len(trace.gpus) + 1))
        self._rows = [order[a:b] for a, b in itertools.pairwise(cuts.tolist())]
        self._compute = [
            compute_of(trace, number) if rows.size else None
            for number, rows in enumerate(self._rows)
        ]

    def exposed(self, start: Array, end: Array) -> Array:
        """Length of each ``[start, end)`` (clock of the source) without compute beside it."""
        left: Array = np.maximum(end - start, 0)
        for rows, compute in zip(self._rows, self._compute, strict=True):
            if compute is not None:
                left[rows] -= covered_length(compute, start[rows], end[rows])
        return left


def compute_of(trace: Trace, number: int) -> Intervals:
    """When a GPU computes: sorted, disjoint."""
    rows = trace.on(trace.gpus[number])
    chosen = trace.gpu_ops["activity"][rows] == Activity.COMPUTE
    return union(trace.gpu_ops["start_ns"][rows][chosen], trace.gpu_ops["end_ns"][rows][chosen])


def _inherited(
    matches: Matches,
    row: Array,
    gpu: Array,
    end: Array,
    start: Array,
    exposed: Array,
    last: Array,
    second: Array,
    lead: Array,
) -> Array:
    """Per match: how much of the last rank's lateness it had spent waiting elsewhere.

    Since its previous operation in this lane the last rank may have waited in
    other groups. What it waited there beyond what the next-to-last rank waited is
    not its own doing.
    """
    if not len(row):
        return np.empty(0, np.int64)
    previous = _previous_end(matches, row)
    waited = _waited_between(gpu, end, exposed, previous, start)
    found: Array = np.clip(waited[last] - waited[second], 0, np.maximum(lead, 0))
    return found


def _previous_end(matches: Matches, row: Array) -> Array:
    """End of the operation before each row in its lane on its GPU; NULL for the first."""
    lanes = matches.lanes
    order = np.lexsort((lanes.position, lanes.gpu, lanes.lane))
    before = np.full(len(lanes.lane), NULL)
    if len(order):
        same = (np.diff(lanes.lane[order]) == 0) & (np.diff(lanes.gpu[order]) == 0)
        before[order[1:][same]] = matches.end[order[:-1][same]]
    return before[row]


def _waited_between(gpu: Array, end: Array, exposed: Array, after: Array, until: Array) -> Array:
    """Exposed wait on the same GPU in operations that ended in ``(after, until]``."""
    order = np.lexsort((end, gpu))
    waited = np.zeros(len(gpu), np.int64)
    cuts = np.searchsorted(gpu[order], np.arange(int(gpu.max()) + 2))
    for low, high in itertools.pairwise(cuts.tolist()):
        rows = order[low:high]
        ends, total = end[rows], np.concatenate([[0], np.cumsum(exposed[rows])])
        done = total[np.searchsorted(ends, until[rows], side="right")]
        waited[rows] = done - total[np.searchsorted(ends, after[rows], side="right")]
    return waited


def upper_median(waits: Waits, values: Array) -> Array:
    """Per match: the upper median of values per entry."""
    found: Array = -median_by(waits.match, -values, len(waits.num_matched))
    return found
