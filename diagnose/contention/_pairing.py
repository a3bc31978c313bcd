"""Pairs the compute kernels of a trace with twins that ran alone.

Which is which is decided by exposure: the share of ``[start, start + what the kernel
takes alone)`` that communication covers. It does not contain the kernel's own
duration, so a kernel is not counted as overlapped because it happened to run long.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from diagnose.contention._changes import Runs
from diagnose.contention._clock import Clocks, clocks
from diagnose.contention._kernels import families, matched_groups
from diagnose.contention._measured import Fate, Measured
from diagnose.contention._neighbours import company, same_company, usual
from diagnose.contention._occurrences import (
    Beside,
    Floats,
    Mask,
    Occurrences,
    by_collective,
    occurrences,
    packed,
)
from diagnose.contention._rates import Sample, rates, spread
from diagnose.contention._twins import Twins, disturbed, find_twins, quantile_by
from diagnose.intervals import Array
from diagnose.schema import NO_ROW
from diagnose.trace import Trace

ALONE_SHARE = 0.02
"""Exposure up to which a kernel counts as alone."""
CROWDED_SHARE = 0.1
"""Share of a kernel's time beside other compute from which it is left out."""

Key = tuple[Callable[[Trace], Array], bool]

# Tables of one trace are drawn from one pairing. Only the last traces' are kept, and only
# as long as these live: traces are immutable, so they cannot go stale.
_last: tuple[weakref.ref[Trace], weakref.ref[Trace] | None, dict[Key, Measured]] | None = None


def measured(
    trace: Trace,
    alone: Trace | None = None,
    *,
    class_of: Callable[[Trace], Array] = by_collective,
    correct: bool = True,
) -> Measured:
    """``measure``, remembered for the last trace (and recording of kernels alone)."""
    global _last
    known = _last
    other = None if alone is None else weakref.ref(alone)
    if known is None or known[0]() is not trace or (known[1] and known[1]()) is not alone:
        known = None
    if known is None or (known[1] is None) != (alone is None):
        known = _last = (weakref.ref(trace, _forget), other, {})
    key = (class_of, correct)
    if key not in known[2]:
        corrected = None if correct else known[2].get((class_of, True))
        if corrected is not None and not corrected.changes_divided:
            return corrected
        known[2][key] = measure(trace, alone, class_of=class_of, correct=correct)
    return known[2][key]


def _forget(reference: weakref.ref[Trace]) -> None:
    global _last
    if _last is not None and _last[0] is reference:
        _last = None


def measure(
    trace: Trace,
    alone: Trace | None = None,
    *,
    class_of: Callable[[Trace], Array] = by_collective,
    correct: bool = True,
) -> Measured:
    """Pair the kernels of a trace, with twins of its own or from the recording ``alone``.

    ``correct``: divide out changes of the clock, as far as they are known.
    """
    seen, beside = occurrences(trace, class_of)
    kernels = _Kernels(trace, seen)
    theirs = None if alone is None else _Kernels(alone, occurrences(alone)[0])
    # Twins of another recording compare only if both tell the clock.
    compare = theirs is None or (kernels.clock_told and theirs.clock_told)
    divided = correct and compare
    return pair(
        seen,
        kernels.runs(divided),
        kernels.usable,
        lambda expected: _shares(beside, seen, expected),
        given=None if theirs is None else _twins_of(kernels, theirs, divided),
        follow=divided if theirs is not None else correct,
        clocks=kernels.clocks,
        accompanied=_as_twins(kernels, theirs),
        step_row=trace.gpu_ops["step_row"][seen.row].astype(np.int64),
    )


def pair(
    seen: Occurrences,
    runs: Runs,
    usable: Mask,
    expose: Callable[[Floats], Floats],
    *,
    given: tuple[Twins, Mask] | None = None,
    follow: bool = False,
    clocks: Clocks | None = None,
    accompanied: Mask | None = None,
    step_row: Array | None = None,
) -> Measured:
    """Pair what was seen; also for other work than kernels.

    ``expose`` gives, for the durations expected alone (n,), the exposure to each class
    (n, classes). ``given``: twins from elsewhere, and which groups' disagree. ``follow``:
    fit how durations changed over time. Without ``usable`` an entry is crowded.
    ``accompanied``: whether other ranks computed on its GPU as beside its twins; all by default.
    """
    if accompanied is None:
        accompanied = np.ones(len(seen.row), bool)
    duration = seen.duration.astype(np.float64)
    far = np.zeros(len(seen.row), bool)
    if given is None:
        free = seen.beside.sum(1) <= ALONE_SHARE * seen.duration
        candidate = usable & accompanied & ~seen.unclear
        rows = np.flatnonzero(candidate & free)
        level = duration / np.exp(runs.clock)
        typical = quantile_by(seen.group[rows], level[rows], 0.5, seen.num_groups)
        exposure = expose(typical[seen.group] * np.exp(runs.clock))
        rows = np.flatnonzero(candidate & (exposure.sum(1) <= ALONE_SHARE))
        twins, far[rows], disagree = find_twins(runs.take(rows), duration[rows], seen.num_groups)
    else:
        twins, disagree = given
    if follow:
        # The drift of another recording says nothing of this one.
        twins.follow_changes(drift=given is None)
    predicted = twins.alone[seen.group] * twins.factor(runs)
    if given is not None:
        exposure = expose(predicted)
    exposed = exposure.sum(1)
    fate = np.full(len(seen.row), Fate.NO_TWIN, np.int64)
    fate[~np.isnan(predicted)] = Fate.PAIRED
    fate[disagree[seen.group]] = Fate.TWINS_DISAGREE
    fate[seen.unclear] = Fate.UNCLEAR
    fate[~accompanied & (fate == Fate.PAIRED)] = Fate.OTHER_COMPANY
    fate[~usable] = Fate.CROWDED
    fate[exposed <= ALONE_SHARE] = Fate.ALONE
    fate[far] = Fate.OUTLIER
    # Each overlapped kernel counts once, however little of it was overlapped: then the
    # slowdown is overlapped time over the time of that work, and costs add up.
    shares = np.divide(exposure, exposed[:, None], out=exposure, where=exposed[:, None] > 0)
    unknown = np.full(len(seen.row), NO_ROW)
    no_clock = Clocks(np.full(len(seen.row), np.nan), float("nan"))
    return _finished(
        Measured(
            seen=seen,
            twins=twins,
            fate=fate,
            exposure=shares,
            alone=predicted,
            stratum=unknown,
            noise=twins.spread,
            whole_noise=twins.spread,
            runs=runs,
            clocks=clocks or no_clock,
            step_row=unknown if step_row is None else step_row,
        )
    )


