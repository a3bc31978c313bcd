"""What `power-sweep` does for each run: start the job, record a window, read it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diagnose.errors import DiagnoseError
from diagnose.power_sweep.guard import SweepEnded
from diagnose.power_sweep.plan import Limits, Plan
from diagnose.power_sweep.results import CapRun, Measured
from diagnose.power_sweep.sweep import Outcome, refuse, sweep

if TYPE_CHECKING:
    from diagnose.trace import Table, Trace


def job_under_caps(
    command: Sequence[str], folder: Path, steps: int, after_step: int
) -> Callable[[float | None], Outcome]:
    """Runs the job with the agent, records one window of it, and ends it then.

    A job that takes no optimizer step runs to its end, and is timed by the wall clock.
    """

    def run(cap: float | None) -> Outcome:
        from diagnose.attach.launching.retention import Limits as DiskLimits
        from diagnose.attach.launching.triggers import Schedule
        from diagnose.cli._watched_job import Wanted, make_folder, run_job
        from diagnose.collect import Options

        place = folder / ("as-found" if cap is None else f"cap-{cap:g}W")
        make_folder(place)
        wanted = Wanted(
            [Schedule(at=[after_step])],
            place,
            steps,
            Options(),
            DiskLimits(),
            telemetry=False,
            stop_after_window=True,
        )
        status, seen = run_job(command, {}, wanted)
        if seen.windows:
            return Outcome(status, seen.windows[0])
        reason = seen.problems[-1] if seen.problems else ""
        if status:
            reason = f"the job ended with status {status}" + (f" ({reason})" if reason else "")
        elif not reason:
            reason = f"it ended before step {after_step}, so only its wall time is known"
        return Outcome(status, None, f"no window, {reason}")

    return run


def run_sweep(
    plan: Plan,
    limits: Limits,
    command: Sequence[str],
    folder: Path,
    steps: int,
    after_step: int,
) -> list[CapRun]:
    """Sweep, and leave with 128 + N if signal N ended it: the limits are back by then."""
    from diagnose.cli._watched_job import make_folder, say

    refuse(plan, limits)
    make_folder(folder)
    job = job_under_caps(command, folder, steps, after_step)
    try:
        return sweep(plan, limits, job, measure, say=say)
    except SweepEnded as ended:
        say(f"{ended}; the power limits are as they were")
        raise typer.Exit(ended.status) from None


def measure(window: Path) -> Measured:
    """Step time, energy and gain of overlap of a recorded window."""
    from diagnose.cli._reading import read

    try:
        trace = read([str(window)], None)
    except DiagnoseError as error:
        return Measured(why=(f"the window cannot be read: {error.message}",))
    return measures(trace)


def measures(trace: Trace) -> Measured:
    """The figures of a trace, with the reasons for those that are absent."""
    from diagnose import engine

    requests = {
        "steps": engine.Request("overlap", {"by": "step"}),
        "power": engine.Request("power_summary"),
        "balance": engine.Request("overlap_balance"),
    }
    diagnosis = engine.diagnose(trace, requests)
    why = [f"{name}: {reason.because}" for name, reason in diagnosis.unavailable.items()]
    steps = diagnosis.tables.get("steps")
    times = [] if steps is None else steps["step_ns"][steps.known("step_ns")].tolist()
    step = statistics.median(times) if times else None
    power = diagnosis.tables.get("power")
    energy = (None, None, None) if power is None else _energy(power, why)
    gain = _gain(diagnosis.tables.get("balance"))
    return Measured(
        step_ns=step,
        num_steps=len(times),
        step_energy_j=energy[0],
        step_energy_low_j=energy[1],
        step_energy_high_j=energy[2],
        gain_ns=gain[0],
        gain_low_ns=gain[1],
        gain_high_ns=gain[2],
        clock_mhz=None if power is None else _mean(power, "clock_mhz"),
        peak_w=None if power is None else _most(power, "peak_w"),
        why=tuple(why),
    )


def _energy(power: Table, why: list[str]) -> tuple[float | None, float | None, float | None]:
    """Summed over GPUs, if it is known of each: a sum of some says nothing."""
    known = power.known("step_energy_j")
    if not known.all():
        first = [
            text
            for name in ("why", "step_energy_why")
            for text in power.texts(name)
            if text is not None
        ]
        why.append(f"energy of a step: {first[0]}" if first else "energy of a step: not known")
        return None, None, None
    total = float(power["step_energy_j"].sum())
    # Independent GPUs: half widths add as squares.
    below = float(((power["step_energy_j"] - power["step_energy_low_j"]) ** 2).sum() ** 0.5)
    above = float(((power["step_energy_high_j"] - power["step_energy_j"]) ** 2).sum() ** 0.5)
    return total, total - below, total + above


def _gain(balance: Table | None) -> tuple[float | None, float | None, float | None]:
    if balance is None:
        return None, None, None
    figures = [balance[name] for name in ("gain_ns", "gain_low_ns", "gain_high_ns")]
    # The row of the whole window is no step.
    steps = balance.known("step_row") & balance.known("gain_ns")
    if not steps.any():
        return None, None, None
    values = [figure[steps] for figure in figures]
    middle = [statistics.median(value[value == value].tolist() or [0.0]) for value in values]
    return middle[0], middle[1], middle[2]


def _mean(table: Table, name: str) -> float | None:
    known = table[name][table.known(name)]
    return float(known.mean()) if len(known) else None


def _most(table: Table, name: str) -> float | None:
    known = table[name][table.known(name)]
    return float(known.max()) if len(known) else None
