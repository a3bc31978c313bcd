"""The jobs that ranks belong to, and what they are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from diagnose.attach.discovery._rank_processes import RankProcess
from diagnose.errors import AttachError

_PRINTABLE = re.compile(r"[^\w.+:@/-]+")


@dataclass(frozen=True)
class Job:
    """The ranks of one job that run on this host, by rank and process id."""

    key: str
    name: str
    """Unique on this host, printable; what ``--job`` takes."""
    ranks: tuple[RankProcess, ...]

    @property
    def names(self) -> frozenset[str]:
        """Everything that ``--job`` takes for it in full.

        Also the names that it has only beside another job of the same script: what was
        listed a moment ago still means it once that one has ended.
        """
        first = self.ranks[0]
        bare = [name for name in (first.run, first.script, _base_name(first)) if name]
        with_port = [name + _port(self) for name in bare]
        with_process = [name + _first_process(self) for name in with_port]
        return frozenset((self.name, *bare, *with_port, *with_process))

    @property
    def world_size(self) -> int | None:
        """As the launcher says; None if it does not."""
        return next((r.world_size for r in self.ranks if r.world_size is not None), None)

    @property
    def missing(self) -> tuple[int, ...] | None:
        """Ranks of the job that do not run on this host; None if that cannot be told."""
        return missing_ranks([r.rank for r in self.ranks], self.world_size)

    @property
    def summary(self) -> str:
        """One line: ``llama: train.py, torchrun, ranks 0-3 of 8, processes 101-104``."""
        first = self.ranks[0]
        numbers = [r.rank for r in self.ranks if r.rank is not None]
        unknown = len(self.ranks) - len(numbers)
        of = f" of {self.world_size}" if self.world_size is not None else ""
        parts = [
            "" if first.script == self.name else first.script,
            first.launcher,
            f"{_plural('rank', numbers)} {in_ranges(numbers)}{of}" if numbers else "",
            f"{_plural('rank', range(unknown))} not known yet"
            if unknown and len(self.ranks) > 1
            else "",
            f"{_plural('process', self.ranks)} {in_ranges(r.pid for r in self.ranks)}",
        ]
        return f"{self.name}: " + ", ".join(part for part in parts if part)


def missing_ranks(present: Iterable[int | None], world_size: int | None) -> tuple[int, ...] | None:
    """The ranks from 0 to ``world_size`` that are not present; None if one is unknown."""
    known = set(present)
    if world_size is None or None in known:
        return None
    return tuple(rank for rank in range(world_size) if rank not in known)


def in_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``0-3, 6``."""
    parts = []
    for _, group in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts += map(str, run)
    return ", ".join(parts)


def jobs(ranks: Iterable[RankProcess]) -> list[Job]:
    """Sort ranks into jobs, each with a name of its own, by name.

    Ranks with one key are one job unless a number occurs twice: two jobs may meet at
    the same address in two containers. They are then told apart by network namespace,
    control group, session and parent, as far as needed.
    """
    by_key: dict[str, list[RankProcess]] = {}
    for rank in ranks:
        by_key.setdefault(rank.job, []).append(rank)
    found = []
    for key, members in by_key.items():
        groups = _told_apart(members, _TELLING_APART)
        for index, group in enumerate(groups):
            ordered = sorted(group, key=lambda r: (r.rank is None, r.rank or 0, r.pid))
            own_key = key if len(groups) == 1 else f"{key}|{index}"
            found.append(Job(own_key, _base_name(ordered[0]), tuple(ordered)))
    return sorted(_named_apart(found), key=lambda job: job.name)


def _network(rank: RankProcess) -> str:
    return rank.process.namespace("net")


def _cgroup(rank: RankProcess) -> str:
    return rank.process.cgroup


def _session(rank: RankProcess) -> str:
    return str(rank.process.session)


def _parent(rank: RankProcess) -> str:
    return str(rank.process.ppid)


_Telling = Callable[[RankProcess], str]
_TELLING_APART: tuple[_Telling, ...] = (_network, _cgroup, _session, _parent)


def _told_apart(
    members: Sequence[RankProcess], by: Sequence[_Telling]
) -> list[Sequence[RankProcess]]:
    numbers = Counter(r.rank for r in members if r.rank is not None)
    if not by or all(count == 1 for count in numbers.values()):
        return [members]
    groups: dict[str, list[RankProcess]] = {}
    for rank in members:
        try:
            value = by[0](rank)
        except AttachError:
            value = ""
        groups.setdefault(value, []).append(rank)
    return [part for group in groups.values() for part in _told_apart(group, by[1:])]


def _base_name(rank: RankProcess) -> str:
    name = _PRINTABLE.sub("-", rank.run or rank.script).strip("-")[:60]
    return name or f"process-{rank.pid}"


def _named_apart(found: Sequence[Job]) -> list[Job]:
    """Names that occur twice get the port where the ranks meet, or the first process."""
    for suffix in (_port, _first_process):
        counts = Counter(job.name for job in found)
        found = [
            Job(job.key, job.name + suffix(job), job.ranks) if counts[job.name] > 1 else job
            for job in found
        ]
    return list(found)


def _port(job: Job) -> str:
    port = job.ranks[0].meeting_point.rpartition(":")[2]
    return f":{port}" if port.isdecimal() else ""


def _first_process(job: Job) -> str:
    return f"@{job.ranks[0].pid}"


def _plural(noun: str, items: Iterable[object]) -> str:
    many = len(list(items)) != 1
    return noun + ("es" if noun.endswith("s") else "s") * many