class _Kernels:
    """The compute kernels of one recording."""

    def __init__(self, trace: Trace, seen: Occurrences) -> None:
        self.trace, self.seen = trace, seen
        self.clocks = clocks(trace, seen)
        self.usable = (seen.crowded <= CROWDED_SHARE * seen.duration) & (seen.duration > 0)
        self.free = seen.beside.sum(1) <= ALONE_SHARE * seen.duration
        self.company = company(trace, seen)

    @property
    def clock_told(self) -> bool:
        """Whether the clock is known on every GPU."""
        return bool(self.clocks.told(self.seen.gpu).all())

    def runs(self, divided: bool) -> Runs:
        """``divided``: with the clock, which is then divided out."""
        seen = self.seen
        clock = self.clocks.logarithm(seen.gpu) if divided else np.zeros(len(seen.row))
        family = families(self.trace, seen).of_group[seen.group]
        return Runs(seen.group, seen.gpu, seen.start, clock, family)


def _as_twins(ours: _Kernels, theirs: _Kernels | None) -> Mask:
    """Which kernels had other ranks compute beside them as their twins had."""
    twins = ours if theirs is None else theirs
    group = twins.seen.group
    if theirs is not None:
        group = matched_groups(ours.trace, ours.seen, theirs.trace, theirs.seen)[group]
    rows = np.flatnonzero(twins.usable & ~twins.seen.unclear & twins.free & (group >= 0))
    of_twins = usual(group[rows], twins.company[rows], ours.seen.num_groups)
    return same_company(ours.company, of_twins[ours.seen.group])


def _twins_of(ours: _Kernels, theirs: _Kernels, divided: bool) -> tuple[Twins, Mask]:
    """Twins from another recording, as kernels and GPUs of this one; and which disagree."""
    to_ours = matched_groups(ours.trace, ours.seen, theirs.trace, theirs.seen)
    known = families(ours.trace, ours.seen)
    gpu_of_group = np.zeros(ours.seen.num_groups, np.int64)
    gpu_of_group[ours.seen.group] = ours.seen.gpu
    runs = theirs.runs(divided)
    rows = np.flatnonzero(
        theirs.usable & ~theirs.seen.unclear & theirs.free & (to_ours[runs.group] >= 0)
    )
    group = to_ours[runs.group[rows]]
    of_twins = usual(group, theirs.company[rows], ours.seen.num_groups)
    rows = rows[same_company(theirs.company[rows], of_twins[group])]
    group = to_ours[runs.group[rows]]
    runs = runs.take(rows)._replace(
        group=group, gpu=gpu_of_group[group], family=known.of_group[group]
    )
    duration = theirs.seen.duration[rows].astype(np.float64)
    twins, _, disagree = find_twins(runs, duration, ours.seen.num_groups)
    return twins, disagree


def _finished(known: Measured) -> Measured:
    """Leave out disturbed kernels, and find how much the others vary."""
    seen, fate, rows = known.seen, known.fate.copy(), known.paired
    log = np.log(seen.duration[rows] / known.alone[rows])
    far = disturbed(seen.group[rows], log, known.overlapped[rows], seen.num_groups)
    fate[rows[far]] = Fate.OUTLIER
    rows = rows[~far]
    stratum = np.full(len(seen.row), NO_ROW)
    if rows.size:
        stratum[rows] = packed(seen.group[rows], seen.beside[rows].argmax(1))
    num = int(stratum.max(initial=-1)) + 1
    alone = known.alone[rows]
    work = _relative_work(seen, rows, alone, known.exposure[rows])
    return replace(
        known,
        fate=fate,
        stratum=stratum,
        noise=spread(stratum[rows], work, num),
        whole_noise=spread(stratum[rows], seen.duration[rows] / alone, num),
    )


def _relative_work(seen: Occurrences, rows: Array, alone: Floats, exposure: Floats) -> Floats:
    """Work that each did at the rates of all, over what is expected: 1 but for noise."""
    beside = seen.beside[rows].astype(np.float64)
    free = seen.duration[rows] - beside.sum(1)
    rate, _ = rates(Sample(alone, free, beside, exposure))
    if np.isnan(rate[beside.sum(0) > 0]).any():
        total = beside.sum(1, keepdims=True)
        one, _ = rates(Sample(alone, free, total, np.ones_like(total)))
        rate = np.full(len(rate), one[0])
    found: Floats = (free + beside @ np.clip(np.nan_to_num(rate), 0, None)) / alone
    return found


def _shares(beside: Beside, seen: Occurrences, expected: Floats) -> Floats:
    expected = np.where(np.isnan(expected), seen.duration, expected)
    length = np.maximum(np.rint(expected), 1).astype(np.int64)
    covered = beside.lengths(seen.gpu, seen.start, seen.start + length)
    found: Floats = covered / length[:, None]
    return found
