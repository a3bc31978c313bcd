"""A process that takes part in training, with what tells its job from others."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from diagnose.attach.discovery._families import Families, is_launcher, script
from diagnose.attach.discovery._observations import Observation
from diagnose.attach.discovery.processes import Process
from diagnose.errors import AttachError


@dataclass(frozen=True)
class RankProcess:
    """A process that takes part in training. ``None``: its environment does not say."""

    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    job: str
    """Key of its job. Equal keys with equal ranks are still different jobs, see ``jobs``."""
    launcher: str
    """As ``torchrun``; ``spawned`` by a process without one; empty if nothing started it."""
    script: str
    uid: int
    host: str
    run: str = ""
    """What its launcher calls the run; empty if it has no name."""
    meeting_point: str = ""
    """MASTER_ADDR:MASTER_PORT."""
    started_ticks: int = 0
    """Clock ticks from boot to its start: a later process of the same id has another."""
    computes: bool | None = None
    """Whether a GPU or a process group was seen in it; None: not looked for."""
    command: tuple[str, ...] = field(default=(), repr=False)
    process: Process = field(default_factory=lambda: Process(0), repr=False, compare=False)


def rank_process(o: Observation, families: Families) -> RankProcess:
    """What was seen of a process, with its place among the others."""
    place = families.placements.get(o.pid)
    known = place or o.placement
    return RankProcess(
        pid=o.pid,
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        world_size=place.world_size if place else None,
        job="|".join(_key(o, families)),
        launcher=_launcher(o, families),
        script=_script(o, families),
        uid=o.uid,
        host=os.uname().nodename,
        run=known.run if known else "",
        meeting_point=known.meeting_point if known else "",
        started_ticks=o.started_ticks,
        computes=None if place else o.at_work,
        command=o.command,
        process=o.process,
    )


def _key(o: Observation, families: Families) -> tuple[str, ...]:
    place = families.placements.get(o.pid)
    known = place or o.placement
    if known is not None:
        # An address such as localhost is another one in every container.
        network = _network(o) if known.meets_locally else ""
        started = "" if place else "started by its ranks"
        return (*known.identity, str(o.uid), network, started)
    if _in_ray(o):
        return ("ray", str(o.ppid))
    above = families.above.get(o.pid)
    return ("process", str(above.pid if above is not None else o.pid))


def _network(o: Observation) -> str:
    try:
        return o.process.namespace("net")
    except AttachError:
        return ""


def _launcher(o: Observation, families: Families) -> str:
    place = families.placements.get(o.pid)
    if place is not None:
        return place.launcher
    if _in_ray(o):
        return "ray"
    above = families.above.get(o.pid)
    if above is None:
        return ""
    return script(above.command) if is_launcher(above) else "spawned"


def _in_ray(o: Observation) -> bool:
    return o.name.startswith("ray::")


def _script(o: Observation, families: Families) -> str:
    """The script, of the nearest process above if this one was started by multiprocessing."""
    seen: Observation | None = o
    while seen is not None and script(seen.command) == "-c":
        seen = families.above.get(seen.pid)
    return script((seen or o).command)
