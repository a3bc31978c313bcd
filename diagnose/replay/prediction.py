"""What changes of a job would do to its step: by replaying it with and without them.

The profiler's cost is taken out first (``overhead``), then the changes are applied to the
model one after the other, and the steps are repeated until their time settles
(``steady``). Gains are never added. A job's step is that of its slowest GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.replay._scan import NEVER
from diagnose.replay.change import Assume, Change
from diagnose.replay.execute import Execution, first_bounds, prepared, times_of
from diagnose.replay.model import Model
from diagnose.replay.overhead import without_profiler
from diagnose.replay.steady import Steady, settle, steady
from diagnose.schema import NULL

SETTLED_PCT = 2.0
"""A repeated step that is off the measured one by more deserves a remark."""


class Range(NamedTuple):
    """``likely`` lies between the others. In ns."""

    low: float
    likely: float
    high: float

    @staticmethod
    def of(likely: float, others: Sequence[float]) -> Range:
        """From the likely value and the values at the ends of what is not known."""
        return Range(min(likely, *others), likely, max(likely, *others))


@dataclass(frozen=True)
class Prediction:
    """The step of a job under changes, of its slowest GPU. Times in ns per step."""

    changes: tuple[Change, ...]
    num_steps: int
    """Steps of the recording that were replayed."""
    measured_step_ns: float
    """Mean over these, as recorded (``diagnose.timeline.step_times``)."""
    replayed_step_ns: float
    """The same steps executed from what they found when they began, nothing taken out."""
    repeated_step_ns: float
    """The same steps repeated until they settle, nothing taken out."""
    fidelity_pct: float
    """``replayed_step_ns`` over the measured, less 100 %."""
    unexplained_pct: float
    """Share of the measured step: pauses on its critical path that nothing explains. Of the
    GPU with the largest share."""
    now: Range
    """The steady step without the profiler. Its ends are those of the profiler's cost."""
    then: Range
    """The same after the changes; also over what they have to assume."""
    gain: Range
    """``now`` less ``then``, both under the same assumptions."""
    remarks: tuple[str, ...]
    basis: tuple[str, ...]
    """How the profiler's cost was found, in whole sentences."""


def predict(model: Model, changes: Sequence[Change]) -> Prediction | Unavailable:
    """The step after ``changes``, applied in this order; without any: the step as it is.

    Unavailable: why the first of the changes that does not apply means nothing here, or
    that together they contradict each other.
    """
    unchanged = _unchanged(model)
    if isinstance(unchanged, Unavailable):
        return unchanged
    likely = _changed(model, changes, model.profiler.likely_ns, Assume.LIKELY)
    if isinstance(likely, Unavailable):
        return likely
    pairs = _pairs(model, unchanged, changes, likely)
    if isinstance(pairs, Unavailable):
        return pairs
    (now, then), ends = pairs[0], pairs[1:]
    measured = _slowest(model.measured_step_ns)
    with np.errstate(invalid="ignore", divide="ignore"):
        unexplained = _slowest(100 * model.unexplained_ns / model.measured_step_ns)
    return Prediction(
        tuple(changes),
        model.num_steps,
        measured,
        unchanged.replayed_ns,
        unchanged.repeated.slowest_ns,
        100 * unchanged.replayed_ns / measured - 100,
        unexplained,
        Range.of(now, [now for now, _ in ends]),
        Range.of(then, [then for _, then in ends]),
        Range.of(now - then, [now - then for now, then in ends]),
        (*likely.remarks, *_of_repetition(measured, unchanged.repeated)),
        model.profiler.basis,
    )


class _Unchanged(NamedTuple):
    """What every prediction from one model needs."""

    replayed_ns: float
    repeated: Steady
    now_ns: dict[float, float]
    """The step without the profiler, by its cost of an event."""


_KNOWN: WeakKeyDictionary[Model, _Unchanged] = WeakKeyDictionary()


