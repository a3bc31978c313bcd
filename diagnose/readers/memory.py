"""How much memory there is to use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

SHARE = 0.8

_CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def default_limit_bytes(root: str = "/") -> int | None:
    """80 % of what is free on the machine and in the container; None if that is unknown."""
    free = [value for value in (_machine(root), *_containers(root)) if value is not None]
    return int(min(free) * SHARE) if free else None


def _machine(root: str) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (Path(root) / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _containers(root: str) -> list[int]:
    """What each version of control groups leaves; cached files count as free."""
    free = []
    group = Path(root) / "sys/fs/cgroup"
    for limit, usage, cached in _CGROUPS:
        with suppress(OSError, ValueError):
            allowed = int((group / limit).read_text())
            used = int((group / usage).read_text())
            used -= _statistic((group / usage).parent / "memory.stat", cached)
            free.append(max(0, allowed - used))
    return free


def _statistic(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
