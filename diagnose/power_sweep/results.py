"""What a run under one power limit gave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """Figures of a recorded window; None: not known, and ``why`` of the window says why."""

    step_ns: float | None = None
    """Median step time over steps and GPUs."""
    num_steps: int = 0
    step_energy_j: float | None = None
    """Mean energy of a step, summed over physical GPUs, with its interval."""
    step_energy_low_j: float | None = None
    step_energy_high_j: float | None = None
    gain_ns: float | None = None
    """Median over GPUs of what overlap gains in a step: without it less as it was."""
    gain_low_ns: float | None = None
    gain_high_ns: float | None = None
    clock_mhz: float | None = None
    peak_w: float | None = None
    why: tuple[str, ...] = ()
    """Why some are not known."""


@dataclass(frozen=True)
class CapRun:
    """One run of the job. ``cap_w`` None: under the limits as they were found."""

    cap_w: float | None
    status: int
    """The job's exit status; after a window was recorded the job is ended, whatever it says."""
    wall_s: float
    energy_j: float | None
    """Of all GPUs chosen, from start to end of the job, by their counters."""
    window: Path | None = None
    measured: Measured | None = None
    problem: str = ""
