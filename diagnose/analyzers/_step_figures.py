"""One recording as a comparison sees it: each measure as one value a step.

A value is the mean over GPUs, so parts keep adding up to wholes and recordings of
different sizes compare. A step counts if as many GPUs as in any other step have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.analyzers._idle_causes.causes import Cause
from diagnose.analyzers._late import lateness
from diagnose.analyzers._moving import exposed_transfer, transfers
from diagnose.analyzers._waits import analyse
from diagnose.analyzers.breakdown import breakdown
from diagnose.analyzers.stalls import stall_causes
from diagnose.intervals import Array
from diagnose.schema import NO_ROW, NULL, Activity, Detail
from diagnose.trace import Table, Trace

Floats = npt.NDArray[np.float64]

STEP_TIME = "step_time"
HIDDEN, COMMUNICATION = "hidden_communication", "communication"
STATES = {
    "compute_only_ns": ("compute",),
    "overlapped_ns": ("compute", COMMUNICATION, HIDDEN),
    "exposed_communication_ns": (COMMUNICATION, "exposed_communication"),
    "memory_only_ns": ("memory_only",),
    "idle_ns": ("idle",),
}
"""State of ``breakdown`` -> the measures that it is a part of."""
WAITING, EXPOSED_TRANSFER = "waiting_for_late_ranks", "exposed_transfer"
LATENESS_COST = "lateness_cost"
"""What a rank's lateness costs another rank, at most (``ranks``); of single ranks only."""


class CollectiveKey(NamedTuple):
    """A kind of collective and its size as nccl-tests counts it."""

    name: str
    num_bytes: int


class Part(NamedTuple):
    """Time per step and number per step of a kernel, a kind of collective or a cause."""

    time: Floats
    number: Floats


@dataclass(frozen=True)
class StepFigures:
    """Arrays hold one value a step; ``by_rank`` the same of one rank."""

    measures: Mapping[str, Floats] = field(default_factory=dict)
    by_rank: Mapping[int, Mapping[str, Floats]] = field(default_factory=dict)
    kernels: Mapping[str, Part] = field(default_factory=dict)
    collectives: Mapping[CollectiveKey, Part] = field(default_factory=dict)
    stalls: Mapping[str, Part] | None = None
    num_timed: int = 0
    num_covered: int = 0


def step_figures(trace: Trace) -> StepFigures:
    """Everything that is compared, of one trace with step marks."""
    label = _labels(trace)
    measures, by_rank, timed = _measures(trace, label)
    kernels, collectives, covered = _operations(trace, label)
    return StepFigures(
        measures, by_rank, kernels, collectives, _stalls(trace, label, timed), len(timed), covered
    )


def _labels(trace: Trace) -> Array:
    """For each row of ``steps`` what it is called on every rank: its number, else its place."""
    number, source = trace.steps["number"], trace.steps["source"]
    first = np.searchsorted(source, source)
    found: Array = np.where(number != NULL, number, np.arange(len(source)) - first)
    return found


class _Kept(NamedTuple):
    """The steps that count, and on how many GPUs each of them was seen."""

    labels: Array
    num_gpus: int

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, label: Array) -> Array:
        """For each label its place among the kept; -1 if it is none of them."""
        if not len(self.labels):
            return np.full(label.shape, NO_ROW)
        at = np.minimum(np.searchsorted(self.labels, label), len(self.labels) - 1)
        return np.where(self.labels[at] == label, at, NO_ROW)


def _kept(gpu: Array, label: Array) -> _Kept:
    """The labels that most GPUs have, from (GPU, label) pairs in any number."""
    pairs = np.unique(np.stack([label, gpu]), axis=1)
    labels, count = np.unique(pairs[0], return_counts=True)
    most = int(count.max(initial=0))
    return _Kept(labels[count == most], most)


def _gpu_numbers(trace: Trace, table: Table) -> Array:
    """For each row the place of its GPU in ``Trace.gpus``."""
    place = {(gpu.source, gpu.device): number for number, gpu in enumerate(trace.gpus)}
    pairs = zip(table["source"].tolist(), table["device"].tolist(), strict=True)
    return np.array([place[pair] for pair in pairs], np.int64)


def _measures(
    trace: Trace, label: Array
) -> tuple[dict[str, Floats], dict[int, dict[str, Floats]], _Kept]:
    table = breakdown(trace)
    table = table.take(table["step_row"] >= 0)
    gpu, labels = _gpu_numbers(trace, table), label[table["step_row"]]
    kept = _kept(gpu, labels)
    columns = _columns(trace, table, gpu)
    place = kept.place(labels)
    used = place >= 0
    means = {
        name: np.bincount(place[used], values[used], minlength=len(kept)) / max(kept.num_gpus, 1)
        for name, values in columns.items()
    }
    by_rank: dict[int, dict[str, Floats]] = {}
    for number, one in enumerate(trace.gpus):
        own = used & (gpu == number)
        # Two GPUs of one rank cannot be told apart across recordings.
        if one.rank is not None and own.any() and [g.rank for g in trace.gpus].count(one.rank) == 1:
            by_rank[one.rank] = {name: values[own] for name, values in columns.items()}
    _add_lateness(trace, by_rank)
    return means, by_rank, kept


