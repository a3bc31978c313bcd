"""``overlap_balance``: what overlap gained in each step, and what contention ate of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.contention._figures import Columns, losses, share_pct, table_of
from diagnose.contention._measured import Fate, Measured
from diagnose.contention._occurrences import Beside, Floats, by_collective
from diagnose.contention._pairing import measured
from diagnose.contention._rates import Estimate
from diagnose.contention._tables import OVERLAP_BALANCE, Verdict
from diagnose.contention.slowdown import other_trace, refused
from diagnose.grouped_intervals import covered_length_by, sum_by, union_by
from diagnose.intervals import Array
from diagnose.schema import NO_ROW, NULL
from diagnose.timeline import overlap
from diagnose.timeline.step_times import of_source
from diagnose.trace import Gpu, Table, Trace


def overlap_balance(trace: Trace, *, alone: Any = None) -> Table | Unavailable:
    """What overlap gained, per GPU and step. Returns a table of ``OVERLAP_BALANCE``.

    Of each GPU a row for the whole window (null step), then one per step::

        contention = time of the paired kernels beyond what they take alone
                     + (overlapped time of the others) x (loss of the paired)
        ideal  = time as it was - contention        serial = ideal + hidden communication
        gain   = serial - time as it was            eaten  = contention / (serial - ideal)

    Hidden communication is counted as long as it took beside compute; if collectives,
    too, are slowed by compute or wait for late ranks meanwhile, serial execution would
    need less, and the gain is an upper bound. With ``alone``, a recording of the same job
    with communication serialised, serial is its median step on the same rank instead, and
    the interval of the gain the range of its steps.

    There is no verdict on a derived balance where less than half of the overlapped compute
    has twins. Steps without a step time (``diagnose.timeline.step_times``) have no ideal and no
    gain. Unavailable where ``contention`` is.
    """
    other = other_trace(alone)
    known = measured(trace, other)
    if missing := refused(trace, known, other):
        return missing
    beside, loss = Beside(trace, by_collective(trace)), losses(known)
    times = _times(trace)
    serial = {} if other is None else _serial_steps(other)
    parts = []
    for number, gpu in enumerate(trace.gpus):
        for by_step in (False, True):
            rows = _Rows.of(trace, known, number, gpu, by_step=by_step)
            if rows.num:
                columns = _contention(known, beside, loss, number, rows)
                told = times.get((gpu, by_step), {})
                for at, name in enumerate(("step_ns", "hidden_ns")):
                    columns[name] = np.array(
                        [told.get(step, (NULL, 0))[at] for step in rows.step_row.tolist()], np.int64
                    )
                measured_serial = serial.get(_place(trace, number)) if by_step else None
                parts.append(_balanced(columns, measured_serial))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return table_of(OVERLAP_BALANCE, joined, trace.strings)


LEAST_COVERAGE_PCT = 50.0
"""Coverage from which a derived balance has a verdict."""


class _Rows(NamedTuple):
    """Rows of one GPU: its steps, or the one of its window."""

    gpu: Gpu
    step_row: Array
    kernels: Array
    """Its compute kernels that belong to a row."""
    label: Array
    """The row of each."""

    @property
    def num(self) -> int:
        return len(self.step_row)

    @classmethod
    def of(cls, trace: Trace, known: Measured, number: int, gpu: Gpu, *, by_step: bool) -> _Rows:
        kernels = np.flatnonzero(known.seen.gpu == number)
        if not by_step:
            nothing = np.zeros(len(kernels), np.int64)
            return cls(gpu, np.array([NO_ROW], np.int64), kernels, nothing)
        kernels = kernels[known.step_row[kernels] >= 0]
        steps = of_source(trace.steps, gpu.source)
        used = np.unique(known.step_row[kernels])
        used = used[(used >= steps.start) & (used < steps.stop)]
        return cls(gpu, used, kernels, np.searchsorted(used, known.step_row[kernels]))


def _contention(
    known: Measured, beside: Beside, loss: Estimate, number: int, rows: _Rows
) -> Columns:
    seen, num = known.seen, rows.num
    paired = known.fate[rows.kernels] == Fate.PAIRED
    pairs, label = rows.kernels[paired], rows.label[paired]
    cost = known.cost(known.by_label(pairs, label, num))
    rest = _rest(known, beside, number, rows.kernels[~paired], rows.label[~paired], num)
    extra = [np.nan_to_num(rest @ np.nan_to_num(one)) for one in loss]
    total = sum_by(rows.label, seen.beside[rows.kernels].sum(1), num)
    # The loss is known with an interval where the cost is.
    unknown = np.isnan(cost.low)
    return {
        "source": np.full(num, rows.gpu.source),
        "device": np.full(num, rows.gpu.device),
        "rank": np.full(num, NULL if rows.gpu.rank is None else rows.gpu.rank),
        "step_row": rows.step_row,
        "measured_ns": cost.value,
        "contention_ns": cost.value + extra[0],
        "contention_low_ns": np.where(unknown, np.nan, cost.low + extra[1]),
        "contention_high_ns": np.where(unknown, np.nan, cost.high + extra[2]),
        "coverage_pct": share_pct(sum_by(label, seen.beside[pairs].sum(1), num), total),
    }


def _rest(
    known: Measured, beside: Beside, number: int, kernels: Array, label: Array, num: int
) -> Floats:
    """Time in which kernels without twins computed beside each class. ``(num, classes)``."""
    seen = known.seen
    computing = union_by(label, seen.start[kernels], seen.end[kernels], num)
    lengths = [covered_length_by(computing, one, num) for one in beside.of(number)]
    return np.stack(lengths, 1).astype(np.float64)


Told = dict[int, tuple[int, int]]
"""Row of ``steps`` -> time as it was (or NULL) and hidden communication."""


def _times(trace: Trace) -> dict[tuple[Gpu, bool], Told]:
    """For each GPU and whether by step: the times that ``overlap`` tells."""
    found: dict[tuple[Gpu, bool], Told] = {}
    for by_step in (False, True):
        table = overlap(trace, by="step" if by_step else "rank")
        if isinstance(table, Unavailable):
            continue
        time = table["step_ns" if by_step else "window_ns"]
        for gpu in trace.gpus:
            own = (table["source"] == gpu.source) & (table["device"] == gpu.device)
            rows = zip(
                table["step_row"][own].tolist(),
                time[own].tolist(),
                table["overlapped_ns"][own].tolist(),
                strict=True,
            )
            found[gpu, by_step] = {step: (taken, hidden) for step, taken, hidden in rows}
    return found


def _place(trace: Trace, number: int) -> tuple[int, ...]:
    """What a GPU is called in two recordings of one job: its rank and device, or its place."""
    gpu = trace.gpus[number]
    return (number,) if gpu.rank is None else (gpu.rank, gpu.device)


def _serial_steps(other: Trace) -> Mapping[tuple[int, ...], Array]:
    """The known step times of each GPU."""
    table = overlap(other, by="step")
    if isinstance(table, Unavailable):
        return {}
    found = {}
    for number, gpu in enumerate(other.gpus):
        own = (table["source"] == gpu.source) & (table["device"] == gpu.device)
        times = table["step_ns"][own & table.known("step_ns")]
        if len(times):
            found[_place(other, number)] = times
    return found


def _balanced(columns: Columns, serial_steps: Array | None) -> Columns:
    step = np.where(columns["step_ns"] == NULL, np.nan, columns["step_ns"].astype(np.float64))
    hidden = columns["hidden_ns"].astype(np.float64)
    ideal = step - columns["contention_ns"]
    if serial_steps is None:
        serial = ideal + hidden
        low = hidden - columns["contention_high_ns"] + 0 * step
        high = hidden - columns["contention_low_ns"] + 0 * step
    else:
        serial = np.median(serial_steps) + 0 * step
        low, high = serial_steps.min() - step, serial_steps.max() - step
    gain = serial - step
    verdict = np.full(len(step), Verdict.UNDECIDED, np.int64)
    # Where most of the overlapped compute has no twin, its loss is a guess.
    told = (columns["coverage_pct"] >= LEAST_COVERAGE_PCT) | (serial_steps is not None)
    verdict[(low > 0) & told] = Verdict.WINS
    verdict[(high < 0) & told] = Verdict.LOSES
    verdict[np.isnan(gain)] = Verdict.UNKNOWN
    verdict[hidden == 0] = Verdict.NOTHING_HIDDEN
    return columns | {
        "ideal_ns": ideal,
        "serial_ns": serial,
        "serial_measured": np.full(len(step), serial_steps is not None),
        "gain_ns": gain,
        "gain_low_ns": low,
        "gain_high_ns": high,
        "eaten_pct": share_pct(columns["contention_ns"], serial - ideal),
        "verdict": verdict,
    }
