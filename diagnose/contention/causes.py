"""``contention_causes``: what the slowdown goes with, as far as a recording tells.

Facts stand beside the slowdown: how many multiprocessors the blocks of the
communication kernel can be on, how much memory bandwidth was in use. They are no
shares of it: beside one collective, everything it takes, it takes at once. Only the
clock is told apart, because telemetry measures it and durations show what it does.
The rest is unattributed. Rows with different numbers of blocks, beside each other,
show what multiprocessors do.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.contention._clock import readings
from diagnose.contention._figures import (
    LEAST_PAIRS,
    Columns,
    pairs_by_class,
    slowdown_columns,
    table_of,
    with_words,
)
from diagnose.contention._measured import Measured
from diagnose.contention._occurrences import SEVERAL, Beside, Floats
from diagnose.contention._pairing import measured
from diagnose.contention._rates import slowdowns
from diagnose.contention._tables import CONTENTION_CAUSES
from diagnose.contention.slowdown import NEEDS_PAIRS, SEVERAL_NAME, other_trace, refused
from diagnose.intervals import Array, Intervals, covered_length, intersect, subtract, union
from diagnose.schema import NO_ROW, NULL, Activity
from diagnose.trace import Table, Trace

_GRID = re.compile(r"grid \[(\d{1,10}), ?(\d{1,10}), ?(\d{1,10})\]")
_MOST_BLOCKS = 1 << 31
_MOSTLY = 0.8
"""Share of a sensor's interval from which it tells of one state."""
_LEAST_INTERVALS = 3


def by_kind_and_blocks(trace: Trace) -> Array:
    """The class of each row of ``collectives``: its kind and the blocks of its kernel."""
    shape = trace.gpu_ops["launch_shape"][trace.collectives["gpu_op_row"]]
    codes, place = np.unique(shape, return_inverse=True)
    blocks = np.array([_blocks(trace, code) for code in codes.tolist()], np.int64)
    kind = trace.collectives["collective"].astype(np.int64)
    found: Array = (kind + 1) * _MOST_BLOCKS + blocks[place.reshape(-1)]
    return found


def _blocks(trace: Trace, code: int) -> int:
    """Blocks of a launch; 0 if it does not say."""
    match = _GRID.search(trace.strings[code]) if code >= 0 else None
    if match is None:
        return 0
    x, y, z = map(int, match.groups())
    return x * y * z if x * y * z < _MOST_BLOCKS else 0


