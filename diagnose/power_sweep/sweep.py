"""Runs the job once as it is and once under each cap."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.power_sweep.guard import WATCHDOG, LimitGuard, restore
from diagnose.power_sweep.journal import Journal
from diagnose.power_sweep.plan import Limits, Plan
from diagnose.power_sweep.results import CapRun, Measured
from diagnose.telemetry.limits import PowerLimitError

INTERRUPTED = 130


@dataclass(frozen=True)
class Outcome:
    """How one run of the job ended, and the window that was recorded of it."""

    status: int
    window: Path | None = None
    problem: str = ""


Job = Callable[[float | None], Outcome]
"""Runs the job under the limit that is set; the argument is the cap, for names of folders."""
Measure = Callable[[Path], Measured]


def refuse(plan: Plan, limits: Limits, *, as_root: bool | None = None) -> None:
    """UsageError, with the remedy, where limits must not be set."""
    if not (os.geteuid() == 0 if as_root is None else as_root):
        raise UsageError(
            "setting a power limit needs root",
            hint="run it with sudo, and keep the job's environment: sudo -E",
        )
    for limit in plan.gpus:
        others = limits.processes(limit.uuid)
        if others:
            raise UsageError(
                f"process {others[0]} computes on GPU {limit.index}, and a cap would slow it too",
                hint="end it, or leave this GPU out with --gpus",
            )


def sweep(
    plan: Plan,
    limits: Limits,
    job: Job,
    measure: Measure,
    *,
    journal: Journal | None = None,
    watchdog: Sequence[str] = WATCHDOG,
    as_root: bool | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[CapRun]:
    """Run the job under the limits as they are, then under each cap; measure each run.

    The old limits are back when this returns or raises. A run that fails ends the sweep;
    what was measured before is returned. Raises UsageError and PowerLimitError.
    """
    refuse(plan, limits, as_root=as_root)
    journal = journal or Journal()
    journal.lock()
    try:
        _restore_leftover(journal, limits, say)
        plan = Plan(tuple(limits.read(gpu.uuid) for gpu in plan.gpus), plan.caps_w)
        old_w = {gpu.uuid: gpu.current_w for gpu in plan.gpus}
        runs: list[CapRun] = []
        with LimitGuard(limits, old_w, journal, watchdog) as guard:
            for cap in plan.runs:
                if cap is not None:
                    guard.set(dict.fromkeys(old_w, cap))
                say(_announced(plan, cap))
                runs.append(_run(plan, limits, job, measure, cap))
                if runs[-1].problem:
                    say(runs[-1].problem)
                if runs[-1].status == INTERRUPTED or _failed(runs[-1]):
                    break
        return runs
    finally:
        journal.unlock()


def _restore_leftover(journal: Journal, limits: Limits, say: Callable[[str], None]) -> None:
    known = set(limits.gpus().values())
    left = {uuid: watts for uuid, watts in journal.leftover().items() if uuid in known}
    if left:
        say("an earlier sweep was killed before it could restore its limits: restoring them first")
        restore(limits, left)
    journal.remove()


def _announced(plan: Plan, cap: float | None) -> str:
    gpus = ", ".join(str(gpu.index) for gpu in plan.gpus)
    number = f"run {plan.runs.index(cap) + 1} of {len(plan.runs)}"
    if cap is None:
        return f"{number}: the power limits as they are, GPU {gpus}"
    return f"{number}: power limit {cap:g} W on GPU {gpus}"


def _run(plan: Plan, limits: Limits, job: Job, measure: Measure, cap: float | None) -> CapRun:
    before = [limits.energy_j(gpu.uuid) for gpu in plan.gpus]
    started = time.monotonic()
    outcome = job(cap)
    wall_s = time.monotonic() - started
    after = [limits.energy_j(gpu.uuid) for gpu in plan.gpus]
    spent = [b - a for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    moved = [gpu for gpu in plan.gpus if not _holds(limits, gpu.uuid, cap, gpu.current_w)]
    problem = outcome.problem
    if moved:
        problem = (
            f"the limit of GPU {moved[0].index} was changed by something else during the run: its "
            "figures are of no single limit"
        )
    return CapRun(
        cap,
        outcome.status,
        wall_s,
        sum(spent) if len(spent) == len(plan.gpus) else None,
        outcome.window,
        measure(outcome.window) if outcome.window is not None else None,
        problem,
    )


def _holds(limits: Limits, uuid: str, cap: float | None, old_w: float) -> bool:
    try:
        return abs(limits.read(uuid).current_w - (old_w if cap is None else cap)) <= 1
    except PowerLimitError:
        return False


def _failed(run: CapRun) -> bool:
    return run.status != 0 and run.window is None
