"""How far two GPUs' recordings of one lane are apart, counted in operations.

Recordings of two ranks begin at different operations, and the metadata of those
launched before the window is missing. Within one lane all that is unknown is one
number, the shift: operation i of the one is operation i + shift of the other. A
shift is accepted only if the contents agree and the ends agree; a trace whose
steps all look alike fits several shifts, and then a common clock or the step
marks decide, or nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import Array
from diagnose.schema import NULL


class Basis(IntEnum):
    """What decided how operations were matched."""

    REFERENCE = 0
    """The GPU that the others were compared with."""
    SEQUENCE = 1
    """Sequence numbers."""
    ENDS = 2
    """Only one shift makes contents agree and operations end together."""
    SHARED_CLOCK = 3
    """Several shifts fit; the clock of the common host decided."""
    STEP_MARKS = 4
    """Several shifts fit, or too few operations for a test; equal step numbers decided."""
    HOST_CLOCKS = 5
    """Several shifts fit; the hosts' wall clocks decided."""
    ORDER = 6
    """Too few operations for a test; equal numbers of them were matched in order."""
    NONE = 7
    """Not matched."""


class Clocks(IntEnum):
    """What is known of two clocks before anything is measured."""

    UNRELATED = 0
    WALL = 1
    """Both give unix time, each kept by its own host."""
    SHARED = 2
    """One host, one clock."""


@dataclass(frozen=True, kw_only=True)
class MatchingThresholds:
    """Where matching stops believing. Origins: measured on two-rank recordings of one host
    unless said otherwise (true matches end within 0.2 to 15 us of each other).
    """

    end_tolerance_ns: int = 100_000
    """Ends of one collective may differ by this (or by its shortest duration, if that is more)."""
    spread_ratio: float = 3.0
    """A shift whose ends scatter more than this times the best one's is out."""
    spread_slack_ns: int = 20_000
    """... unless it is less than this above the best one's."""
    shared_clock_ns: int = 200_000
    """Largest offset between processes of one host."""
    clear_clock_share: float = 0.25
    """Wall clocks decide if the best shift's offset is below this share of the distance to the
    next one (judgement)."""
    min_pairs: int = 3
    """Fewer pairs say nothing about how ends scatter."""
    min_overlap: float = 0.25
    """A shift has to pair at least this share of the shorter recording (judgement)."""
    usual_overlap: float = 0.75
    """Below this share, dropped operations are considered as well (judgement)."""
    content_share: float = 0.99
    """Share of pairs whose contents must agree (dropped kernels break few)."""
    search_width: int = 32
    """Shifts tried to each side of every anchor."""


class Part(NamedTuple):
    """One GPU's operations in one lane, in order of issue. Arrays of one length.

    ``end`` is unix time if the base is known, else the source's own clock.
    ``told``: with metadata of its own.
    """

    content: Array
    size: Array
    sequence: Array
    step: Array
    start: Array
    end: Array
    told: npt.NDArray[np.bool_]


class Fit(NamedTuple):
    """A clock against another: ``offset_ns + drift * (time - origin_ns)``; scatter is a MAD."""

    offset_ns: int
    drift: float
    origin_ns: int
    scatter_ns: float
    num_points: int

    def at(self, time: Array) -> Array:
        moved: Array = self.offset_ns + np.round(self.drift * (time - self.origin_ns)).astype(
            np.int64
        )
        return moved


NO_FIT = Fit(0, 0.0, 0, float("nan"), 0)


class Placement(NamedTuple):
    """Index in the reference of each operation of a part (NULL: none), and how it was found."""

    places: Array
    basis: Basis
    fit: Fit
    num_rivals: int = 0


class _Candidate(NamedTuple):
    shift: int
    num_pairs: int
    fit: Fit


