"""``diagnose attach``: record a window from a running job."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnose.cli._options import CheckSync
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.attach.discovery.discover import Job
    from diagnose.cli._recording import Narrator
    from diagnose.collect import Recorded

_ROUTES = "auto, cooperative, inject, remote-exec or kineto-daemon"
_ABOUT_STORE = (
    "Reach the ranks of all hosts over the job's store, MASTER_ADDR:MASTER_PORT; the job has to "
    "be started with `diagnose run --all-hosts`. With --hosts: where the hosts meet."
)


Pids = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="[PID]...",
        help="Ranks, or what started them (torchrun). Default: the job of this host.",
        show_default=False,
    ),
]
JobName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The job of this name.", show_default=False),
]
Seconds = Annotated[
    float | None,
    typer.Option(metavar="S", help="As many steps as take so long.", show_default=False),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Folder for the recording, new or empty (default: recording-TIME).",
        show_default=False,
    ),
]
ExecutionTrace = Annotated[
    bool,
    typer.Option(
        "--execution-trace", help="Also record one step's graph of ops on one rank (slow)."
    ),
]
Store = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help=_ABOUT_STORE, show_default=False)
]

_ABOUT_HOSTS = (
    "So many hosts run this command, each for its own ranks, and record the same steps: they "
    "meet at the job's --store. Join the folders with `diagnose merge`."
)


def attach(
    context: typer.Context,
    pids: Pids = None,
    job: JobName = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All jobs of this host, one after another.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to record.")] = 3,
    seconds: Seconds = None,
    output: Folder = None,
    shapes: Annotated[
        bool, typer.Option("--shapes/--no-shapes", help="Record the shapes of tensors.")
    ] = True,
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python stacks.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record allocations.")] = False,
    execution_trace: ExecutionTrace = False,
    check_sync: CheckSync = False,
    route: Annotated[
        str, typer.Option(metavar="ROUTE", help=f"How to get in: {_ROUTES}.")
    ] = "auto",
    store: Store = None,
    hosts: Annotated[int, typer.Option(min=1, metavar="N", help=_ABOUT_HOSTS)] = 1,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="How long to wait for a rank's step.")
    ] = 30.0,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Print the report afterwards.")
    ] = True,
) -> None:
    """Record some steps of a running job.

    All its ranks record the same steps; a report follows. The job needs no preparation
    where this user may trace it, and goes on as before afterwards. Ctrl-C ends the
    recording, not the job. On other processors than x86-64 start the job with
    `diagnose run`. Slurm, Kubernetes, Python 3.14 and aarch64: not run on hardware.

    \b
    Examples:
      diagnose attach
      diagnose attach --job train.py --steps 5 -o before
      diagnose attach 4711 --seconds 5 --stacks
      diagnose attach --check-sync --steps 2
    """
    from diagnose import collect
    from diagnose.cli._recording import Narrator, default_folder, print_report, stoppable

    _check_store(store, hosts, chosen=bool(pids or job), everything=everything)
    by_route = collect.route_named(route)
    options = collect.Options(shapes, stacks, memory, execution_trace, check_sync=check_sync)
    folder = output or default_folder()
    recorded: list[Recorded] = []
    with Narrator() as say, stoppable(say.keep):
        if store is not None and hosts == 1:
            targets: list[tuple[Any, Path]] = [(store, folder)]
        else:
            jobs = _chosen(pids or [], job, everything, say)
            targets = list(zip([list(j.ranks) for j in jobs], _folders(folder, jobs), strict=True))
        for target, place in targets:
            recorded.append(
                collect.attach(
                    target,
                    place,
                    steps=steps,
                    seconds=seconds,
                    options=options,
                    route=by_route,
                    timeout_s=timeout,
                    hosts=hosts,
                    store=store if hosts > 1 else None,
                    progress=say,
                )
            )
            say.keep(_done(recorded[-1]))
        say.pause()
        for one in recorded if report else ():
            print_report(one.folder, say, debug=bool(context.obj))


def _check_store(store: str | None, hosts: int, *, chosen: bool, everything: bool) -> None:
    if hosts > 1 and (store is None or everything):
        raise UsageError(
            "several hosts record one job, and meet at its store",
            hint="give --store MASTER_ADDR:MASTER_PORT of the job, and no --all",
        )
    if hosts == 1 and store is not None and (chosen or everything):
        raise UsageError(
            "--store reaches a whole job", hint="leave process ids, --job and --all out"
        )


def _chosen(pids: Sequence[int], name: str | None, everything: bool, say: Narrator) -> list[Job]:
    """The jobs meant; on a terminal a person is asked where that is not clear."""
    from diagnose.attach.discovery import discover

    say("looking for training processes")
    seen = discover.survey()
    unclear = not pids and name is None and not everything and len(seen.jobs) > 1
    if unclear and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return [_asked(seen.jobs, say)]
    jobs = discover.pick(seen, pids=pids, name=name, everything=everything)
    if len(jobs) > 1 and not everything:
        raise UsageError(
            "these processes belong to different jobs: " + "; ".join(j.summary for j in jobs),
            hint="give processes of one job, or --all",
        )
    for job in jobs:
        say.keep(job.summary)
    return jobs


def _asked(jobs: Sequence[Job], say: Narrator) -> Job:
    for number, job in enumerate(jobs, 1):
        say.keep(f"{number}  {job.summary}")
    while True:
        answer: int = typer.prompt("Which job", type=int, default=1, err=True)
        if 1 <= answer <= len(jobs):
            return jobs[answer - 1]


def _folders(folder: Path, jobs: Sequence[Job]) -> list[Path]:
    """The folder itself for one job, a subfolder each for several."""
    if len(jobs) == 1:
        return [folder]
    names = [re.sub(r"[^\w.-]+", "-", job.name).strip(".-") or "job" for job in jobs]
    return [
        folder / (name if names.count(name) == 1 else f"{name}-{number}")
        for number, name in enumerate(names)
    ]


def _done(recorded: Recorded) -> str:
    from diagnose.attach.discovery.discover import in_ranges

    content = recorded.manifest
    ranks = in_ranges(rank.rank for rank in content.ranks)
    what = "rank" if len(content.ranks) == 1 else "ranks"
    of = f" of {content.world_size}" if content.world_size else ""
    number = content.num_steps
    steps = f"{number} step{'s' * (number != 1)}" if number else "a window"
    return f"recorded {steps} of {what} {ranks}{of} into {recorded.folder}"


COMMAND = attach
