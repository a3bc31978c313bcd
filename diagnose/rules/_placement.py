"""Where processes may run: the key ``placement`` of their environment records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diagnose.rules._facts import Facts
from diagnose.rules._words import counted

_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_NO_PLACE: Mapping[str, Any] = {}


def placement_of(facts: Facts, source: int) -> Mapping[str, Any]:
    """What was noted of one process; empty for recordings that do not have it."""
    noted = facts.environment(source).get("placement")
    return noted if isinstance(noted, Mapping) else _NO_PLACE


def cpus_of(text: object) -> frozenset[int] | None:
    """The numbers of a list as the kernel writes it, ``0-3,8``; None for anything else."""
    if not isinstance(text, str):
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            return None
        low = int(match[1])
        found.update(range(low, int(match[2] or low) + 1))
    return frozenset(found)


def near_cpus(facts: Facts, source: int) -> frozenset[int] | None:
    """The CPUs of the GPU's NUMA node; by the node's number where the list itself is absent."""
    place = placement_of(facts, source)
    found = cpus_of(place.get("gpu_cpus"))
    gpu, nodes = facts.environment(source).get("gpu"), place.get("node_cpus")
    if found is None and isinstance(gpu, Mapping) and isinstance(nodes, Mapping):
        found = cpus_of(nodes.get(str(gpu.get("numa_node"))))
    return found


def faults_of(facts: Facts, source: int) -> Mapping[str, str]:
    """What is wrong with the CPUs of a process: ``far``, ``shared``, ``crowded`` -> in words."""
    place = placement_of(facts, source)
    allowed, near = cpus_of(place.get("allowed_cpus")), near_cpus(facts, source)
    if not allowed:
        return {}
    found = {}
    if near and not allowed <= near:
        beside = len(allowed - near)
        found["far"] = f"{beside:,} of its {counted(len(allowed), 'CPU')} are not at its GPU"
    with_it = _sharing(facts, source, allowed)
    if any(cpus != allowed for cpus in with_it):
        # The same CPUs for all of them bind nobody: a container has no others.
        found["shared"] = f"{len(with_it)} ranks of its host share some of their CPUs"
    threads, told = place.get("num_threads"), place.get("ranks_per_node")
    bound = allowed != cpus_of(place.get("online_cpus"))
    number = max(len(with_it), told if isinstance(told, int) and not bound else 1)
    if isinstance(threads, int) and threads * number > len(allowed):
        found["crowded"] = (
            f"{counted(number, 'rank')} of {counted(threads, 'thread')} each run on "
            f"{counted(len(allowed), 'CPU')}"
        )
    return found


def _sharing(facts: Facts, source: int, allowed: frozenset[int]) -> list[frozenset[int]]:
    """The CPUs of the recorded ranks of its host that may run on some of its own; itself first."""
    sources = facts.trace.sources
    found = [allowed]
    for other in sorted({gpu.source for gpu in facts.gpus} - {source}):
        same_host = sources[source].host is not None and sources[other].host == sources[source].host
        theirs = cpus_of(placement_of(facts, other).get("allowed_cpus"))
        if same_host and theirs is not None and theirs & allowed:
            found.append(theirs)
    return found
