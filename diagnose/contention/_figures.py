"""Columns that several tables share: pairs, slowdowns, and the cost of what has no twin."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.contention._measured import Fate, Measured, Split
from diagnose.contention._occurrences import Floats
from diagnose.contention._rates import Estimate, slowdowns
from diagnose.intervals import Array
from diagnose.schema import NO_ROW, NULL, TableSchema
from diagnose.trace import Strings, Table, Trace

LEAST_PAIRS = 3
"""Overlapped kernels with twins below which nothing is concluded from them."""

Columns = dict[str, Any]


def gpu_columns(trace: Trace) -> Columns:
    """Source, device and rank of each GPU."""
    return {
        "source": np.array([gpu.source for gpu in trace.gpus], np.int64),
        "device": np.array([gpu.device for gpu in trace.gpus], np.int64),
        "rank": np.array([NULL if g.rank is None else g.rank for g in trace.gpus], np.int64),
    }


def with_words(strings: Strings, words: tuple[str, ...]) -> Strings:
    """The dictionary with these words in it as well; codes stay what they are."""
    more = [word for word in words if strings.code(word) == NO_ROW]
    return Strings([*strings, *more]) if more else strings


def share_pct(part: Array, whole: Array) -> Floats:
    """Percent; NaN where the whole is 0."""
    found = np.full(np.shape(whole), np.nan)
    np.divide(100.0 * part, whole, out=found, where=np.asarray(whole) > 0)
    return found


def pairs_by_label(known: Measured, label: Array, num_labels: int) -> Columns:
    """The columns of pairs, each compute kernel under one label."""
    paired, beside = known.fate == Fate.PAIRED, known.seen.beside.sum(1)

    def count(chosen: Any) -> Array:
        return np.bincount(label[chosen], minlength=num_labels)

    def time(chosen: Any) -> Array:
        total = np.zeros(num_labels, np.int64)
        np.add.at(total, label[chosen], beside[chosen])
        return total

    alone = _twins_behind(known, label, num_labels)
    number = count(known.is_overlapped), count(paired)
    return _pairs(alone, *number, time(beside > 0), time(paired))


def pairs_by_class(known: Measured) -> Columns:
    """The columns of pairs, by class of communication: a kernel counts in each beside it."""
    seen, paired = known.seen, (known.fate == Fate.PAIRED)[:, None]
    beside = known.is_overlapped[:, None] & (seen.beside > 0)
    beside |= paired & (known.exposure > 0)
    alone = np.zeros(len(seen.classes), np.int64)
    for place in range(len(seen.classes)):
        groups = np.unique(seen.group[beside[:, place] & paired[:, 0]])
        alone[place] = known.twins.count[groups].sum()
    paired_ns = (seen.beside * paired).sum(0)
    number = beside.sum(0), (beside & paired).sum(0)
    return _pairs(alone, *number, seen.beside.sum(0), paired_ns)


def _pairs(
    alone: Array, overlapped: Array, paired: Array, time: Array, paired_time: Array
) -> Columns:
    return {
        "num_alone": alone,
        "num_overlapped": overlapped,
        "num_paired": paired,
        "overlapped_ns": time,
        "paired_ns": paired_time,
        "coverage_pct": share_pct(paired_time, time),
    }


def _twins_behind(known: Measured, label: Array, num_labels: int) -> Array:
    """Twins of the kernels that are paired, by label."""
    rows = known.paired
    pairs = np.unique(np.stack([label[rows], known.seen.group[rows]]), axis=1)
    found = np.zeros(num_labels, np.int64)
    np.add.at(found, pairs[0], known.twins.count[pairs[1]])
    return found


def slowdown_columns(rate: Estimate, ratio: Estimate, cost: Estimate | None) -> Columns:
    """The columns of the slowdown; without those of the cost if there is none."""
    slow = slowdowns(rate)
    named = {"slowdown": slow, "duration_ratio": ratio}
    columns: Columns = {}
    for name, estimate in named.items():
        columns |= {
            name: estimate.value,
            f"{name}_low": estimate.low,
            f"{name}_high": estimate.high,
        }
    if cost is not None:
        columns |= {"cost_ns": cost.value, "cost_low_ns": cost.low, "cost_high_ns": cost.high}
    return columns


def estimated(known: Measured, split: Split) -> Columns:
    """Slowdown, ratio and cost of the columns of a split."""
    return slowdown_columns(known.rates(split), known.ratios(split), known.cost(split))


def losses(known: Measured) -> Estimate:
    """Per class: the part of overlapped time that is lost, as the paired tell: 1 - rate.

    The loss of all classes together where there are fewer than ``LEAST_PAIRS`` pairs.
    """
    rows = known.paired
    one = known.rates(known.by_label(rows, np.zeros(len(rows), np.int64), 1))
    each = known.rates(known.by_class(rows))
    few = (known.seen.beside[rows] > 0).sum(0) < LEAST_PAIRS
    few |= np.isnan(each.value)
    value, low, high = (np.where(few, a, b) for a, b in zip(one, each, strict=True))
    return Estimate(1 - value, 1 - high, 1 - low)


def table_of(table_schema: TableSchema, columns: Columns, strings: Strings) -> Table:
    """The table; a column that is not there is unknown in every row."""
    num = len(next(iter(columns.values())))
    typed = {}
    for column in table_schema.columns:
        unknown = NO_ROW if column.is_reference else NULL
        values = columns.get(column.name)
        if values is None:
            values = np.full(num, np.nan if column.dtype == "float64" else unknown)
        typed[column.name] = np.asarray(values).astype(column.dtype)
    return Table(table_schema, typed, strings)
