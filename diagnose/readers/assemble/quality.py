"""Whether a trace can be believed: what is missing or doubtful, and which number it touches.

Everything here is counted, nothing is changed. Findings about launches need the
calls into the GPU runtime (``Detail.LAUNCHES``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from diagnose.intervals import covered_length, union
from diagnose.readers.assemble.gpu import LAUNCHING, ambiguous_ids
from diagnose.readers.raw import NO_NAME, Columns
from diagnose.schema import Detail, Kind
from diagnose.trace import ON_CPU, Note, Severity

FEW_STEPS = 3
"""Step times are differences: this many marks are the fewest that give two of them."""
WARM_UP_RATIO = 2.0
"""The first step is called a warm-up if it lasts longer than this times the others' median."""
OVERHEAD_SHARE = 0.05
"""Above this share of the marked time the profiler's own work is a warning."""
PAUSE_SHARE = 0.5
"""More idle time than this share of the window outside of all steps is a pause."""
CLOCK_TOLERANCE_NS = 10_000
"""Kernels before their launch by up to this much are the clocks' inaccuracy."""


class Tables(NamedTuple):
    """The tables of one process that are judged, and what to call the file."""

    path: str
    gpu: Columns
    calls: Columns
    host: Columns
    steps: Columns
    strings: list[str]
    detail: Detail
    environment: Mapping[str, Any] = {}


def judge(tables: Tables) -> list[Note]:
    """The notes of one process."""
    if not len(tables.gpu["op_id"]):
        return [_on_cpu(tables) or _no_gpu_events(tables), *_overhead(tables)]
    notes = []
    if tables.detail >= Detail.LAUNCHES:
        notes += _without_launch(tables) + _without_kernel(tables) + _before_launch(tables)
        notes += _ambiguous(tables)
    return notes + _nameless(tables) + _steps(tables) + _pause(tables) + _overhead(tables)


def _no_gpu_events(tables: Tables) -> Note:
    sentence = (
        f"{tables.path}: no GPU work was recorded, so nothing can be said about overlap; record "
        "with ProfilerActivity.CUDA, and look for other profilers that hold the GPU's counters"
    )
    return Note("no-gpu-events", "warning", sentence)


def _on_cpu(tables: Tables) -> Note | None:
    """The note of a process that used no GPU; None unless its environment says so.

    A call into the GPU runtime is proof of the contrary.
    """
    version = tables.environment.get("torch")
    gpu = tables.environment.get("gpu", "not said")
    if not isinstance(version, str) or gpu is not None or len(tables.calls["op_id"]):
        return None
    built_for_gpus = "rocm" in version or tables.environment.get("cuda", "") is not None
    why = (
        "no GPU was in use in it; if it should use one, look at torch.cuda.is_available() and "
        "CUDA_VISIBLE_DEVICES there"
        if built_for_gpus
        else f"its PyTorch ({version}) is built without CUDA"
    )
    sentence = (
        f"{tables.path}: the process ran on the CPU: {why}; figures of GPUs (overlap, idle time, "
        "power) need a job on GPUs"
    )
    return Note(ON_CPU, "info", sentence)


def _without_launch(tables: Tables) -> list[Note]:
    gpu, calls, path = tables.gpu, tables.calls, tables.path
    ambiguous = np.isin(gpu["correlation"], ambiguous_ids(calls))
    missing = (gpu["launch_row"] < 0) & ~ambiguous
    count, total = int(missing.sum()), len(missing)
    if not count:
        return []
    if not len(calls["op_id"]):
        sentence = (
            f"{path}: no call into the GPU runtime was recorded, so GPU operations ({count}) "
            "cannot be assigned to steps"
        )
        return [Note("no-launches", "warning", sentence, count)]
    known = calls["correlation"][calls["correlation"] > 0]
    earlier = np.zeros(total, bool)
    if len(known):
        earlier |= (gpu["correlation"] > 0) & (gpu["correlation"] < known.min())
    launched = gpu["start_ns"][gpu["launch_row"] >= 0]
    if len(launched):
        earlier |= gpu["start_ns"] < launched.min()
    before, later = int((missing & earlier).sum()), int((missing & ~earlier).sum())
    notes = []
    if before:
        sentence = (
            f"{path}: GPU operations launched before the window opened: {before} of {total}; they "
            "count for the GPU's totals but belong to no step"
        )
        notes.append(Note("launched-before-window", "info", sentence, before))
    if later:
        sentence = (
            f"{path}: GPU operations within the window whose launch is missing (the profiler "
            f"dropped it): {later} of {total}; they belong to no step, so figures per step are too "
            "low"
        )
        notes.append(Note("launch-missing", "warning", sentence, later))
    return notes


def _ambiguous(tables: Tables) -> list[Note]:
    count = int(np.isin(tables.gpu["correlation"], ambiguous_ids(tables.calls)).sum())
    if not count:
        return []
    sentence = (
        f"{tables.path}: GPU operations whose correlation id several launches carry: {count} of "
        f"{len(tables.gpu['op_id'])}; which one launched them is unknown, so they belong to no "
        "step, and figures per step are too low"
    )
    return [Note("launch-ambiguous", "warning", sentence, count)]


def _nameless(tables: Tables) -> list[Note]:
    unnamed = np.array([text in ("", NO_NAME) for text in tables.strings] + [True])
    kernels = tables.gpu["kind"] == Kind.KERNEL
    count = int((unnamed[tables.gpu["name"]] & kernels).sum())
    if not count:
        return []
    sentence = (
        f"{tables.path}: kernels without a name: {count} of {int(kernels.sum())}; they count as "
        "compute, not certainly, so communication and overlap may be too low"
    )
    return [Note("kernel-unnamed", "warning", sentence, count)]