def _unchanged(model: Model) -> _Unchanged | Unavailable:
    """Worked out once for each model."""
    if model in _KNOWN:
        return _KNOWN[model]
    execution = prepared(model)
    if isinstance(execution, Unavailable):
        return execution
    now: dict[float, float] = {}
    for event_ns in dict.fromkeys(model.profiler[:3]):
        unwatched = without_profiler(model, event_ns)
        now[event_ns] = settle(unwatched, execution.reweighted(unwatched)).slowest_ns
    known = _Unchanged(_replayed(model, execution), settle(model, execution), now)
    return _KNOWN.setdefault(model, known)


def _pairs(
    model: Model, unchanged: _Unchanged, changes: Sequence[Change], likely: Model
) -> list[tuple[float, float]] | Unavailable:
    """(now, then): first the likely pair, then those at the ends of what is not known."""
    now = unchanged.now_ns
    if not changes:
        return [(now[cost], now[cost]) for cost in (model.profiler.likely_ns, *now)]
    then = _step(likely)
    if isinstance(then, Unavailable):
        return then
    found = [(now[model.profiler.likely_ns], then)]
    executed = [(likely, then)]
    # The ends lie at the ends of the profiler's cost, where that is not known exactly.
    for event_ns in dict.fromkeys((model.profiler.low_ns, model.profiler.high_ns)):
        for assume in (Assume.LEAST, Assume.MOST):
            changed = _changed(model, changes, event_ns, assume)
            if isinstance(changed, Unavailable):
                return changed
            same = [step for other, step in executed if _same_work(changed, other)]
            then = same[0] if same else _step(changed)
            if isinstance(then, Unavailable):
                return then
            executed.append((changed, then))
            found.append((now[event_ns], then))
    return found


def _same_work(one: Model, other: Model) -> bool:
    """Whether nothing is assumed here: executing costs far more than comparing."""
    return all(
        np.array_equal(mine, theirs)
        for mine, theirs in zip(_arrays(one), _arrays(other), strict=True)
    )


def _arrays(model: Model) -> list[npt.NDArray[np.generic]]:
    """All that the steady step depends on."""
    return [*vars(model.operations).values(), *vars(model.calls).values(), *model.dependencies]


def likely_step_ns(
    model: Model,
    changes: Sequence[Change],
    *,
    event_ns: float | None = None,
    assume: Assume = Assume.LIKELY,
) -> float | Unavailable:
    """The steady step after ``changes`` without the profiler, in ns: one execution.

    ``event_ns``: what an event cost the host; None: the likely cost.
    """
    cost = model.profiler.likely_ns if event_ns is None else event_ns
    changed = _changed(model, changes, cost, assume)
    return changed if isinstance(changed, Unavailable) else _step(changed)


def _step(model: Model) -> float | Unavailable:
    found = steady(model)
    return found if isinstance(found, Unavailable) else found.slowest_ns


def _changed(
    model: Model, changes: Sequence[Change], event_ns: float, assume: Assume
) -> Model | Unavailable:
    """The model without the profiler's cost and with the changes."""
    changed: Model | Unavailable = without_profiler(model, event_ns)
    for change in changes:
        if isinstance(changed, Unavailable):
            break
        changed = change.apply(changed, assume)
    return changed


def _replayed(model: Model, execution: Execution) -> float:
    """The replayed steps once, from what they found when they began: step of the slowest GPU."""
    times = times_of(model, execution, execution.scan.run(first_bounds(model, execution)))
    last = np.full(len(model.begin_ns), NEVER, np.int64)
    np.maximum.at(last, model.operations.gpu, times.end_ns)
    known = np.flatnonzero((model.begin_ns != NULL) & (last != NEVER))
    span: npt.NDArray[np.float64] = (last - model.begin_ns)[known] / model.num_steps
    return _slowest(span)


def _slowest(values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else float("nan")


def _of_repetition(measured: float, repeated: Steady) -> tuple[str, ...]:
    """What is to be said where the window was not what the job settles at."""
    remarks = []
    off = 100 * repeated.slowest_ns / measured - 100
    if abs(off) > SETTLED_PCT:
        remarks.append(
            f"Repeated until they settle, the recorded steps take {repeated.slowest_ns / 1e6:.2f} "
            f"ms ({off:+.1f} %): the host was gaining or losing lead over the GPU in the window."
        )
    if not repeated.settled:
        remarks.append("The step time alternates when the steps repeat; its mean was taken.")
    return tuple(remarks)
