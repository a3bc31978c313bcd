"""The training processes on this host, as jobs, from ``/proc`` alone.

Nothing is stopped or entered. The environment is the one a process was started with,
so a rank that learnt its number later (``torch.multiprocessing.spawn``, Ray) is listed
without one until its agent tells it. Values of the environment are never shown, except
those that name the job. Slurm, MPI, Kubernetes and Ray: not run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from diagnose.attach.discovery import _families, _observations
from diagnose.attach.discovery._jobs import Job, in_ranges, jobs, missing_ranks
from diagnose.attach.discovery._observations import Unreadable
from diagnose.attach.discovery._rank_processes import RankProcess, rank_process
from diagnose.attach.discovery.processes import Process
from diagnose.errors import (
    AttachError,
    NoRanksError,
    OtherUserError,
    ProcessGoneError,
    TorchMissingError,
    UsageError,
)

__all__ = [
    "Job",
    "RankProcess",
    "Survey",
    "Unreadable",
    "in_ranges",
    "jobs",
    "missing_ranks",
    "pick",
    "ranks",
    "survey",
]

_MOST_LISTED = 6


@dataclass(frozen=True)
class Survey:
    """What a host runs."""

    jobs: tuple[Job, ...]
    unlikely: tuple[Job, ...] = ()
    """Python with PyTorch but no sign of training, a notebook say; can be picked by process.

    Where nothing else is there, these are ``jobs``.
    """
    unreadable: tuple[Unreadable, ...] = ()
    workers: dict[int, int] = field(default_factory=dict)
    """Data-loader and compile workers, each with the process that it works for."""
    parents: dict[int, int] = field(default_factory=dict)
    root: str = "/proc"

    @property
    def ranks(self) -> tuple[RankProcess, ...]:
        """All ranks of all jobs."""
        return tuple(rank for job in self.jobs for rank in job.ranks)


def survey(root: str | os.PathLike[str] = "/proc") -> Survey:
    """Look at all processes of this host, ourselves excepted. Raises nothing."""
    scan = _observations.scan(root)
    families = _families.judge(scan)
    found = [rank_process(o, families) for o in families.ranks]
    likely = [r for r in found if r.computes or r.launcher not in ("", "ray")]
    unlikely = [r for r in found if r not in likely] if likely else []
    return Survey(
        tuple(jobs(likely or found)),
        tuple(jobs(unlikely)),
        scan.unreadable,
        families.workers,
        scan.parents,
        os.fspath(root),
    )


def ranks(root: str | os.PathLike[str] = "/proc") -> list[RankProcess]:
    """The ranks on this host, by job and rank."""
    return list(survey(root).ranks)


def pick(
    seen: Survey,
    *,
    pids: Sequence[int] = (),
    name: str | None = None,
    everything: bool = False,
) -> list[Job]:
    """The jobs that were asked for; with process ids, only those ranks of them.

    A process id may be that of a rank or of whatever started ranks (``torchrun``,
    ``srun``, a shell). ``name`` is a job's name, its script or run, or a part of one
    that no other job has. With nothing given, the only job there is.

    Raises UsageError if it is not clear which job is meant (the hint lists them),
    NoRanksError if there is none, ProcessGoneError, OtherUserError and
    TorchMissingError for process ids.
    """
    if sum((bool(pids), name is not None, everything)) > 1:
        raise UsageError("process ids, --job and --all exclude each other", hint="give one of them")
    if pids:
        return _of_processes(seen, pids)
    if name is not None and (seen.jobs or seen.unlikely):
        return [_by_name((*seen.jobs, *seen.unlikely), name)]
    if not seen.jobs:
        raise no_ranks(seen)
    if len(seen.jobs) > 1 and not everything:
        raise UsageError(
            f"{len(seen.jobs)} jobs run on this host, and nothing says which is meant",
            hint=f"give --job NAME, process ids or --all: {_listed(seen.jobs)}",
        )
    return list(seen.jobs)


def no_ranks(seen: Survey) -> NoRanksError:
    """Why there is nothing to attach to, with the processes that could not be looked at."""
    message = "no training process was found on this host"
    if not seen.unreadable:
        return NoRanksError(
            message,
            hint="start the job first, or run this on the host and in the container where it runs",
        )
    shown = [
        f"{u.pid}" + (f" ({u.name}, user {u.uid})" if u.uid is not None else f" ({u.reason})")
        for u in seen.unreadable[:_MOST_LISTED]
    ]
    more = len(seen.unreadable) - len(shown)
    return NoRanksError(
        f"{message}; {len(seen.unreadable)} could not be looked at: {', '.join(shown)}"
        + (f" and {more} more" if more else ""),
        hint="run as the user of the job, or as root",
    )


def _by_name(among: Sequence[Job], name: str) -> Job:
    def names(job: Job) -> tuple[str, ...]:
        return job.name, job.ranks[0].run, job.ranks[0].script

    fits = (
        lambda job: job.name == name,
        lambda job: name in names(job),
        lambda job: name in job.names,
        lambda job: any(n.startswith(name) for n in names(job)),
        lambda job: any(name in n for n in names(job)),
    )
    for fit in fits:
        found = [job for job in among if name and fit(job)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"--job {name}: {len(found)} jobs are called so",
                hint=f"give the whole name of one: {_listed(found)}",
            )
    raise UsageError(
        f"--job {name}: no job of this name runs on this host", hint=f"there are: {_listed(among)}"
    )


def _listed(among: Iterable[Job]) -> str:
    lines = [job.summary for job in among]
    more = f"; and {len(lines) - _MOST_LISTED} more" if len(lines) > _MOST_LISTED else ""
    return "; ".join(lines[:_MOST_LISTED]) + more


def _of_processes(seen: Survey, pids: Sequence[int]) -> list[Job]:
    wanted = {rank.pid for pid in pids for rank in _of_process(seen, pid)}
    found = []
    for job in (*seen.jobs, *seen.unlikely):
        chosen = tuple(rank for rank in job.ranks if rank.pid in wanted)
        if chosen:
            found.append(replace(job, ranks=chosen))
    return found


def _of_process(seen: Survey, pid: int) -> list[RankProcess]:
    known = {rank.pid: rank for job in (*seen.jobs, *seen.unlikely) for rank in job.ranks}
    if pid in known:
        return [known[pid]]
    if pid in seen.workers:
        owner = known.get(seen.workers[pid])
        whose = f"rank {owner.rank}, " if owner is not None and owner.rank is not None else ""
        raise UsageError(
            f"process {pid} is a data-loader or compile worker of {whose}process "
            f"{seen.workers[pid]}, and trains nothing",
            hint=f"give {seen.workers[pid]}",
        )
    below = [r for r in known.values() if pid in _families.ancestors(r.pid, seen.parents)]
    return below or _why_not(seen, pid)


def _why_not(seen: Survey, pid: int) -> NoReturn:
    process = Process(pid, seen.root)
    if not process.exists:
        raise ProcessGoneError(
            f"process {pid}: there is no such process, or it ended meanwhile",
            hint="give the process id of a rank, as this host numbers processes",
        )
    stuck = next((u for u in seen.unreadable if u.pid == pid), None)
    if stuck is not None and stuck.uid is None:
        raise AttachError(
            f"process {pid}: {stuck.reason}",
            hint="look at /proc/PID/stack as root; a rank in this state answers nobody",
        )
    try:
        name = process.name
        loaded = _observations.has_torch(process)
    except OtherUserError:
        raise OtherUserError(
            f"process {pid} belongs to user {process.uid} and may not be looked at",
            hint="run as the user of the job, or as root",
        ) from None
    raise TorchMissingError(
        f"process {pid} ({name}): " + ("no Python" if loaded else "PyTorch is not loaded in it"),
        hint="give the process id of a rank, or of what started the ranks",
    )
