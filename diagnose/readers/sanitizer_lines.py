"""What ``diagnose.agent.race_log`` writes: JSON lines, a file a process, whole or cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnose.readers.sanitizer import Frame, Race, Use

_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Watched:
    """A process of a job. ``launches``: operators that were checked; ``steps`` that ended."""

    pid: int
    rank: int | None = None
    steps: int = 0
    launches: int = 0
    failures: int = 0
    """Operators at which the sanitizer itself failed, of those that were launched."""
    races_left_out: int = 0
    gpu_available: bool | None = None
    ended: str = ""
    """``steps``: all were watched; ``seconds``: the time was over; ``exit``: the job ended before;
    ``missing``, ``unknown``: there is no sanitizer, or one that cannot be used; empty: killed."""
    torch: str = ""
    """The version of PyTorch; empty: not known."""


def read_folder(folder: Path) -> tuple[tuple[Watched, ...], tuple[Race, ...]]:
    """What the processes of a job wrote: each process, and its races. Damaged lines are skipped."""
    watched, races = [], []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            continue
        process, found = _process(data.decode("utf-8", "replace").splitlines())
        if process is not None:
            watched.append(process)
            races += [replace(race, pid=process.pid, rank=process.rank) for race in found]
    order = sorted(watched, key=lambda one: (one.rank is None, one.rank or 0, one.pid))
    return tuple(order), tuple(races)


def _process(lines: Sequence[str]) -> tuple[Watched | None, list[Race]]:
    process: Watched | None = None
    races: dict[int, Race] = {}
    for line in lines:
        try:
            said = json.loads(line)
            kind, pid = said["kind"], int(said["pid"])
            process = process or Watched(pid)
            if kind == "race":
                races[int(said["id"])] = _written_race(said)
            elif kind == "again":
                number = int(said["id"])
                steps = tuple(int(step) for step in said["steps"])
                races[number] = replace(races[number], count=int(said["count"]), steps=steps)
            elif kind in ("step", "end"):
                process = _written_process(said, pid)
            elif kind == "unusable":
                process = Watched(pid, ended=str(said["why"]), torch=str(said["torch"] or ""))
        except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return process, list(races.values())


def _written_process(said: dict[str, Any], pid: int) -> Watched:
    rank = said.get("rank")
    process = Watched(
        pid,
        rank if isinstance(rank, int) else None,
        launches=int(said["launches"]),
        failures=int(said["failures"]),
    )
    if said["kind"] == "step":
        return replace(process, steps=int(said["step"]))
    return replace(
        process,
        steps=int(said["steps"]),
        races_left_out=int(said["races_left_out"]),
        gpu_available=bool(said["gpu_available"]),
        ended=str(said["why"]),
        torch=str(said["torch"] or ""),
    )


def _written_race(said: dict[str, Any]) -> Race:
    device = said.get("device")
    return Race(
        int(said["data_ptr"]),
        _written_use(said["second"]),
        _written_use(said["first"]),
        _written_frames(said["allocated"]),
        device=device if isinstance(device, int) else None,
        steps=(int(said["step"]),),
    )


def _written_use(said: dict[str, Any]) -> Use:
    return Use(
        str(said["operator"]),
        int(said["stream"]),
        bool(said["writes"]),
        tuple(str(name) for name in said["arguments"]),
        bool(said["output"]),
        _written_frames(said["stack"]),
    )


def _written_frames(said: Any) -> tuple[Frame, ...]:
    return tuple(Frame(str(file), int(line), str(function)) for file, line, function in said)
