"""What ``diagnose power-sweep`` prints: what it would do, and what each cap gave."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence

from diagnose.power_sweep.plan import Plan
from diagnose.power_sweep.results import CapRun, Measured
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._records import Record, encode, microseconds_raw
from diagnose.reporters._sheet import Heading, Sheet
from diagnose.reporters.text import console_for, draw, wrapped
from diagnose.wording.numbers import ABSENT, scale_for
from diagnose.wording.plain import plain

SCHEMA_VERSION = 1


def planned(plan: Plan, command: Sequence[str], page: Page) -> str:
    """The dry run: which limits would be set on which GPU, and how to really do it."""
    out = io.StringIO()
    console = console_for(out, page)
    draw(console, _limits(plan, page), page)
    console.print()
    shown = plain(shlex.join(command), 200, unicode=page.unicode)
    caps = ", ".join(f"{cap:g}" for cap in plan.caps_w)
    said = (
        f"Would run {len(plan.runs)} times: {shown}",
        f"first under the limits as they are, then under {caps} W, and restore the limits above.",
        "Nothing was changed. To do it: as root, with --allow-set-power-limit.",
    )
    for sentence in said:
        wrapped(console, sentence, page)
    return out.getvalue()


def _limits(plan: Plan, page: Page) -> Sheet:
    rows = tuple(
        (
            str(gpu.index),
            plain(gpu.name, 30, unicode=page.unicode),
            f"{gpu.current_w:,.0f}",
            f"{gpu.default_w:,.0f}",
            f"{gpu.least_w:,.0f} to {gpu.most_w:,.0f}",
        )
        for gpu in plan.gpus
    )
    headings = (
        Heading("GPU"),
        Heading("name", left=True),
        Heading("limit", "W"),
        Heading("default", "W"),
        Heading("allowed", "W"),
    )
    return Sheet("Power limits as they are", headings, rows)


def write(plan: Plan, runs: Sequence[CapRun], form: str, page: Page) -> str:
    """The runs as text, CSV or JSON."""
    rows = run_rows(runs)
    if form == "csv":
        return csv_text(rows)
    if form == "json":
        gpus = [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "limit_w": gpu.current_w,
                "least_w": gpu.least_w,
                "most_w": gpu.most_w,
            }
            for gpu in plan.gpus
        ]
        return encode({"schema_version": SCHEMA_VERSION, "gpus": gpus, "runs": rows})
    out = io.StringIO()
    console = console_for(out, page)
    draw(console, _runs(runs), page)
    for run in runs:
        label = "as found" if run.cap_w is None else f"{run.cap_w:g} W"
        why = list(run.measured.why) if run.measured is not None else []
        for sentence in filter(None, [run.problem, *why]):
            wrapped(console, plain(f"{label}: {sentence}", 600, unicode=page.unicode), page)
    return out.getvalue()


def run_rows(runs: Sequence[CapRun]) -> list[Record]:
    """A record a run."""
    rows = []
    for run in runs:
        found = run.measured or Measured()
        row: Record = {
            "cap_w": run.cap_w,
            "status": run.status,
            "wall_us": microseconds_raw(round(1e9 * run.wall_s)),
            "energy_j": run.energy_j,
            "window": None if run.window is None else str(run.window),
            "num_steps": found.num_steps,
        }
        for name in ("step_ns", "gain_ns", "gain_low_ns", "gain_high_ns"):
            value = getattr(found, name)
            row[f"{name[:-3]}_us"] = None if value is None else microseconds_raw(round(value))
        for name in ("step_energy_j", "step_energy_low_j", "step_energy_high_j"):
            row[name] = getattr(found, name)
        row |= {"clock_mhz": found.clock_mhz, "peak_w": found.peak_w}
        row["why"] = "; ".join(filter(None, [run.problem, *found.why])) or None
        rows.append(row)
    return rows


def _runs(runs: Sequence[CapRun]) -> Sheet:
    found = [run.measured or Measured() for run in runs]
    scale = scale_for(round(max([m.step_ns or 0 for m in found], default=0)))
    first = found[0] if found else Measured()

    def time(value: float | None) -> str:
        return ABSENT if value is None else scale.show(round(value))

    rows = tuple(
        (
            "as found" if run.cap_w is None else f"{run.cap_w:,.0f}",
            time(measured.step_ns),
            _change(measured.step_ns, first.step_ns),
            _figure(measured.step_energy_j, 1),
            _change(measured.step_energy_j, first.step_energy_j),
            time(measured.gain_ns),
            _figure(measured.clock_mhz),
            _figure(measured.peak_w),
            f"{run.wall_s:,.1f}",
            _figure(None if run.energy_j is None else run.energy_j / 1e3, 2),
        )
        for run, measured in zip(runs, found, strict=True)
    )
    headings = (
        Heading("limit", "W"),
        Heading("step", scale.unit),
        Heading("change", "%"),
        Heading("step", "J"),
        Heading("change", "%", spare=1),
        Heading("overlap gains*", scale.unit),
        Heading("clock", "MHz", spare=2),
        Heading("peak", "W", spare=3),
        Heading("run", "s", spare=2),
        Heading("run**", "kJ", spare=3),
    )
    notes = (
        "* per step: the time without overlap less the time as it was (see `diagnose contention`).",
        "** of all GPUs limited, from start to end of the job, start-up included.",
    )
    return Sheet("The job under each power limit", headings, rows, footnotes=notes)


def _figure(value: float | None, decimals: int = 0) -> str:
    return ABSENT if value is None else f"{value:,.{decimals}f}"


def _change(value: float | None, first: float | None) -> str:
    if value is None or not first:
        return ABSENT
    return f"{100 * (value / first - 1):+.1f}"