def fit_clock(time: Array, difference: Array) -> Fit:
    """Robust straight line through clock differences: medians of the outer thirds.

    A drift is reported only if it exceeds three standard errors of those medians
    (1.4826 MAD is sigma, 1.2533 sigma / sqrt(n) the error of a median) and moves
    the clock by more than a microsecond; with under 12 points there is none.
    """
    if not time.size:
        return NO_FIT
    # Floats hold unix nanoseconds only to 256 ns: take an integer off first.
    origin, base = int(time[0]), int(difference[0])
    origin += int(np.median(time - origin))
    offset = base + int(np.median(difference - base))
    rest = (difference - offset).astype(np.float64)
    scatter = float(np.median(np.abs(rest)))
    third = time.size // 3
    if third >= 4:
        order = np.argsort(time, kind="stable")
        early, late = order[:third], order[-third:]
        span = float(np.median(time[late] - origin) - np.median(time[early] - origin))
        rise = float(np.median(rest[late]) - np.median(rest[early]))
        drift = rise / span if span > 0 else 0.0
        level = rest - drift * (time - origin)
        shifted = float(np.median(level))
        straight = float(np.median(np.abs(level - shifted)))
        error = 1.2533 * 1.4826 * straight * np.sqrt(2.0 / third)
        if abs(rise) > max(3.0 * error, 1_000.0):
            return Fit(offset + round(shifted), drift, origin, straight, time.size)
    return Fit(offset, 0.0, origin, scatter, time.size)


def place(
    reference: Part, part: Part, clocks: Clocks, thresholds: MatchingThresholds
) -> Placement | None:
    """Where the operations of ``part`` stand in ``reference``.

    None if several shifts fit and nothing decides. A placement whose basis is
    NONE fits nowhere.
    """
    by_number = _by_sequence(reference, part)
    if by_number is not None:
        return by_number
    fitting = _fitting(reference, part, thresholds)
    if not fitting:
        return _piecewise(reference, part, thresholds)
    best = min(candidate.fit.scatter_ns for candidate in fitting)
    most = max(candidate.num_pairs for candidate in fitting)
    shorter = min(len(reference.end), len(part.end))
    if best > thresholds.spread_slack_ns or most < thresholds.usual_overlap * shorter:
        # Poor for a true match. Perhaps operations were dropped and no one shift is right.
        pieces = _piecewise(reference, part, thresholds)
        if thresholds.spread_ratio * pieces.fit.scatter_ns < best:
            return pieces
    basis, chosen = _decide(reference, part, fitting, clocks, thresholds)
    if chosen is None:
        return None
    index = np.arange(len(part.end)) - chosen.shift
    return Placement(index, basis, chosen.fit, len(fitting) - 1)


def _pairs_at(reference: Part, part: Part, shift: int) -> tuple[slice, slice]:
    first, last = max(0, -shift), min(len(reference.end), len(part.end) - shift)
    last = max(first, last)
    return slice(first, last), slice(first + shift, last + shift)


def _fit_at(reference: Part, part: Part, shift: int) -> Fit:
    ours, theirs = _pairs_at(reference, part, shift)
    return fit_clock(part.end[theirs], part.end[theirs] - reference.end[ours])


def _by_sequence(reference: Part, part: Part) -> Placement | None:
    """Match by sequence number; a number that covers several operations counts them."""
    ours, theirs = _numbered(reference), _numbered(part)
    if not ours[0].size or not theirs[0].size:
        return None
    numbers = np.concatenate([ours[1], theirs[1]])
    _, code = np.unique(numbers, axis=0, return_inverse=True)
    code = code.reshape(-1)
    _, a, b = np.intersect1d(code[: len(ours[1])], code[len(ours[1]) :], return_indices=True)
    index = np.full(len(part.end), NULL)
    if not a.size:
        return Placement(index, Basis.NONE, NO_FIT)
    ours_at, theirs_at = ours[0][a], theirs[0][b]
    shifts, counts = np.unique(theirs_at - ours_at, return_counts=True)
    if counts.max() >= 0.9 * counts.sum():
        # One shift for all: operations without a number follow their neighbours.
        shift = int(shifts[np.argmax(counts)])
        index = np.arange(len(part.end)) - shift
        return Placement(index, Basis.SEQUENCE, _fit_at(reference, part, shift))
    index[theirs_at] = ours_at
    fit = fit_clock(part.end[theirs_at], part.end[theirs_at] - reference.end[ours_at])
    return Placement(index, Basis.SEQUENCE, fit)


