"""Ranks differ in hardware, software or settings.

## Looks for
Differences between the environments that were noted for the processes: GPU and its power limit,
versions of driver, CUDA, PyTorch and NCCL, and variables that change how a job runs.

## Why it costs time
A job runs at the pace of its slowest rank. Different versions or variables may also make ranks
choose different algorithms, or hang.

## How it decides
Any difference in what was noted on both sides counts; what one process did not note does not. There
is no threshold. What a difference costs is for the findings about late ranks to say.

## Stays silent when
All ranks say the same. Hosts, ports, ranks, paths and device numbers differ by nature and are not
looked at.

## What to do
Align the odd ranks with the others, or take them out.

## Example
Seven ranks have a power limit of 700 W, one of 500 W.

## References
- Judgement: no source compares settings of ranks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from diagnose.rules import Evidence, Facts, Fix, Need, Rule, Symptom, Where, who
from diagnose.rules._known import variables

_NOTED: Mapping[str, tuple[str, ...]] = {
    "GPU": ("gpu", "name"),
    "multiprocessors": ("gpu", "sm_count"),
    "GPU memory (bytes)": ("gpu", "memory_bytes"),
    "compute capability": ("gpu", "compute_capability"),
    "enforced power limit (W)": ("gpu", "power_limit", "enforced_w"),
    "PCIe width": ("gpu", "pcie", "width"),
    "driver": ("gpu", "driver"),
    "CUDA": ("cuda",),
    "PyTorch": ("torch",),
    "Python": ("python",),
    "NCCL": ("nccl",),
    "loaded NCCL": ("nccl_loaded",),
}
_BY_NATURE = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG_FILE", "HSA_CU_MASK"})
"""Variables that differ with the place of a rank."""
_UNSET = "not set"


def check(facts: Facts, thresholds: object) -> Iterator[Symptom]:  # noqa: ARG001
    """One finding for each thing that differs."""
    sources = sorted({gpu.source for gpu in facts.gpus})
    for label, path in _NOTED.items():
        noted = {source: _at(facts.environment(source), path) for source in sources}
        said = {source: str(value) for source, value in noted.items() if value is not None}
        yield from _differing(facts, label, said)
    with_variables = [s for s in sources if isinstance(facts.environment(s).get("env"), Mapping)]
    for name in sorted(variables().keys() - _BY_NATURE):
        values = facts.variables(name)
        yield from _differing(facts, name, {s: values.get(s, _UNSET) for s in with_variables})


def _at(noted: object, path: tuple[str, ...]) -> object:
    for key in path:
        if not isinstance(noted, Mapping):
            return None
        noted = noted.get(key)
    return noted


def _differing(facts: Facts, label: str, said: Mapping[int, str]) -> Iterator[Symptom]:
    if len(set(said.values())) < 2:
        return
    # The most frequent value; of equally frequent ones that of the first process.
    usual = Counter(said.values()).most_common(1)[0][0]
    odd = [source for source, value in said.items() if value != usual]
    gpus = facts.gpus_of(odd)
    different = sorted({said[source] for source in odd})
    shown = ", ".join(different[:3]) + (" and others" if len(different) > 3 else "")
    yield Symptom(
        sentence=f"{label} differs: {shown} on {who(facts.trace, gpus)}, {usual} on the others.",
        where=Where(gpus=gpus),
        evidence=(
            Evidence("what", "differs", label),
            Evidence("usual", "on most ranks", usual),
            Evidence("odd", "on these", shown),
            Evidence("num_odd", "ranks that differ", len(odd)),
        ),
        advice=(Fix("Align them, or take the odd ones out of the job."),),
        caveats=("A job may be mixed on purpose.",),
        no_gain="what it costs is seen where ranks wait for a late one",
        subject=label,
    )


RULE = Rule(
    check=check,
    area="ranks",
    confidence="medium",
    needs=(Need.SEVERAL_RANKS, Need.ENVIRONMENT),
    at_most="info",
)
