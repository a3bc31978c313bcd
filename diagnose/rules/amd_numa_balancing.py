"""The kernel moves memory between NUMA nodes while an AMD job runs.

## Looks for
Automatic NUMA balancing of the Linux kernel, switched on on a host with AMD GPUs and more than one
NUMA node.

## Why it costs time
The kernel takes pages away from processes for a moment to see who uses them, and moves them between
nodes. The GPU's driver has to follow each of these moves, and launches and copies meanwhile wait.

## How it decides
`/proc/sys/kernel/numa_balancing`, as the environment record holds it, has its lowest bit set. There
is no threshold: what it costs is not in a trace.

## Stays silent when
It is 0 or only sorts memory into tiers (2), or the host has one NUMA node. A recording without the
value is listed as not checked.

## What to do
Switch it off on the hosts of the job, and measure again.

## Example
A node with two sockets and eight MI300X, as its distribution configured it: 1.

## References
- ROCm, workload optimization and system settings: disable NUMA auto-balancing
- Linux kernel, Documentation/admin-guide/sysctl/kernel.rst: numa_balancing
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Need,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Where,
    who,
)
from diagnose.rules._placement import placement_of

_BALANCES = 1
"""The bit that means it; 2 is the tiering of memory."""


def check(facts: Facts, thresholds: object) -> Outcome:  # noqa: ARG001
    """One finding for all hosts that balance."""
    sources = sorted({gpu.source for gpu in facts.gpus})
    noted = {s: placement_of(facts, s).get("numa_balancing") for s in sources}
    known = {s: value for s, value in noted.items() if isinstance(value, int)}
    on = [s for s, value in known.items() if value & _BALANCES and not _has_one_node(facts, s)]
    if not on and len(known) < len(sources):
        return NotJudged(
            "whether the kernel balances memory between NUMA nodes was not noted",
            "record with `diagnose attach` or `diagnose run`, or read "
            "/proc/sys/kernel/numa_balancing on the hosts of the job",
        )
    return (_symptom(facts, on, known[on[0]]),) if on else Clean("memory is not balanced")


def _has_one_node(facts: Facts, source: int) -> bool:
    nodes = placement_of(facts, source).get("node_cpus")
    return isinstance(nodes, Mapping) and len(nodes) == 1


def _symptom(facts: Facts, sources: list[int], value: int) -> Symptom:
    gpus = facts.gpus_of(sources)
    return Symptom(
        sentence=(
            f"The host of {who(facts.trace, gpus)} balances memory between NUMA nodes "
            f"(kernel.numa_balancing = {value})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("variable", "setting", "kernel.numa_balancing"),
            Evidence("value", "value", value),
        ),
        advice=(
            Fix(
                "Switch it off on each host, and measure again (needs root).",
                "sysctl -w kernel.numa_balancing=0",
            ),
        ),
        caveats=("It holds for the whole host: other jobs on it may profit from balancing.",),
        no_gain="what the kernel's moves cost is not in the recording",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.ENVIRONMENT),
)
