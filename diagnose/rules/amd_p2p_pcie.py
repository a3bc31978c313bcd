"""AMD GPUs connected over PCIe do not reach each other directly.

## Looks for
A ROCm job on GPUs without xGMI links between them, whose communication takes time, and which does
not ask for direct access over PCIe.

## Why it costs time
Without direct access, what one GPU sends to another goes through the memory of the host: each byte
crosses PCIe twice and the memory of the host as well.

## How it decides
The driver's topology, as the environment record holds it, lists two AMD GPUs or more and no xGMI
link between any of them; `HSA_FORCE_FINE_GRAIN_PCIE` is not 1; and communication exposes
`min_exposed_pct` of the step or more. Not run on hardware: it is tested on topologies written by
hand.

## Stays silent when
GPUs are connected by xGMI, each host holds one rank, the variable is set, or communication is
hidden. A recording without the topology is listed as not checked.

## What to do
Allow fine-grained access over PCIe. The GPUs need a large BAR for it, and the kernel support for
peer to peer.

## Example
Four Radeon PRO W7900 in one host: all-reduces over host memory expose 30 % of the step.

## References
- ROCm, RCCL usage tips: enabling peer-to-peer transport
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    NotApplicable,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._placement import placement_of
from diagnose.trace import Gpu

_VARIABLE = "HSA_FORCE_FINE_GRAIN_PCIE"


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the path between GPUs matters."""

    min_exposed_pct: float = limit(3.0, "exposed share of the step; worth a change of one line")


class Links(NamedTuple):
    """Of the AMD GPUs of one host. Links between two GPUs, both directions counted."""

    gpus: int
    xgmi: int
    pcie: int


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs without a direct path."""
    links = {gpu: links_of(facts, gpu) for gpu in facts.gpus}
    known = {gpu: one for gpu, one in links.items() if one is not None}
    if not known:
        return NotJudged(
            "how the GPUs are connected was not noted",
            "record with `diagnose attach` or `diagnose run`, with /sys visible to the job",
        )
    over_pcie = {
        gpu: one
        for gpu, one in known.items()
        if one.gpus > 1 and not one.xgmi and not _is_alone(facts, gpu)
    }
    if not over_pcie:
        return NotApplicable("the GPUs are connected by xGMI, or one rank has its host for itself")
    asked = facts.variables(_VARIABLE)
    steps = facts.table("breakdown")
    hit = {}
    for gpu, one in over_pcie.items():
        exposed = facts.per_step(steps, "exposed_communication_ns", gpu)
        enough = facts.share_pct(exposed) >= limits.min_exposed_pct
        if enough and asked.get(gpu.source, "").strip() != "1":
            hit[gpu] = (exposed, one)
    return (_symptom(facts, hit),) if hit else Clean("direct access is asked for, or not needed")


def links_of(facts: Facts, gpu: Gpu) -> Links | None:
    """None where the driver's topology was not noted."""
    noted = placement_of(facts, gpu.source).get("amd_links")
    if not isinstance(noted, Mapping):
        return None
    numbers = [noted.get(name) for name in ("num_gpus", "num_xgmi", "num_pcie")]
    counts = [number for number in numbers if isinstance(number, int)]
    return Links(*counts) if len(counts) == len(numbers) else None


def _is_alone(facts: Facts, gpu: Gpu) -> bool:
    """Whether no other rank is on its host: then its GPU talks to no other one there."""
    return placement_of(facts, gpu.source).get("ranks_per_node") == 1


def _symptom(facts: Facts, hit: dict[Gpu, tuple[float, Links]]) -> Symptom:
    gpus = tuple(hit)
    exposed, links = max(hit.values(), key=lambda one: one[0])
    share = facts.share_pct(exposed)
    return Symptom(
        sentence=(
            f"{links.gpus} AMD GPUs in the host of {who(facts.trace, gpus)} have no xGMI link, "
            f"{_VARIABLE} is not set, and {duration(exposed)} of communication "
            f"{facts.a_step} ({percent(share)}) is exposed."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("num_gpus", "AMD GPUs of the host", links.gpus),
            Evidence("num_xgmi", "xGMI links between them", links.xgmi),
            Evidence("num_pcie", "direct PCIe links between them", links.pcie),
            Evidence("exposed_ns", f"exposed communication {facts.a_step}", exposed),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
        ),
        cost=Cost(exposed, "exposed communication, waiting for late ranks included"),
        advice=(
            Fix("Allow direct access over PCIe, and measure.", f"{_VARIABLE}=1"),
            Fix("See which transport RCCL chose.", "NCCL_DEBUG=INFO"),
        ),
        caveats=(
            "GPUs and firmware have to offer a large BAR, and the kernel peer to peer over PCIe.",
            "Communication between hosts does not get faster by it.",
        ),
        no_gain="no replayed change models another path between GPUs",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