def _numbered(part: Part) -> tuple[Array, Array]:
    """Places with a sequence number, and (number, how many of that number came before)."""
    places = np.flatnonzero(part.sequence != NULL)
    number = part.sequence[places]
    order = np.argsort(number, kind="stable")
    new = np.ones(len(order), bool)
    new[1:] = np.diff(number[order]) != 0
    first = np.flatnonzero(new)
    before = np.empty(len(order), np.int64)
    if len(order):
        before[order] = np.arange(len(order)) - first[np.cumsum(new) - 1]
    return places, np.stack([number, before], 1)


def _fitting(reference: Part, part: Part, thresholds: MatchingThresholds) -> list[_Candidate]:
    """Shifts under which contents agree and ends scatter about as little as under the best."""
    shorter = min(len(reference.end), len(part.end))
    enough = max(1, int(np.ceil(thresholds.min_overlap * shorter)))
    found = []
    for shift in _shifts_to_try(reference, part, thresholds).tolist():
        ours, theirs = _pairs_at(reference, part, shift)
        if ours.stop - ours.start < enough:
            continue
        if _agreement(reference, part, ours, theirs) >= thresholds.content_share:
            fit = _fit_at(reference, part, shift)
            found.append(_Candidate(shift, fit.num_points, fit))
    tested = [c for c in found if c.num_pairs >= thresholds.min_pairs]
    if not tested:
        return found
    best = min(candidate.fit.scatter_ns for candidate in tested)
    limit = max(thresholds.spread_ratio * best, best + thresholds.spread_slack_ns)
    # A shift that leaves fewer pairs than a test takes stands or falls with the others.
    return [c for c in tested if c.fit.scatter_ns <= limit]


def _agreement(reference: Part, part: Part, ours: slice, theirs: slice) -> float:
    left, right = reference.content[ours], part.content[theirs]
    same = (left == right) | (left < 0) | (right < 0)
    left, right = reference.size[ours], part.size[theirs]
    same &= (left == right) | (left == NULL) | (right == NULL)
    return float(np.count_nonzero(same)) / len(same)


def _shifts_to_try(reference: Part, part: Part, thresholds: MatchingThresholds) -> Array:
    length, other = len(reference.end), len(part.end)
    if length + other <= 4 * thresholds.search_width:
        return np.arange(-length + 1, other)
    anchors = {0, other - length}
    if reference.told.any() and part.told.any():
        anchors.add(int(np.argmax(part.told)) - int(np.argmax(reference.told)))
    step = _step_shift(reference, part)
    if step is not None:
        anchors.add(step)
    nearest = np.searchsorted(np.sort(part.end), reference.end) - np.arange(length)
    inside = (reference.end > part.end.min()) & (reference.end <= part.end.max())
    if inside.any():
        anchors.add(int(np.median(nearest[inside])))
    width = np.arange(-thresholds.search_width, thresholds.search_width + 1)
    tried = np.unique(np.concatenate([anchor + width for anchor in anchors]))
    return tried[(tried > -length) & (tried < other)]


def _step_shift(reference: Part, part: Part) -> int | None:
    """The shift at which the first operations of equally numbered steps meet; None if unclear."""
    ours, our_first = _first_of_steps(reference)
    theirs, their_first = _first_of_steps(part)
    _, a, b = np.intersect1d(ours, theirs, return_indices=True)
    if not a.size:
        return None
    shifts, counts = np.unique(their_first[b] - our_first[a], return_counts=True)
    best = int(np.argmax(counts))
    return int(shifts[best]) if 2 * counts[best] > counts.sum() or counts.sum() == 1 else None


