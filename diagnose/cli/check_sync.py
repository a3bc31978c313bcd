"""``diagnose check-sync``: a few steps of a job under PyTorch's CUDA sanitizer."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from diagnose.cli._options import Output
from diagnose.cli._rules import FailOnOption


class Format(str, Enum):
    """How the findings are written."""

    text = "text"
    markdown = "markdown"
    json = "json"


def check_sync(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND",
            help="The command that starts the job, after `--`.",
            show_default=False,
        ),
    ],
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="End the job after so many optimizer steps.")
    ] = 3,
    seconds: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000,
            metavar="S",
            help="End it so many seconds after its first operator on a GPU, if it has not made "
            "the steps by then, or makes none.",
        ),
    ] = 600,
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="text, markdown or json (default: by the name of --output, else text).",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    fail_on: FailOnOption = None,
) -> None:
    """Run a few steps and report missing synchronisation.

    Starts the job under PyTorch's CUDA sanitizer, which is told to go on after a
    race, and ends it after some optimizer steps. Two operators that use one
    tensor on two streams without an order are a finding. The job is much slower
    than usual. Exit status: 0 done, 1 with findings as grave as --fail-on,
    2 where nothing could be checked or the job failed before its steps were done.

    \b
    Examples:
      diagnose check-sync -- python train.py
      diagnose check-sync --steps 5 -- torchrun --nproc-per-node 8 train.py
      diagnose check-sync --fail-on warning -o found.json -- python -m my.training
      diagnose check-sync --seconds 60 -- python infer.py
    """
    from diagnose.cli import _rules
    from diagnose.cli._formats import format_of
    from diagnose.cli._output import deliver, page_for
    from diagnose.cli._sanitized_job import refuse_unwritable, run_sanitized, verdict
    from diagnose.cli._watched_job import say
    from diagnose.errors import EXIT_FINDINGS
    from diagnose.reporters._check_sync import Check, write
    from diagnose.rules._sanitized import NOT_SEEN, findings

    suffixes = {"text": (".txt", ".log"), "markdown": (".md",), "json": (".json",)}
    form = format.value if format is not None else format_of(output, suffixes)
    refuse_unwritable(output)
    checked = run_sanitized(command, steps, seconds)
    problem = verdict(checked, steps)
    found = findings(checked.races, [one.pid for one in checked.watched])
    check = Check(found, checked.watched, NOT_SEEN, steps)
    if checked.status and problem is None:
        say(f"the job ended with status {checked.status}, its steps being done")
    if found or problem is None:
        deliver(write(check, form, page_for(output)), output)
    if checked.status == _INTERRUPTED:
        raise KeyboardInterrupt
    if _rules.fails(check.diagnosis, fail_on):
        raise typer.Exit(EXIT_FINDINGS)
    if problem is not None:
        raise problem


_INTERRUPTED = 130
COMMAND = check_sync
