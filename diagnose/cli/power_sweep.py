"""``diagnose power-sweep``: the same job under one power limit after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from diagnose.cli._options import Output
from diagnose.cli._tables import FormatOption


def power_sweep(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND",
            help="The command that starts the job, after `--`.",
            show_default=False,
        ),
    ],
    caps: Annotated[
        str, typer.Option(metavar="WATTS", help="Power limits to try, as 700,600,500.")
    ],
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="GPUs to limit: UUIDs, or numbers as nvidia-smi's, with CUDA_VISIBLE_DEVICES set "
            "the job's (default: those that the job is shown).",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        bool,
        typer.Option(
            "--allow-set-power-limit", help="Really set limits. Without it nothing is changed."
        ),
    ] = False,
    steps: Annotated[int, typer.Option(min=2, help="Optimizer steps to record in each run.")] = 30,
    after_step: Annotated[
        int, typer.Option("--after-step", min=1, help="Steps to run before recording.")
    ] = 30,
    recordings: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the recordings go; new or empty (default: power-sweep-TIME).",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = None,
    output: Output = None,
) -> None:
    """Run a job under several power limits.

    Without --allow-set-power-limit it only says what it would do. Setting needs
    root. The job runs once under the limits as they are, then once under each
    cap; each run is ended once its window is recorded. Old limits are restored
    at the end, after an error, a signal or a kill. Not run on hardware.

    \b
    Examples:
      diagnose power-sweep --caps 700,600,500 -- torchrun train.py
      sudo -E diagnose power-sweep --caps 600,500 --gpus 0,1 \\
        --allow-set-power-limit -- torchrun train.py
    """
    import os

    from diagnose.cli._output import deliver, page_for
    from diagnose.cli._power_sweep import run_sweep
    from diagnose.cli._tables import chosen
    from diagnose.power_sweep.plan import chosen_gpus, parse_caps, parse_gpus, plan
    from diagnose.reporters._power_sweep import planned, write
    from diagnose.telemetry.limits import PowerLimits

    form = chosen(format, output)
    limits = PowerLimits()
    try:
        asked = None if gpus is None else parse_gpus(gpus)
        wanted = plan(limits, parse_caps(caps), chosen_gpus(limits, asked, os.environ))
        if not allow:
            deliver(planned(wanted, command, page_for(output)), output)
            return
        folder = recordings or Path(time.strftime("power-sweep-%Y%m%d-%H%M%S"))
        runs = run_sweep(wanted, limits, command, folder, steps, after_step)
    finally:
        limits.close()
    deliver(write(wanted, runs, form, page_for(output)), output)


COMMAND = power_sweep
