"""``overlap``: the measures per GPU, step, stream, process group or kind of collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.errors import UsageError
from diagnose.grouped_intervals import (
    Segments,
    covered_length_by,
    length_by,
    sum_by,
    union_by,
    union_length_by,
)
from diagnose.intervals import Array, Intervals, covered_length, union
from diagnose.schema import NO_ROW, NULL, Activity, Detail
from diagnose.timeline.step_times import of_source, step_times
from diagnose.timeline.tables import OVERLAP
from diagnose.trace import Gpu, Table, Trace

By = Literal["rank", "step", "stream", "group", "collective"]
BY: tuple[By, ...] = ("rank", "step", "stream", "group", "collective")

Columns = dict[str, Array]


class _Grouping(NamedTuple):
    """How the ops of one GPU fall into rows."""

    ops: Table
    key: Array
    """For each op its row: 0, 1, ..., ``num_rows - 1``."""
    num_rows: int
    labels: Columns
    """Key columns of the result, one value a row."""


def overlap(trace: Trace, by: By = "rank") -> Table | Unavailable:
    """Compute, communication, overlap and idle time. Returns a table of ``OVERLAP``.

    ``by="rank"``: a row per GPU; ``"step"``: per GPU and step, and one for work
    launched in no step; ``"stream"``: per GPU and stream; ``"group"`` and
    ``"collective"``: per GPU and process group or kind of collective, of the
    communication alone. A row whose key is unknown is kept, with a null key.
    Rows are in the order of ``Trace.gpus``, then of the key, null last.

    Raises UsageError for another ``by``.
    """
    if by not in BY:
        raise UsageError(
            f"overlap cannot be split by {by!r}.", hint=f"Choose one of {', '.join(BY)}."
        )
    if by == "step" and (missing := steps_missing(trace)):
        return missing
    parts = [_rows(trace, gpu, by) for gpu in trace.gpus]
    columns: dict[str, Any] = {
        column.name: np.concatenate(
            [np.empty(0, column.dtype), *(part[column.name] for part in parts)]
        ).astype(column.dtype)
        for column in OVERLAP.columns
    }
    return Table(OVERLAP, columns, trace.strings)


def steps_missing(trace: Trace) -> Unavailable | None:
    """Why nothing can be said per step, or None."""
    if trace.detail < Detail.LAUNCHES:
        return Unavailable(
            "GPU work belongs to the step that launched it, and only GPU activities were read.",
            "Read launches too: leave out `--only gpu` (in Python: `only=None`).",
        )
    if not len(trace.steps):
        return Unavailable(
            "The trace has no step marks.",
            "Record with `torch.profiler.profile(schedule=...)` and call `step()` on it once"
            " per training step.",
        )
    return None


def _rows(trace: Trace, gpu: Gpu, by: By) -> Columns:
    ops = trace.gpu_ops.take(trace.on(gpu))
    grouping = _GROUPINGS[by](trace, gpu, ops)
    columns = _measure(ops, grouping)
    num_rows = grouping.num_rows
    columns |= {name: np.full(num_rows, NULL) for name in ("window_ns", "idle_ns", "step_ns")}
    columns |= {name: np.full(num_rows, NO_ROW) for name in ("step_row", "group", "collective")}
    columns["stream"] = np.full(num_rows, NULL)
    columns |= grouping.labels
    columns["source"] = np.full(num_rows, gpu.source)
    columns["device"] = np.full(num_rows, gpu.device)
    columns["rank"] = np.full(num_rows, NULL if gpu.rank is None else gpu.rank)
    if by == "rank":
        window = int(ops["end_ns"].max()) - int(ops["start_ns"].min())
        columns["window_ns"] = np.array([window])
        columns["idle_ns"] = columns["window_ns"] - columns["busy_ns"]
    if by == "step":
        _add_step_times(trace, gpu, ops, columns)
    return columns


def _measure(ops: Table, grouping: _Grouping) -> Columns:
    """All measures that need only the ops: one union per class, then arithmetic."""
    num_rows, whole = grouping.num_rows, grouping.num_rows == 1 and grouping.ops is ops
    classes = {activity: _union_of(grouping, activity) for activity in Activity}
    compute, communication = classes[Activity.COMPUTE], classes[Activity.COMMUNICATION]
    if whole:
        beside = Intervals(compute.start, compute.end)
        communicating = Intervals(communication.start, communication.end)
    else:
        beside = _all_of(ops, Activity.COMPUTE)
        communicating = _all_of(ops, Activity.COMMUNICATION)
    compute_ns = length_by(compute, num_rows)
    communication_ns = length_by(communication, num_rows)
    overlapped_ns = covered_length_by(communication, beside, num_rows)
    compute_beside_ns = (
        overlapped_ns if whole else covered_length_by(compute, communicating, num_rows)
    )
    unsure = ~grouping.ops["certain"]
    start, end = grouping.ops["start_ns"], grouping.ops["end_ns"]
    return {
        "num_ops": np.bincount(grouping.key, minlength=num_rows),
        "compute_ns": compute_ns,
        "communication_ns": communication_ns,
        "memory_ns": length_by(classes[Activity.MEMORY], num_rows),
        "overlapped_ns": overlapped_ns,
        "exposed_communication_ns": communication_ns - overlapped_ns,
        "overlap_pct": _percent(overlapped_ns, communication_ns),
        "overlap_of_compute_pct": _percent(compute_beside_ns, compute_ns),
        "uncertain_ns": union_length_by(grouping.key[unsure], start[unsure], end[unsure], num_rows),
        "kernel_time_ns": sum_by(grouping.key, end - start, num_rows),
        "busy_ns": length_by(_merge(tuple(classes.values()), num_rows), num_rows),
    }


def _union_of(grouping: _Grouping, activity: Activity) -> Segments:
    chosen = grouping.ops["activity"] == activity
    start, end = grouping.ops["start_ns"][chosen], grouping.ops["end_ns"][chosen]
    return union_by(grouping.key[chosen], start, end, grouping.num_rows)


def _all_of(ops: Table, activity: Activity) -> Intervals:
    chosen = ops["activity"] == activity
    return union(ops["start_ns"][chosen], ops["end_ns"][chosen])


def _merge(parts: tuple[Segments, ...], num_rows: int) -> Segments:
    key, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    return union_by(key, start, end, num_rows)


def _percent(part: Array, whole: Array) -> Any:
    share = np.full(whole.shape, np.nan)
    return np.divide(100.0 * part, whole, out=share, where=whole > 0)


def _add_step_times(trace: Trace, gpu: Gpu, ops: Table, columns: Columns) -> None:
    times = step_times(trace, gpu)
    busy = union(ops["start_ns"], ops["end_ns"])
    timed = np.flatnonzero(times.end != NULL)
    begin, end = times.begin[timed], times.end[timed]
    # The steps come first, in order; the row of no step is last and has no time.
    columns["step_ns"][timed] = end - begin
    columns["idle_ns"][timed] = end - begin - covered_length(busy, begin, end)


def _by_rank(_trace: Trace, _gpu: Gpu, ops: Table) -> _Grouping:
    return _Grouping(ops, np.zeros(len(ops), np.int64), 1, {})


def _by_step(trace: Trace, gpu: Gpu, ops: Table) -> _Grouping:
    steps = of_source(trace.steps, gpu.source)
    num_steps = steps.stop - steps.start
    inside = ops["step_row"] >= 0
    key = np.where(inside, ops["step_row"] - steps.start, num_steps)
    rows = np.arange(steps.start, steps.stop)
    if not inside.all():
        rows = np.append(rows, NO_ROW)
    return _Grouping(ops, key, len(rows), {"step_row": rows})


def _by_stream(_trace: Trace, _gpu: Gpu, ops: Table) -> _Grouping:
    streams = np.unique(ops["stream"])
    key = np.searchsorted(streams, ops["stream"])
    if streams[0] == NULL:
        streams = np.roll(streams, -1)
        key = (key - 1) % len(streams)
    return _Grouping(ops, key, len(streams), {"stream": streams})


def _by_text(name: str) -> Callable[[Trace, Gpu, Table], _Grouping]:
    """Group the communication of a GPU by a text column of ``collectives``."""

    def grouping(trace: Trace, gpu: Gpu, ops: Table) -> _Grouping:
        on_gpu = trace.on(gpu)
        edges = np.searchsorted(trace.collectives["gpu_op_row"], [on_gpu.start, on_gpu.stop])
        rows = slice(int(edges[0]), int(edges[1]))
        code = np.full(len(ops), NO_ROW)
        code[trace.collectives["gpu_op_row"][rows] - on_gpu.start] = trace.collectives[name][rows]
        communicates = ops["activity"] == Activity.COMMUNICATION
        code = code[communicates]
        used = np.unique(code)
        # By text, so that the order of the files does not show; unknown last.
        order = sorted(used.tolist(), key=lambda c: (c < 0, trace.strings[c] if c >= 0 else ""))
        place = np.empty(len(used), np.int64)
        place[np.searchsorted(used, order)] = np.arange(len(used))
        key = place[np.searchsorted(used, code)]
        return _Grouping(ops.take(communicates), key, len(used), {name: np.array(order, np.int64)})

    return grouping


_GROUPINGS: dict[str, Callable[[Trace, Gpu, Table], _Grouping]] = {
    "rank": _by_rank,
    "step": _by_step,
    "stream": _by_stream,
    "group": _by_text("group"),
    "collective": _by_text("collective"),
}
