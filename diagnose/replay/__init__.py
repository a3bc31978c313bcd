"""What a change of the job would gain: a recording replayed under changes.

``build`` makes a ``Model`` of a trace (durations and dependencies, no start times),
``execute`` gives the times, ``steady`` repeats the steps until their time settles,
``overhead`` takes out what the profiler cost. A ``Change`` edits a model; ``predict`` puts
it together, ``search`` orders changes by gain. From Python::

    recording = diagnose.load("traces/")
    recording.replay("no-host-sync")  # one row: step time now, then, gain, each with its range
    recording.replay(["no-host-sync", "bucket-size:mb=50"])  # both, one after the other
    recording.staircase()  # the changes by what each adds, down to the bound
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers.power.tables import table_of
from diagnose.replay.build import MAX_STEPS, build
from diagnose.replay.change import Assume, Change
from diagnose.replay.change_text import known, parse
from diagnose.replay.model import Model
from diagnose.replay.prediction import Prediction, Range, likely_step_ns, predict
from diagnose.replay.search import MOST_STAIRS, Stair, staircase_of
from diagnose.replay.tables import REPLAY, STAIRCASE, columns_of, lines, row_of
from diagnose.schema import Detail
from diagnose.trace import Table, Trace

Changes = str | Change | Sequence[str | Change]
QUICK_NODES = 2_000_000
"""Operations and calls that a report executes in all: about a second of one core."""
QUICK_TRIES = 15
"""A round of a search: with fewer tries there is no staircase at all."""
_QUICK = "_quick_model"


def changes_of(given: Changes) -> tuple[Change, ...]:
    """Changes as written on the command line, or made in Python. UsageError for an unknown one."""
    several = (given,) if isinstance(given, (str, Change)) else tuple(given)
    return tuple(parse(one) if isinstance(one, str) else one for one in several)


def replay(trace: Trace, changes: Changes = ()) -> Table | Unavailable:
    """The step time after ``changes``, applied in order; without any: how well a replay fits.

    A change is ``"id"`` or ``"id:field=value,field=value"`` as in ``diagnose whatif --list``,
    or an instance of ``diagnose.replay.Change``. Times in ns, each with the ends of its range.
    """
    wanted = changes_of(changes)
    model = build(trace)
    if isinstance(model, Unavailable):
        return model
    prediction = predict(model, wanted)
    if isinstance(prediction, Unavailable):
        return _named(model, wanted, prediction)
    return table_of(REPLAY, [row_of(prediction)])


def staircase(
    trace: Trace, changes: Changes = (), most: int = MOST_STAIRS, quick: bool = False
) -> Table | Unavailable:
    """Changes by what each adds, from the step after ``changes`` down to the bound.

    At most ``most`` changes, each of which saves 1 % of the step or more. ``quick``: where
    steps are huge, fewer of them and fewer tries, as a report does. Times in ns.
    """
    wanted = changes_of(changes)
    model = quick_model(trace) if quick else build(trace)
    if isinstance(model, Unavailable):
        return model
    tries = QUICK_NODES // max(_num_nodes(model), 1) if quick else None
    stairs = staircase_of(model, wanted, most, tries)
    if isinstance(stairs, Unavailable):
        return _named(model, wanted, stairs)
    rows = [
        {
            "place": place,
            "change": lines([change.label for change in stair.added]),
            "title": lines([change.title for change in stair.added]),
            "is_bound": stair.is_bound,
            **columns_of("added_gain", stair.added_gain),
            **row_of(stair.prediction),
        }
        for place, stair in enumerate(stairs)
    ]
    return table_of(STAIRCASE, rows)


def _named(model: Model, changes: tuple[Change, ...], reason: Unavailable) -> Unavailable:
    """The reason, and of which change it is."""
    for count in range(1, len(changes) + 1):
        if isinstance(likely_step_ns(model, changes[:count]), Unavailable):
            said = f"{changes[count - 1].label}: {reason.because}"
            return Unavailable(said, reason.remedy or "leave this change out")
    return reason


def quick_model(trace: Trace) -> Model | Unavailable:
    """The model that a report uses, of as few steps as ``quick`` allows: made once per trace.

    The staircase and the gains of findings then rest on the same steps.
    """
    # Kept where the trace keeps its cached properties: the model refers to the trace, so any
    # other place would keep both alive.
    kept = vars(trace)
    if _QUICK not in kept:
        kept[_QUICK] = build(trace, _quick_steps(trace))
    model: Model | Unavailable = kept[_QUICK]
    return model


def _num_nodes(model: Model) -> int:
    return model.num_ops + len(model.calls.row)


def _quick_steps(trace: Trace) -> int:
    """As many steps as ``QUICK_NODES`` allow to be executed ``QUICK_TRIES`` times."""
    marks = np.bincount(trace.steps["source"], minlength=1).max(initial=1)
    a_step = (len(trace.gpu_ops) + len(trace.launches)) / max(int(marks), 1)
    return int(np.clip(QUICK_NODES / QUICK_TRIES / max(a_step, 1), 1, MAX_STEPS))


ANALYZERS = (
    Analyzer("replay", Detail.ALL, REPLAY, replay),
    Analyzer("staircase", Detail.ALL, STAIRCASE, staircase),
)

__all__ = [
    "ANALYZERS",
    "Assume",
    "Change",
    "Model",
    "Prediction",
    "Range",
    "Stair",
    "build",
    "changes_of",
    "known",
    "parse",
    "predict",
    "quick_model",
    "replay",
    "staircase",
    "staircase_of",
]
