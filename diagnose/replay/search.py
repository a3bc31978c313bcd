"""The staircase: changes in the order of what each adds, from today's step to the bound.

In every round each change on offer is tried on top of those that were taken, and the
one that saves most is taken, or one of less effort that lies within its range.
Gains are never added: a row's step time comes from executing the model with all changes up
to there. A greedy order is not always the best one: two changes that help only together are
not found, nor is the better of two sets that exclude each other. What a row adds depends on
the rows above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from diagnose.analysis import Unavailable
from diagnose.replay.change import Change
from diagnose.replay.change_text import known
from diagnose.replay.model import Model
from diagnose.replay.prediction import Prediction, Range, likely_step_ns, predict
from diagnose.replay.tables import CUT_SHORT

LEAST_GAIN = 0.01
"""Of the step: smaller gains are not worth a row. Means of half a second of steps of one job
bound by its GPU differ by 0.2 to 3 % on one H200 (`benchmarks/accuracy/truth.json`)."""
MOST_STAIRS = 8
"""Stairs without the bound: beyond, each gains little and rests on all the others' assumptions."""


class Stair(NamedTuple):
    """What one more step down gives. ``added`` is empty for the first: nothing added."""

    added: tuple[Change, ...]
    prediction: Prediction
    """Under all changes up to here."""
    added_gain: Range
    """Step time of the row before, less that of this one."""

    @property
    def is_bound(self) -> bool:
        """Whether it is the last one, which is out of reach."""
        return any(change.is_bound for change in self.added)


def staircase_of(
    model: Model,
    given: Sequence[Change] = (),
    most: int = MOST_STAIRS,
    tries: int | None = None,
) -> list[Stair] | Unavailable:
    """The stairs from ``given`` on; the last one is the bound, if a bound applies.

    Ends when the best change saves less than ``LEAST_GAIN`` of the step or less than what
    the unchanged replay is off, which is as far as it can tell two step times apart. A change
    whose range reaches 0 is no stair; a remark on the last one names it.
    ``tries``: no round but the first begins that would execute the model more often in all.
    """
    first = predict(model, given)
    if isinstance(first, Unavailable):
        return first
    stairs = [Stair((), first, Range(0.0, 0.0, 0.0))]
    least = _least_gain(first)
    offered = _offered(given)
    doubtful: dict[str, Range] = {}
    done = 0
    while len(stairs) <= most:
        if tries is not None and done and done + len(offered) > tries:
            stairs[-1] = _remarked(stairs[-1], CUT_SHORT)
            break
        done += len(offered)
        found = _round(model, stairs[-1], offered, least)
        doubtful = found.doubtful
        if found.stair is None:
            break
        stairs.append(found.stair)
        offered = found.left
    bound = _bound(model, stairs[-1])
    stairs = stairs if bound is None else [*stairs, bound]
    if doubtful:
        stairs[-1] = _remarked(stairs[-1], _of_doubtful(doubtful))
    return stairs


def _of_doubtful(doubtful: dict[str, Range]) -> str:
    said = (
        f"{name} ({gain.likely / 1e6:.2f} ms, {gain.low / 1e6:.2f} to {gain.high / 1e6:.2f})"
        for name, gain in doubtful.items()
    )
    return f"Not counted, because it may save nothing: {', '.join(said)}."


def _remarked(stair: Stair, sentence: str) -> Stair:
    prediction = stair.prediction
    said = replace(prediction, remarks=(*prediction.remarks, sentence))
    return stair._replace(prediction=said)


def _least_gain(first: Prediction) -> float:
    off = first.replayed_step_ns - first.measured_step_ns
    return max(LEAST_GAIN * first.then.likely, 0.0 if math.isnan(off) else abs(off))


def _offered(given: Sequence[Change]) -> list[Change]:
    """What a search tries, with its defaults; not again what was given."""
    taken = {change.id for change in given}
    return [
        kind()
        for name, kind in known().items()
        if kind.searched and not kind.is_bound and name not in taken
    ]


class _Round(NamedTuple):
    """What trying each change on offer gave."""

    stair: Stair | None
    """None: no change saves enough."""
    left: list[Change]
    """What may be tried in the next round."""
    doubtful: dict[str, Range]
    """What would have been taken, but may save nothing."""


def _round(model: Model, last: Stair, offered: list[Change], least: float) -> _Round:
    """The change to take next: the best, or one of less effort that may save as much.

    What does not apply is dropped; what saves nothing is kept: it may once another limit is
    gone. Equal ones go in the order in which they stand.
    """
    taken, before = last.prediction.changes, last.prediction.then.likely
    gains: list[tuple[float, Change]] = []
    for change in offered:
        after = likely_step_ns(model, (*taken, change))
        if not isinstance(after, Unavailable):
            gains.append((before - after, change))
    left = [tried for tried in gains if tried[0] >= least]
    doubtful: dict[str, Range] = {}
    while left:
        best = max(left, key=lambda tried: tried[0])
        stair = _stair(model, last, best[1], doubtful)
        left.remove(best)
        if stair is None:
            continue
        alike = min(stair.added_gain.low, best[0] - least)
        easier = [one for one in left if one[0] >= alike and one[1].effort < best[1].effort]
        for tried in sorted(easier, key=lambda one: (one[1].effort, -one[0])):
            instead = _stair(model, last, tried[1], doubtful)
            if instead is not None:
                stair = instead
                break
        others = [other for _, other in gains if other is not stair.added[0]]
        return _Round(stair, others, doubtful)
    return _Round(None, [change for _, change in gains], doubtful)


def _stair(model: Model, last: Stair, change: Change, doubtful: dict[str, Range]) -> Stair | None:
    """What taking the change gives; None, and into ``doubtful``, if it may save nothing."""
    prediction = predict(model, (*last.prediction.changes, change))
    if isinstance(prediction, Unavailable):
        return None
    stair = stair_after(last, (change,), prediction)
    if stair.added_gain.low > 0:
        return stair
    doubtful[change.label] = stair.added_gain
    return None


def stair_after(before: Stair, added: tuple[Change, ...], prediction: Prediction) -> Stair:
    """A stair and what it adds: in each way to assume, the one gain less the other."""
    pairs = zip(prediction.gain, before.prediction.gain, strict=True)
    further = [now - then for now, then in pairs]
    return Stair(added, prediction, Range(min(further), further[1], max(further)))


def _bound(model: Model, last: Stair) -> Stair | None:
    """All changes that nobody can make, on top of the others; None where none applies."""
    taken = last.prediction.changes
    kinds = [kind for kind in known().values() if kind.is_bound]
    bounds = tuple(kind() for kind in kinds if not any(isinstance(c, kind) for c in taken))
    together = predict(model, (*taken, *bounds)) if bounds else None
    if isinstance(together, Prediction):
        return stair_after(last, bounds, together)
    # One of them means nothing here: those that apply.
    added: tuple[Change, ...] = ()
    found = None
    for bound in bounds:
        tried = predict(model, (*taken, *added, bound))
        if not isinstance(tried, Unavailable):
            added, found = (*added, bound), tried
    return None if found is None else stair_after(last, added, found)
