"""``contention`` and ``contention_kernels``: how much slower compute is beside communication."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.contention._figures import (
    LEAST_PAIRS,
    Columns,
    estimated,
    gpu_columns,
    losses,
    pairs_by_class,
    pairs_by_label,
    share_pct,
    slowdown_columns,
    table_of,
    with_words,
)
from diagnose.contention._kernels import families
from diagnose.contention._measured import Fate, Measured, Split
from diagnose.contention._occurrences import SEVERAL, Floats, packed
from diagnose.contention._pairing import measured
from diagnose.contention._rates import Estimate, slowdowns
from diagnose.contention._tables import CONTENTION, CONTENTION_KERNELS, Effect
from diagnose.contention._twins import quantile_by
from diagnose.errors import UsageError
from diagnose.intervals import Array
from diagnose.trace import Strings, Table, Trace

By = Literal["all", "gpu", "collective", "family"]
BY: tuple[By, ...] = ("all", "gpu", "collective", "family")
SEVERAL_NAME = "several"
NEEDS_PAIRS = (
    *("slowdown", "slowdown_low", "slowdown_high", "uncorrected_slowdown"),
    *("duration_ratio_low", "duration_ratio_high"),
)
"""Columns that are null in rows with fewer than ``LEAST_PAIRS`` pairs."""
_LEAST_FOR_INTERVAL = 3
"""Occurrences of one kernel, alone and overlapped, below which its row has no interval."""


def other_trace(alone: Any) -> Trace | None:
    """The trace of what was given as ``alone``: a Recording, a Trace or None."""
    found = alone if alone is None or isinstance(alone, Trace) else getattr(alone, "trace", None)
    if alone is not None and not isinstance(found, Trace):
        raise UsageError(
            f"{type(alone).__name__} is no recording of compute alone",
            hint="give a recording: recording.contention(alone=diagnose.load(path))",
        )
    return found


def refused(trace: Trace, known: Measured, other: Trace | None) -> Unavailable | None:
    """Why contention cannot be measured, or None."""
    if not len(trace.collectives):
        return Unavailable(
            "the trace holds no communication, so none ran beside compute",
            "if the job communicates, see `diagnose info` for how its kernels were classified",
        )
    overlapped = int(np.count_nonzero(known.is_overlapped))
    beside = int(np.count_nonzero(known.seen.beside.sum(1)))
    if not overlapped and beside:
        return Unavailable(
            f"communication ran beside {beside:,} compute kernels, each time for less than 2 % of "
            "what the kernel takes alone, or only after that time: too little to compare"
        )
    if not overlapped:
        return Unavailable(
            "no compute ran beside communication on any GPU, so nothing was slowed by it"
        )
    if len(known.paired) >= LEAST_PAIRS:
        return None
    where = "this recording" if other is None else "the recording given as --alone"
    return Unavailable(
        f"of {overlapped:,} overlapped kernels {len(known.paired)} have a twin (the same name, "
        f"launch shape and input shapes) that ran alone in {where}; {LEAST_PAIRS} are needed",
        "record more steps, with input shapes (record_shapes=True), or record the same job with "
        "communication serialised and give that recording as --alone",
    )


def contention(
    trace: Trace,
    by: By = "collective",
    *,
    alone: Any = None,
    classify: str | os.PathLike[str] | None = None,
) -> Table | Unavailable:
    """How much slower compute is beside communication. Returns a table of ``CONTENTION``.

    ``by="collective"``: a row per kind of collective beside, all GPUs together;
    ``"family"``: per family of kernels; ``"gpu"``: per GPU; ``"all"``: one row.
    ``alone``: a recording (or Trace) of the same job with communication serialised, whose
    kernels are then the twins. ``classify``: a file that extends the families.

    Unavailable with fewer than three overlapped kernels that have twins. In rows with
    fewer, the slowdown is null.
    """
    if by not in BY:
        raise UsageError(
            f"contention cannot be split by {by!r}.", hint=f"Choose one of {', '.join(BY)}."
        )
    other = other_trace(alone)
    known = measured(trace, other)
    if missing := refused(trace, known, other):
        return missing
    labels = _labels(trace, known, by, classify)
    columns = _columns(known, measured(trace, other, correct=False), labels)
    return table_of(CONTENTION, columns, labels.strings)


class _Labels(NamedTuple):
    """How compute kernels fall into rows; ``of`` is None where the class decides."""

    of: Array | None
    num: int
    keys: Columns
    strings: Strings

    def split(self, known: Measured, rows: Array) -> Split:
        if self.of is None:
            return known.by_class(rows)
        return known.by_label(rows, self.of[rows], self.num)


def _labels(
    trace: Trace, known: Measured, by: By, classify: str | os.PathLike[str] | None
) -> _Labels:
    seen = known.seen
    if by == "collective":
        strings = with_words(trace.strings, (SEVERAL_NAME,))
        code = class_codes(seen.classes, strings)
        return _Labels(None, len(code), {"collective": code}, strings)
    if by == "family":
        found = families(trace, seen, classify)
        strings = with_words(trace.strings, found.names)
        keys = {"family": np.array([strings.code(name) for name in found.names], np.int64)}
        return _Labels(found.of_group[seen.group], len(found.names), keys, strings)
    if by == "gpu":
        return _Labels(seen.gpu, len(trace.gpus), gpu_columns(trace), trace.strings)
    return _Labels(np.zeros(len(seen.row), np.int64), 1, {}, trace.strings)


def class_codes(classes: Array, strings: Strings) -> Array:
    """Codes of the names of classes; ``strings`` holds ``SEVERAL_NAME``."""
    return np.where(classes == SEVERAL, strings.code(SEVERAL_NAME), classes)


def _columns(known: Measured, plain: Measured, labels: _Labels) -> Columns:
    split = labels.split(known, known.paired)
    columns = dict(labels.keys)
    if labels.of is None:
        columns |= pairs_by_class(known)
    else:
        columns |= pairs_by_label(known, labels.of, labels.num)
    columns |= estimated(known, split)
    uncorrected = slowdowns(plain.rates(labels.split(plain, plain.paired)))
    columns["uncorrected_slowdown"] = uncorrected.value
    few = columns["num_paired"] < LEAST_PAIRS
    for name in NEEDS_PAIRS:
        columns[name] = np.where(few, np.nan, columns[name])
    columns["estimated_ns"] = columns["cost_ns"] + _cost_of_unpaired(known, labels)
    columns |= _per_step(known, labels)
    kept = np.flatnonzero((columns["overlapped_ns"] > 0) | (columns["num_paired"] > 0))
    if "source" not in columns:
        kept = kept[np.argsort(-np.nan_to_num(columns["estimated_ns"][kept]), kind="stable")]
    return {name: column[kept] for name, column in columns.items()}


def _cost_of_unpaired(known: Measured, labels: _Labels) -> Floats:
    """What kernels without twins lost, if they lost as the others of their class did."""
    seen, loss = known.seen, losses(known).value
    rest = known.fate != Fate.PAIRED
    lost = seen.beside * rest[:, None] * np.nan_to_num(loss)
    if labels.of is None:
        return np.asarray(lost.sum(0))
    return np.bincount(labels.of, lost.sum(1), labels.num).astype(np.float64)


def _per_step(known: Measured, labels: _Labels) -> Columns:
    """The cost of what was launched in steps, over the (GPU, step)s."""
    steps = known.step_row
    inside = np.flatnonzero(steps >= 0)
    where = packed(known.seen.gpu[inside], steps[inside])
    _, first = np.unique(where, return_index=True)
    num = np.full(labels.num, len(first))
    if "source" in labels.keys:  # a row per GPU covers its own steps
        num = np.bincount(known.seen.gpu[inside[first]], minlength=labels.num)
    rows = known.paired[steps[known.paired] >= 0]
    cost = known.cost(labels.split(known, rows)).value
    return {
        "num_steps": num,
        "cost_per_step_ns": np.divide(cost, num, out=np.full(len(num), np.nan), where=num > 0),
    }


def contention_kernels(
    trace: Trace, *, alone: Any = None, classify: str | os.PathLike[str] | None = None
) -> Table | Unavailable:
    """Each kernel that ran beside communication. Returns a table of ``CONTENTION_KERNELS``.

    A row per GPU, name, launch shape and input shapes, those that lost most first. Rows
    without twins have no slowdown; with fewer than three occurrences alone or overlapped
    they have no interval. Options and refusals are those of ``contention``.

    ``effect`` says what may be claimed of a kernel. Those that are faster beside communication
    than alone are no contention, but stay in the sums of ``contention``: to leave out what is
    faster, and keep what is slower by the same chance, would make the rest look slow.
    """
    other = other_trace(alone)
    known = measured(trace, other)
    if missing := refused(trace, known, other):
        return missing
    seen = known.seen
    columns = pairs_by_label(known, seen.group, seen.num_groups)
    columns |= slowdown_columns(*_with_enough(known, columns, *known.per_kernel()))
    columns["effect"] = _effects(columns)
    columns |= _durations(known)
    found = families(trace, seen, classify)
    strings = with_words(trace.strings, found.names)
    names = np.array([strings.code(name) for name in found.names], np.int64)
    columns |= {
        "family": names[found.of_group],
        "name": trace.gpu_ops["name"][seen.group_row],
        "launch_shape": trace.gpu_ops["launch_shape"][seen.group_row],
        "shapes": seen.group_shapes,
    }
    gpu = np.zeros(seen.num_groups, np.int64)
    gpu[seen.group] = seen.gpu
    columns |= {name: column[gpu] for name, column in gpu_columns(trace).items()}
    kept = np.flatnonzero(columns["num_overlapped"] > 0)
    lost = np.nan_to_num(columns["cost_ns"][kept], nan=-np.inf)
    kept = kept[np.lexsort((-columns["overlapped_ns"][kept], -lost))]
    return table_of(CONTENTION_KERNELS, {n: c[kept] for n, c in columns.items()}, strings)


def _effects(columns: Columns) -> Array:
    """What the interval of the slowdown says, or where there is none that of whole durations."""
    low, high = (columns[f"slowdown_{end}"] for end in ("low", "high"))
    other = np.isnan(low)
    low = np.where(other, columns["duration_ratio_low"], low)
    high = np.where(other, columns["duration_ratio_high"], high)
    found = np.where(np.isnan(low), Effect.UNKNOWN, Effect.NOT_TOLD)
    found[low > 1] = Effect.SLOWER
    found[high < 1] = Effect.FASTER
    return found


def _with_enough(known: Measured, pairs: Columns, *estimates: Estimate) -> list[Estimate]:
    """Without the values of kernels that have no pair, and the intervals of those with few."""
    none = pairs["num_paired"] == 0
    few = (known.twins.count < _LEAST_FOR_INTERVAL) | (pairs["num_paired"] < _LEAST_FOR_INTERVAL)
    return [
        Estimate(
            np.where(none, np.nan, one.value),
            np.where(few, np.nan, one.low),
            np.where(few, np.nan, one.high),
        )
        for one in estimates
    ]


def _durations(known: Measured) -> Columns:
    """Medians, as they were: nothing divided out."""
    seen, rows = known.seen, known.paired
    duration, num = seen.duration.astype(np.float64), seen.num_groups
    overlapped = np.flatnonzero(known.is_overlapped)
    beside = np.bincount(seen.group[overlapped], known.overlapped[overlapped], num)
    whole = np.bincount(seen.group[overlapped], duration[overlapped], num)
    return {
        "alone_ns": known.twins.median,
        "overlapped_duration_ns": quantile_by(seen.group[rows], duration[rows], 0.5, num),
        "overlapped_share_pct": share_pct(beside, whole),
    }
