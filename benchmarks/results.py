"""Medians, ratios, and the table in Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.candidates import Candidate, Input
from benchmarks.measure import Cost
from benchmarks.targets import INTERVALS, beside, target

OTHERS = ("hta", "traceinsight")


@dataclass(frozen=True)
class Row:
    """Medians of one candidate on one input. Ratios are None where there is nothing to divide by.

    ``less_cpu`` and ``less_memory``: how many times less than the better of the two
    releases of HolisticTraceAnalysis, figure by figure. ``times_floor``: CPU over that of
    the floor.
    """

    input: str
    candidate: str
    label: str
    num_runs: int
    cpu_s: float
    cpu_s_runs: list[float]
    wall_s: float
    peak_mib: float
    events_per_cpu_s: float
    times_floor: float | None
    less_cpu: float | None
    less_memory: float | None
    overlap_pct: list[float] | None


def rows(
    source: Input,
    who: Sequence[Candidate],
    costs: Mapping[str, Sequence[Cost]],
    answers: Mapping[str, list[float] | None],
) -> list[Row]:
    """One row per candidate that was run on this input."""
    cpu = {key: median(cost.cpu_s for cost in runs) for key, runs in costs.items() if runs}
    peak = {key: median(cost.peak_mib for cost in runs) for key, runs in costs.items() if runs}
    best_cpu = min((cpu[key] for key in OTHERS if key in cpu), default=None)
    best_peak = min((peak[key] for key in OTHERS if key in peak), default=None)
    found = []
    for candidate in who:
        key = candidate.key
        if key not in cpu:
            continue
        compared = candidate.ours
        found.append(
            Row(
                input=source.key,
                candidate=key,
                label=candidate.label,
                num_runs=len(costs[key]),
                cpu_s=round(cpu[key], 3),
                cpu_s_runs=[round(cost.cpu_s, 3) for cost in costs[key]],
                wall_s=round(median(cost.wall_s for cost in costs[key]), 3),
                peak_mib=round(peak[key], 1),
                events_per_cpu_s=round(source.num_events / cpu[key]),
                times_floor=round(cpu[key] / cpu["floor"], 2) if "floor" in cpu else None,
                less_cpu=round(best_cpu / cpu[key], 1) if compared and best_cpu else None,
                less_memory=round(best_peak / peak[key], 1) if compared and best_peak else None,
                overlap_pct=answers.get(key),
            )
        )
    return found


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _speed(events_per_s: float) -> str:
    if events_per_s >= 1e6:
        return f"{events_per_s / 1e6:.2f} M"
    return f"{events_per_s / 1e3:.0f} k"


def table(source: Input, found: Sequence[Row]) -> str:
    """The rows of one input as a Markdown table under a line that says what the input is."""
    lines = [
        f"**{source.label}**: {source.num_events:,} events, "
        f"{source.num_bytes / 1e6:,.0f} MB of JSON, gzip.",
        "",
        "| | CPU s | wall s | peak MiB | events per CPU s "
        "| CPU against HTA | memory against HTA | CPU against floor | runs |",
        "| --- |" + " ---: |" * 8,
    ]
    lines += [
        f"| {row.label} | {_number(row.cpu_s)} | {_number(row.wall_s)} "
        f"| {row.peak_mib:,.0f} | {_speed(row.events_per_cpu_s)} "
        f"| {_less(row.less_cpu)} | {_less(row.less_memory)} "
        f"| {_times(row.times_floor)} | {row.num_runs} |"
        for row in found
    ]
    return "\n".join(lines)


def summary(
    tables: Sequence[tuple[Input, Sequence[Row]]], intervals: Sequence[Mapping[str, Any]] = ()
) -> str:
    """One table for the README: this project on each input, each figure beside its target."""
    lines = [
        "| | CPU s | less CPU than HTA | times the floor | less memory than HTA | peak MiB |",
        "| --- |" + " ---: |" * 5,
    ]
    for source, found in tables:
        size = f"{source.num_bytes / 1e6:,.0f} MB"
        for row in found:
            if row.less_cpu is None:
                continue
            aim = target(row.candidate, source.num_bytes)
            cells = (
                _number(row.cpu_s),
                beside(_times(row.less_cpu), row.less_cpu, aim.less_cpu, at_most=False),
                beside(_times(row.times_floor), row.times_floor, aim.times_floor, at_most=True),
                beside(_times(row.less_memory), row.less_memory, aim.less_memory, at_most=False),
                beside(f"{row.peak_mib:,.0f}", row.peak_mib, aim.peak_mib, at_most=True),
            )
            lines.append(f"| {row.label}, {size} | {' | '.join(cells)} |")
        others = [row for row in found if row.candidate in OTHERS]
        if others:
            cpu_s = _number(min(row.cpu_s for row in others))
            peak = min(row.peak_mib for row in others)
            lines.append(f"| HTA: load and overlap, {size} | {cpu_s} | - | - | - | {peak:,.0f} |")
    for entry in intervals:
        shown = beside(
            _times(entry["less_cpu"]), entry["less_cpu"], INTERVALS.less_cpu, at_most=False
        )
        lines.append(
            f"| {entry['num_intervals']:,} intervals in memory, {entry['order']} "
            f"| {_number(entry['this_cpu_s'])} | {shown} | - | - | - |"
        )
    return "\n".join(lines)


def _less(ratio: float | None) -> str:
    return "-" if ratio is None else f"{_times(ratio)} less"


def _times(ratio: float | None) -> str:
    """A ratio, which is kept to one decimal, with no digit that was not measured."""
    return "-" if ratio is None else f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x"


def intervals_table(measured: Sequence[Mapping[str, Any]]) -> str:
    """The interval comparison as a Markdown table."""
    lines = [
        "**Union, overlap and exposed time of intervals in memory**, CPU s of the functions alone.",
        "",
        "| intervals | order | this project | HolisticTraceAnalysis 0.5.0 | |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {entry['num_intervals']:,} | {entry['order']} | {_number(entry['this_cpu_s'])} "
        f"| {_number(entry['hta_cpu_s'])} | {_less(entry['less_cpu'])} |"
        for entry in measured
    ]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system: what the figures depend on."""
    model = memory = None
    processor, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if processor.is_file():
        names = [ln for ln in processor.read_text().splitlines() if ln.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else None
    if meminfo.is_file():
        memory = round(int(meminfo.read_text().split()[1]) / 2**20, 1)
    return {
        "processor": model or platform.machine(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_gib": memory,
        "system": platform.system(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries."""
    return [asdict(row) for row in found]