def contention_causes(trace: Trace, *, alone: Any = None) -> Table | Unavailable:
    """What the slowdown goes with. Returns a table of ``CONTENTION_CAUSES``.

    A row per kind of collective and number of blocks of its kernel. ``clock_pct`` is
    ``1 - log(slowdown) / log(uncorrected slowdown)`` and needs telemetry; bandwidth needs
    phases longer than its sensor's interval. Options and refusals are those of
    ``contention``.
    """
    other = other_trace(alone)
    known = measured(trace, other, class_of=by_kind_and_blocks)
    if missing := refused(trace, known, other):
        return missing
    plain = measured(trace, other, class_of=by_kind_and_blocks, correct=False)
    strings = with_words(trace.strings, (SEVERAL_NAME,))
    columns = _columns(known, plain)
    classes = known.seen.classes
    special = classes < 0
    blocks = np.where(special, 0, classes % _MOST_BLOCKS)
    columns["collective"] = np.where(special, NO_ROW, classes // _MOST_BLOCKS - 1)
    columns["collective"][classes == SEVERAL] = strings.code(SEVERAL_NAME)
    columns["num_blocks"] = np.where(blocks > 0, blocks, NULL)
    units = multiprocessors(trace)
    if units is not None:
        columns["num_multiprocessors"] = np.full(len(classes), units)
        taken = np.minimum(blocks, units)
        columns["multiprocessors_pct"] = np.where(blocks > 0, 100 * taken / units, np.nan)
    columns |= _bandwidth(trace)
    kept = np.flatnonzero((columns["overlapped_ns"] > 0) | (columns["num_paired"] > 0))
    kept = kept[np.lexsort((blocks[kept], columns["collective"][kept]))]
    return table_of(CONTENTION_CAUSES, {n: c[kept] for n, c in columns.items()}, strings)


def _columns(known: Measured, plain: Measured) -> Columns:
    columns = pairs_by_class(known)
    split = known.by_class(known.paired)
    columns |= slowdown_columns(known.rates(split), known.ratios(split), None)
    without = slowdowns(plain.rates(plain.by_class(plain.paired))).value
    columns["uncorrected_slowdown"] = without
    few = columns["num_paired"] < LEAST_PAIRS
    for name in NEEDS_PAIRS:
        columns[name] = np.where(few, np.nan, columns[name])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 1 - np.log(columns["slowdown"]) / np.log(columns["uncorrected_slowdown"])
    slower = columns["uncorrected_slowdown"] > 1
    told = slower & bool(len(known.twins.clock_powers)) & ~np.isnan(share)
    columns["clock_pct"] = np.where(told, 100 * np.clip(share, 0, 1), np.nan)
    rest = np.where(slower, 100 - np.nan_to_num(columns["clock_pct"]), np.nan)
    columns["unattributed_pct"] = rest
    return columns


def multiprocessors(trace: Trace) -> int | None:
    """Multiprocessors of the GPUs, as their processes saw them; None if unknown or different."""
    found = {_multiprocessors(trace, gpu.source, gpu.device) for gpu in trace.gpus}
    return found.pop() if len(found) == 1 else None


def _multiprocessors(trace: Trace, source: int, device: int) -> int | None:
    properties = trace.sources[source].metadata.get("deviceProperties")
    told: Any = None
    if isinstance(properties, list):
        for one in properties:
            if isinstance(one, dict) and one.get("id") == device:
                told = one.get("numSms")
    if told is None:
        gpu = trace.sources[source].environment.get("gpu")
        told = gpu.get("sm_count") if isinstance(gpu, dict) else None
    return told if isinstance(told, int) and 0 < told < 100_000 else None


def _bandwidth(trace: Trace) -> Columns:
    """Mean use of memory bandwidth over the sensor's intervals of one state, by class."""
    beside = Beside(trace, by_kind_and_blocks(trace))
    num = len(beside.classes)
    alone: list[float] = []
    overlapped: list[list[float]] = [[] for _ in range(num)]
    for number in range(len(trace.gpus)):
        start, end, used = _refreshes(trace, number)
        if not len(used):
            continue
        compute = _computing(trace, number)
        least = _MOSTLY * (end - start)
        for place, one in enumerate(beside.of(number)):
            both = covered_length(intersect(compute, one), start, end) >= least
            overlapped[place] += used[both].tolist()
        communicating = union(
            np.concatenate([one.start for one in beside.of(number)]),
            np.concatenate([one.end for one in beside.of(number)]),
        )
        free = covered_length(subtract(compute, communicating), start, end) >= least
        alone += used[free].tolist()
    return {
        "dram_alone_pct": np.full(num, _mean(alone)),
        "dram_overlapped_pct": np.array([_mean(one) for one in overlapped]),
    }


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if len(values) >= _LEAST_INTERVALS else float("nan")


def _computing(trace: Trace, number: int) -> Intervals:
    ops = trace.gpu_ops.take(trace.on(trace.gpus[number]))
    compute = ops["activity"] == Activity.COMPUTE
    return union(ops["start_ns"][compute], ops["end_ns"][compute])


def _refreshes(trace: Trace, number: int) -> tuple[Array, Array, Floats]:
    """Intervals of a GPU's bandwidth sensor, on the clock of its source, and what it read."""
    time, used = readings(trace, trace.gpus[number], "gpm_dram_bw_util_pct")
    return time[:-1], time[1:], used[1:]
