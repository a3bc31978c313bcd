"""Which of the processes that hold PyTorch are ranks, and which only belong to one.

Data-loader and compile workers inherit a rank's environment; launchers load PyTorch as
well and may carry a rank of their own (one ``srun`` task or one pod a node). So a process
is judged together with the nearest process above it that holds PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from diagnose.attach.discovery._launchers import Placement
from diagnose.attach.discovery._observations import Observation, Scan

# Newer PyTorch names its data-loader workers and torchrun's agent so.
_DATA_WORKER, _ELASTIC_AGENT = "pt_data_worker", "pt_elastic"
_COMPILE_WORKER = re.compile(r"_inductor[/.]compile_worker")
_LAUNCHER = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|accelerate(?:\.commands\..*)?|torchx"
    r"|deepspeed(?:\.launcher\..*)?|horovodrun"
)
_LAUNCHER_PATH = re.compile(r"torch/distributed/(?:run|launch)\.py|deepspeed/launcher/\w+\.py")
_SPAWNED = re.compile(r"from multiprocessing\.(?:spawn|forkserver) import ")
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass
class Families:
    """The ranks, and of every other process what it is."""

    ranks: list[Observation] = field(default_factory=list)
    placements: dict[int, Placement | None] = field(default_factory=dict)
    """Of each rank; None where the environment tells nothing, or tells of its parent."""
    above: dict[int, Observation] = field(default_factory=dict)
    """The nearest process above a process that holds PyTorch."""
    workers: dict[int, int] = field(default_factory=dict)
    """Process id of each worker, and of the process whose worker it is."""
    launchers: set[int] = field(default_factory=set)


def judge(scan: Scan) -> Families:
    """Sort what was seen into ranks, workers and launchers."""
    families = Families()
    seen = {o.pid: o for o in scan.observations}
    depths = {pid: ancestors(pid, scan.parents) for pid in seen}
    # Parents first: what a worker starts belongs to the same rank.
    for pid in sorted(seen, key=lambda pid: (len(depths[pid]), pid)):
        nearest = next((seen[above] for above in depths[pid] if above in seen), None)
        if nearest is not None:
            families.above[pid] = nearest
        _judge(seen[pid], nearest, families)
    _set_launchers_apart(families)
    families.ranks.sort(key=lambda o: o.pid)
    return families


def ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    """The processes above one, nearest first."""
    found: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.append(pid)
    return found


def script(command: tuple[str, ...]) -> str:
    """What a Python command line runs: ``train.py``, ``package.module``, else its first word."""
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word in _OPTIONS_WITH_VALUE:
            words = words[1:]
        elif word == "--" or not word.startswith("-"):
            chosen = words[0] if word == "--" and words else word
            return PurePosixPath(chosen).name or chosen
        elif not word.startswith("--") and word.endswith("m") and words:
            return words[0]
        elif not word.startswith("--") and word.endswith("c"):
            return "-c"
    return PurePosixPath(command[0]).name if command else ""


def is_launcher(o: Observation) -> bool:
    """Whether name or command line say that it starts ranks and is none."""
    if o.name == _ELASTIC_AGENT or _LAUNCHER.fullmatch(script(o.command)):
        return True
    return any(map(_LAUNCHER_PATH.search, o.command[1:4]))


def _judge(o: Observation, above: Observation | None, families: Families) -> None:
    if above is not None and above.pid in families.workers:
        families.workers[o.pid] = families.workers[above.pid]
    elif o.name == _DATA_WORKER or any(map(_COMPILE_WORKER.search, o.command[:4])):
        families.workers[o.pid] = above.pid if above is not None else o.ppid
    elif above is None or _numbered_apart(o, above):
        families.ranks.append(o)
        families.placements[o.pid] = o.placement
    elif _is_rank_of_its_own(o, above):
        families.ranks.append(o)
        families.placements[o.pid] = None
    else:
        families.workers[o.pid] = above.pid


def _numbered_apart(o: Observation, above: Observation) -> bool:
    """Whether a launcher gave it another place than the process above."""
    return o.placement is not None and o.placement != above.placement


def _is_rank_of_its_own(o: Observation, above: Observation) -> bool:
    """Judge a process that has only what it inherited, by what it does."""
    if is_launcher(above):
        return True
    if above.placement is not None and above.placement.is_final:
        return False
    if _SPAWNED.match(_code(o.command)):  # torch.multiprocessing.spawn, or a spawned worker
        if o.communicates or (o.maps_gpu and not above.at_work):
            return True
        return o.has_meeting_point and not above.at_work
    if o.command == above.command:  # forked: threads are its own, mapped devices are not
        return o.communicates
    return o.at_work or not above.at_work


def _code(command: tuple[str, ...]) -> str:
    """What follows ``-c``."""
    return command[command.index("-c") + 1] if "-c" in command[:-1] else ""


def _set_launchers_apart(families: Families) -> None:
    children: dict[int, list[Observation]] = {}
    for o in families.ranks:
        if o.pid in families.above:
            children.setdefault(families.above[o.pid].pid, []).append(o)
    for o in families.ranks:
        below = [families.placements[child.pid] for child in children.get(o.pid, [])]
        if is_launcher(o):
            families.launchers.add(o.pid)
        elif not below or (o.placement is not None and o.placement.is_final):
            continue
        elif first := _lightning_parent(below):
            families.placements[o.pid] = first
        elif not o.at_work:
            families.launchers.add(o.pid)
    families.ranks = [o for o in families.ranks if o.pid not in families.launchers]


def _lightning_parent(below: list[Placement | None]) -> Placement | None:
    """Lightning starts local ranks 1, 2, ... from the process that is local rank 0 itself."""
    placed = [p for p in below if p is not None and p.launcher == "lightning"]
    if not placed or any(p.local_rank == 0 for p in placed):
        return None
    numbered = placed[0].rank is not None
    return replace(placed[0], rank=0 if numbered else None, local_rank=0)