def _without_kernel(tables: Tables) -> list[Note]:
    gpu, calls = tables.gpu, tables.calls
    launching = np.isin(calls["call"], LAUNCHING) & (calls["correlation"] > 0)
    lost = launching & ~np.isin(calls["correlation"], gpu["correlation"])
    count = int(lost.sum())
    if not count:
        return []
    seen = calls["start_ns"][launching & ~lost]
    start = calls["start_ns"][lost]
    early = int((start < seen.min()).sum()) if len(seen) else 0
    late = int((start > seen.max()).sum()) if len(seen) else 0
    where = []
    if early:
        where.append(f"{early} before the first launch that has work")
    if late:
        where.append(f"{late} after the last one (still queued when the window closed)")
    if count - early - late:
        where.append(f"{count - early - late} in between (dropped, or captured into a CUDA graph)")
    sentence = (
        f"{tables.path}: launches without GPU work: {count} ({', '.join(where)}); GPU time of "
        "their steps is too low by that work"
    )
    severity: Severity = "warning" if count - late else "info"
    return [Note("kernel-missing", severity, sentence, count)]


def _before_launch(tables: Tables) -> list[Note]:
    gpu, calls = tables.gpu, tables.calls
    launched = gpu["launch_row"] >= 0
    ahead = calls["start_ns"][gpu["launch_row"][launched]] - gpu["start_ns"][launched]
    count = int((ahead > 0).sum())
    if not count:
        return []
    most = int(ahead.max())
    sentence = (
        f"{tables.path}: GPU operations that start before their launch: {count}, by up to "
        f"{most / 1000:,.3f} us; the clocks of host and GPU differ, so launch delays and idle "
        "causes are off by that much (overlap on the GPU is not)"
    )
    severity: Severity = "warning" if most > CLOCK_TOLERANCE_NS else "info"
    return [Note("kernel-before-launch", severity, sentence, count)]


def _steps(tables: Tables) -> list[Note]:
    steps, path = tables.steps, tables.path
    count = len(steps["op_id"])
    if not count:
        sentence = (
            f"{path}: no step marks, so there are no figures per step; call prof.step() once a "
            "training step"
        )
        return [Note("no-steps", "info", sentence)]
    if count < FEW_STEPS:
        sentence = (
            f"{path}: steps marked: {count}; fewer than {FEW_STEPS} give at most one step time, so "
            "nothing is known of its spread"
        )
        return [Note("few-steps", "info", sentence, count)]
    duration = steps["end_ns"] - steps["start_ns"]
    first, others = int(duration[0]), float(np.median(duration[1:]))
    if first <= WARM_UP_RATIO * others:
        return []
    sentence = (
        f"{path}: the first step took {first / 1e6:,.3f} ms on the host, the others "
        f"{others / 1e6:,.3f} ms (median): a warm-up; leave it out of averages"
    )
    return [Note("warm-up-step", "warning", sentence)]


def _pause(tables: Tables) -> list[Note]:
    """Idle time outside of every step, between the first mark and the last."""
    steps, gpu = tables.steps, tables.gpu
    if len(steps["op_id"]) < 2:
        return []
    opened, closed = gpu["start_ns"].min(), gpu["end_ns"].max()
    begin = np.maximum(np.maximum.accumulate(steps["end_ns"])[:-1], opened)
    end = np.minimum(steps["start_ns"][1:], closed)
    between = end > begin
    begin, end = begin[between], end[between]
    busy = union(gpu["start_ns"], gpu["end_ns"])
    idle = int((end - begin - covered_length(busy, begin, end)).sum())
    window = int(closed - opened)
    if idle <= PAUSE_SHARE * window:
        return []
    sentence = (
        f"{tables.path}: the GPU did nothing for {idle / 1e6:,.3f} ms between marked steps, of a "
        f"window of {window / 1e6:,.3f} ms: steps that were not recorded, or a pause; window and "
        "idle time include it, figures per step do not"
    )
    return [Note("recording-paused", "warning", sentence, len(begin))]


def _overhead(tables: Tables) -> list[Note]:
    host = tables.host
    spent = np.array([text == "overhead" for text in tables.strings], bool)
    rows = np.flatnonzero(np.append(spent, False)[host["category"]])
    if not len(rows):
        return []
    total = int((host["end_ns"][rows] - host["start_ns"][rows]).sum())
    marked = _marked_time(tables)
    share = total / marked if marked else None
    names, counts = np.unique(host["name"][rows], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = ", ".join(
        f"{int(counts[i])}x {_short(tables.strings, int(names[i]))}" for i in order[:3].tolist()
    )
    of_steps = "" if share is None else f", {100 * share:.1f} % of the marked time"
    sentence = (
        f"{tables.path}: the profiler's own work on the host: {total / 1e6:,.3f} ms{of_steps} "
        f"({shown}); host times are longer than without a profiler, and so is GPU idle time "
        "where the GPU waits for the host"
    )
    severity: Severity = "info" if share is not None and share <= OVERHEAD_SHARE else "warning"
    return [Note("profiler-overhead", severity, sentence, len(rows))]


def _marked_time(tables: Tables) -> int:
    return int((tables.steps["end_ns"] - tables.steps["start_ns"]).sum())


def _short(strings: list[str], code: int) -> str:
    text = strings[code] if code >= 0 else "(no name)"
    return text if len(text) <= 40 else text[:37] + "..."