def _add_lateness(trace: Trace, by_rank: dict[int, dict[str, Floats]]) -> None:
    analysed = analyse(trace)
    if not analysed.matches.num_matches:
        return
    late = lateness(trace, analysed)
    for number, gpu in enumerate(trace.gpus):
        if gpu.rank in by_rank and late.num_steps:
            cost = late.cost[number, : late.num_steps].astype(np.float64)
            by_rank[gpu.rank][LATENESS_COST] = cost


def _columns(trace: Trace, table: Table, gpu: Array) -> dict[str, Floats]:
    step = (table["end_ns"] - table["start_ns"]).astype(np.float64)
    columns = {STEP_TIME: step}
    for state, names in STATES.items():
        for name in names:
            columns[name] = columns.get(name, np.zeros(len(table))) + table[state]
    moving = transfers(trace)
    if moving is None:
        return columns
    exposed = np.full(len(table), NULL)
    for number, transfer in enumerate(moving):
        own = gpu == number
        low, high = table["start_ns"][own], table["end_ns"][own]
        exposed[own] = exposed_transfer(trace, number, transfer, low, high)
    if (exposed != NULL).all():
        columns[EXPOSED_TRANSFER] = exposed.astype(np.float64)
        columns[WAITING] = (table["exposed_communication_ns"] - exposed).astype(np.float64)
    return columns


def _operations(
    trace: Trace, label: Array
) -> tuple[dict[str, Part], dict[CollectiveKey, Part], int]:
    """Durations summed by kernel and by kind of collective, of the work launched in a step."""
    ops = trace.gpu_ops
    rows = np.flatnonzero(ops["step_row"] >= 0)
    gpu = ops["source"][rows].astype(np.int64) * (int(ops["device"].max(initial=0)) + 1)
    gpu += ops["device"][rows]
    step = label[ops["step_row"][rows]]
    kept = _kept(*_distinct(gpu, step))
    place = kept.place(step)
    communicates = ops["activity"][rows] == Activity.COMMUNICATION
    used = place >= 0
    local = used & ~communicates
    names = ops["name"][rows].astype(np.int64)
    duration = ops["end_ns"][rows] - ops["start_ns"][rows]
    kernels = _summed(names[local], place[local], duration[local], kept)
    named = {trace.strings[code]: part for code, part in kernels.items()}
    return named, _collectives(trace, rows, place, duration, kept), len(kept)


def _distinct(gpu: Array, step: Array) -> tuple[Array, Array]:
    """The pairs that occur: one pass over codes instead of a sort of all rows by both."""
    labels, code = np.unique(step, return_inverse=True)
    pairs = np.unique(gpu * max(len(labels), 1) + code.reshape(-1))
    return pairs // max(len(labels), 1), labels[pairs % max(len(labels), 1)]


def _collectives(
    trace: Trace, rows: Array, place: Array, duration: Array, kept: _Kept
) -> dict[CollectiveKey, Part]:
    known = trace.collectives
    at = np.searchsorted(rows, known["gpu_op_row"])
    at = np.minimum(at, max(len(rows) - 1, 0))
    inside = (
        (rows[at] == known["gpu_op_row"]) & (place[at] >= 0) if len(rows) else np.zeros(0, bool)
    )
    chosen = np.flatnonzero(inside)
    keys = [_collective_key(trace, row, known["gpu_op_row"][row].item()) for row in chosen.tolist()]
    distinct = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    codes = np.array([distinct[key] for key in keys], np.int64)
    found = _summed(codes, place[at[chosen]], duration[at[chosen]], kept)
    return {key: found[code] for key, code in distinct.items()}


def _collective_key(trace: Trace, row: int, op_row: int) -> CollectiveKey:
    known = trace.collectives
    code = max(int(known["collective"][row]), NO_ROW)
    if code < 0:
        code = int(known["name"][row])
    if code < 0:
        code = int(trace.gpu_ops["name"][op_row])
    return CollectiveKey(trace.strings[code], int(known["bytes"][row]))


def _summed(code: Array, place: Array, value: Array, kept: _Kept) -> dict[int, Part]:
    """Sum and count per code and step, divided by the GPUs."""
    num_steps = len(kept)
    if not num_steps:
        return {}
    codes, dense = np.unique(code, return_inverse=True)
    key = dense.reshape(-1) * num_steps + place
    shape = (len(codes), num_steps)
    time = np.bincount(key, value, minlength=shape[0] * num_steps).reshape(shape) / kept.num_gpus
    count = np.bincount(key, minlength=shape[0] * num_steps).reshape(shape) / kept.num_gpus
    return {one: Part(time[at], count[at]) for at, one in enumerate(codes.tolist())}


def _stalls(trace: Trace, label: Array, timed: _Kept) -> dict[str, Part] | None:
    if trace.detail < Detail.ALL:
        return None
    table = stall_causes(trace)
    if isinstance(table, Unavailable):
        return None
    table = table.take(table["step_row"] >= 0)
    place = timed.place(label[table["step_row"]])
    used = place >= 0
    cause = table["cause"][used].astype(np.int64)
    times = _summed(cause, place[used], table["length_ns"][used], timed)
    counts = _summed(cause, place[used], table["num_intervals"][used], timed)
    return {Cause(c).name.lower(): Part(times[c].time, counts[c].time) for c in times}