def _first_of_steps(part: Part) -> tuple[Array, Array]:
    known = np.flatnonzero(part.step != NULL)
    numbers, first = np.unique(part.step[known], return_index=True)
    return numbers, known[first]


def _decide(
    reference: Part,
    part: Part,
    fitting: list[_Candidate],
    clocks: Clocks,
    thresholds: MatchingThresholds,
) -> tuple[Basis, _Candidate | None]:
    tested = fitting[0].num_pairs >= thresholds.min_pairs
    if clocks is Clocks.SHARED:
        near = [c for c in fitting if abs(c.fit.offset_ns) <= thresholds.shared_clock_ns]
        if len(near) == 1:
            alone = tested and len(fitting) == 1
            return (Basis.ENDS if alone else Basis.SHARED_CLOCK), near[0]
    if tested and len(fitting) == 1:
        return Basis.ENDS, fitting[0]
    marked = _step_shift(reference, part)
    for candidate in fitting:
        if candidate.shift == marked:
            return Basis.STEP_MARKS, candidate
    if clocks is not Clocks.UNRELATED and len(fitting) > 1:
        ranked = sorted(fitting, key=lambda c: abs(c.fit.offset_ns))
        apart = abs(ranked[1].fit.offset_ns - ranked[0].fit.offset_ns)
        if abs(ranked[0].fit.offset_ns) < thresholds.clear_clock_share * apart:
            return Basis.HOST_CLOCKS, ranked[0]
    if not tested and len(reference.end) == len(part.end):
        for candidate in fitting:
            if candidate.shift == 0:
                return Basis.ORDER, candidate
    return Basis.NONE, None


def _piecewise(reference: Part, part: Part, thresholds: MatchingThresholds) -> Placement:
    """No single shift fits (operations were dropped): match the steps that agree in themselves.

    They tell how the clocks differ; then the ends tell the rest.
    """
    index = np.full(len(part.end), NULL)
    common = np.intersect1d(reference.step[reference.step != NULL], part.step)
    for number in common.tolist():
        ours = np.flatnonzero((reference.step == number) & reference.told)
        theirs = np.flatnonzero((part.step == number) & part.told)
        if (
            len(ours) == len(theirs)
            and np.array_equal(reference.content[ours], part.content[theirs])
            and np.array_equal(reference.size[ours], part.size[theirs])
        ):
            index[theirs] = ours
    placed = index != NULL
    if np.count_nonzero(placed) < thresholds.min_pairs:
        return Placement(np.full(len(part.end), NULL), Basis.NONE, NO_FIT)
    fit = fit_clock(part.end[placed], part.end[placed] - reference.end[index[placed]])
    _fill_by_ends(reference, part, index, fit, thresholds)
    return Placement(index, Basis.STEP_MARKS, fit)


def _fill_by_ends(
    reference: Part, part: Part, index: Array, fit: Fit, thresholds: MatchingThresholds
) -> None:
    """Give each operation without a place the one of equal content that ends with it."""
    taken = np.zeros(len(reference.end), bool)
    taken[index[index != NULL]] = True
    free = np.flatnonzero(~taken)
    if not free.size:
        return
    free = free[np.argsort(reference.end[free], kind="stable")]
    aligned = part.end - fit.at(part.end)
    for place_of_part in np.flatnonzero(index == NULL).tolist():
        near = np.searchsorted(reference.end[free], aligned[place_of_part])
        for candidate in free[max(0, near - 1) : near + 1].tolist():
            apart = abs(int(reference.end[candidate] - aligned[place_of_part]))
            same = reference.content[candidate] == part.content[place_of_part]
            sizes = {int(reference.size[candidate]), int(part.size[place_of_part])} - {NULL}
            if apart <= thresholds.end_tolerance_ns and same and len(sizes) < 2:
                if not taken[candidate]:
                    index[place_of_part], taken[candidate] = candidate, True
                break
