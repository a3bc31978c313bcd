"""``diagnose run``: start a job with the agent in it, and record windows as it goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from diagnose.cli._options import CheckSync

Command = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND",
        help="The command that starts the job, after `--`.",
        show_default=False,
    ),
]
Every = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Record a window every N steps.", show_default=False),
]
AtStep = Annotated[
    list[int] | None,
    typer.Option(
        "--at-step",
        min=1,
        metavar="N",
        help="Record a window that begins at step N (may be repeated).",
        show_default=False,
    ),
]
OnSlow = Annotated[
    str | None,
    typer.Option(
        "--on-slow",
        metavar="PERCENT",
        help="Record a window when steps take so much longer than usual, as 20%.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Where windows, step times and telemetry go; new or empty.",
        show_default="diagnose-run-DATE-TIME, where there is something to record",
    ),
]
MaxDisk = Annotated[
    str | None,
    typer.Option(
        "--max-disk",
        metavar="SIZE",
        help="Remove the oldest windows when the folder exceeds this, as 2GB.",
        show_default=False,
    ),
]
Try = Annotated[
    str | None,
    typer.Option(
        "--try",
        metavar="NAME=A,B",
        help="Run the command once per value of a tunable variable, with one window each, "
        "end it after the window, and rank the values.",
        show_default=False,
    ),
]
AllHosts = Annotated[
    bool,
    typer.Option(
        "--all-hosts",
        help="Let `diagnose attach --store HOST:PORT` reach all ranks over the job's store.",
    ),
]
SharedFolder = Annotated[
    Path | None,
    typer.Option(
        "--shared-folder",
        metavar="DIR",
        help="With --all-hosts: where traces too large to send are left.",
        show_default=False,
    ),
]


def run(
    command: Command,
    every: Every = None,
    at_step: AtStep = None,
    on_slow: OnSlow = None,
    steps: Annotated[int, typer.Option(min=1, help="How many steps a window has.")] = 3,
    output: Folder = None,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="Keep the newest N windows.")] = 10,
    max_disk: MaxDisk = None,
    try_: Try = None,
    all_hosts: AllHosts = False,
    shared_folder: SharedFolder = None,
    telemetry: Annotated[
        bool, typer.Option("--telemetry/--no-telemetry", help="Read the GPUs' sensors.")
    ] = True,
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python stacks too.")] = False,
    check_sync: CheckSync = False,
) -> None:
    """Start a job with the agent in it, and record windows.

    `diagnose attach` then needs no further rights. The job runs as without it: same
    terminal, same signals, same exit status. Windows are recorded on a schedule by step
    number (so that hosts that start their part of a job with the same command record
    the same steps), or when steps become slow.

    \b
    Examples:
      diagnose run -- torchrun --nproc-per-node 8 train.py
      diagnose run --every 500 -o windows -- torchrun --nproc-per-node 8 train.py
      diagnose run --on-slow 20% --keep 5 --max-disk 2GB -- python train.py
      diagnose run --check-sync --at-step 100 -- torchrun --nproc-per-node 8 train.py
      diagnose run --try NCCL_ALGO=Ring,Tree -- torchrun --nproc-per-node 8 train.py
    """
    from diagnose.attach.launching.retention import Limits, parse_size
    from diagnose.attach.launching.triggers import OnSlow, Schedule, Trigger
    from diagnose.cli._watched_job import Wanted, make_folder, run_job, say
    from diagnose.collect import Options
    from diagnose.errors import UsageError

    triggers: list[Trigger] = []
    if every is not None or at_step:
        triggers.append(Schedule(every=every, at=at_step or ()))
    if on_slow is not None:
        triggers.append(OnSlow(_percent(on_slow)))
    if try_ is not None and triggers:
        raise UsageError(
            "--try takes a window of its own", hint="leave --every, --at-step and --on-slow out"
        )
    if check_sync and not triggers:
        raise UsageError(
            "--check-sync says what windows hold, and none is asked for",
            hint="give --at-step, --every or --on-slow, or use `diagnose attach --check-sync`",
        )
    if shared_folder is not None and not all_hosts:
        raise UsageError("--shared-folder serves --all-hosts", hint="give that too")
    limits = Limits(keep, None if max_disk is None else parse_size(max_disk))
    options = Options(stacks=stacks, telemetry=telemetry, check_sync=check_sync)
    variables = _variables(all_hosts, shared_folder)
    if try_ is not None:
        from diagnose.cli._trials import parse, run_trials

        name, values = parse(try_)
        folder = output or Path(f"diagnose-try-{time.strftime('%Y%m%d-%H%M%S')}")
        typer.echo(run_trials(command, variables, name, values, folder, steps, options), nl=False)
        return
    folder_wanted = output
    if output is None and triggers:
        folder_wanted = Path(f"diagnose-run-{time.strftime('%Y%m%d-%H%M%S')}")
    if folder_wanted is not None:
        make_folder(folder_wanted)
    wanted = Wanted(triggers, folder_wanted, steps, options, limits, telemetry)
    status, seen = run_job(command, variables, wanted)
    if folder_wanted is not None:
        kept = len(seen.windows) - seen.removed
        windows = "1 window is" if kept == 1 else f"{kept} windows are"
        say(f"{seen.steps} steps were seen; {windows} kept in {folder_wanted}")
    raise typer.Exit(status)


def _variables(all_hosts: bool, shared_folder: Path | None) -> dict[str, str]:
    variables = {"DIAGNOSE_STORE": "1"} if all_hosts else {}
    if shared_folder is not None:
        variables["DIAGNOSE_STORE_FOLDER"] = str(shared_folder.resolve())
    return variables


def _percent(text: str) -> float:
    from diagnose.errors import UsageError

    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 10_000:
        raise UsageError(f"--on-slow {text!r} is no percentage", hint="give it as 20%")
    return value


COMMAND = run
