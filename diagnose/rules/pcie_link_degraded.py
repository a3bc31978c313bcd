"""A GPU's PCIe link runs below its class.

## Looks for
A link with fewer lanes than GPU and slot could have, or copies far below what the link's
generation could move.

## Why it costs time
Copies from and to the host take as much longer, and so does traffic between GPUs or to the network
card that goes over PCIe.

## How it decides
The width noted at the recording is below the largest possible; or the generation is, and the
fastest copy of at least `min_copy_mib` between the GPU and pinned host memory reaches less than
`max_of_link_pct` of the largest generation at full width. A low generation alone is no finding:
idle links slow down on purpose.

## Stays silent when
The width is full, and copies are fast or too small to tell.

## What to do
Seat the card again, look at riser, slot and BIOS settings, and at the power state of the link.

## Example
A card for 16 lanes of generation 5 got 8: copies from pinned memory stop at 27 GB/s.

## References
- NVML reference: current and maximum PCIe link generation and width
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    NotJudged,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    limit,
    who,
)
from diagnose.trace import Gpu, Table

_GB_PER_S_A_LANE: Mapping[int, float] = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a slow link is worth naming."""

    max_of_link_pct: float = limit(50.0, "of the largest generation at full width; judgement")
    min_copy_mib: float = limit(16.0, "smaller copies do not reach the link's speed; judgement")


class Link(NamedTuple):
    """A link as noted; generation and width, now and at most."""

    generation: int
    width: int
    max_generation: int
    max_width: int


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each GPU."""
    links = {gpu: link for gpu in facts.gpus if (link := _link_of(facts, gpu)) is not None}
    if not links:
        return NotJudged(
            "the PCIe link of no GPU was noted",
            "record with `diagnose attach` or `diagnose run`, which note it",
        )
    found = [one for gpu, link in links.items() if (one := _judge(facts, limits, gpu, link))]
    return tuple(found) or Clean("links have their full width")


def _link_of(facts: Facts, gpu: Gpu) -> Link | None:
    noted = facts.environment(gpu.source).get("gpu")
    pcie = noted.get("pcie") if isinstance(noted, Mapping) else None
    said = [pcie.get(name) for name in Link._fields] if isinstance(pcie, Mapping) else []
    values = [one for one in said if isinstance(one, int) and one > 0]
    return Link(*values) if len(values) == len(Link._fields) else None


def _judge(facts: Facts, limits: Limits, gpu: Gpu, link: Link) -> Symptom | None:
    ops = _host_copies(facts.operations_per_step(gpu))
    length = ops["end_ns"] - ops["start_ns"]
    large = (ops["bytes"] >= limits.min_copy_mib * 2**20) & (length > 0)
    large &= np.append(ops.strings.where(lambda text: "Pinned" in text), False)[ops["name"]]
    fastest = float((ops["bytes"][large] / length[large]).max()) if large.any() else None
    possible = _GB_PER_S_A_LANE.get(link.max_generation, float("nan")) * link.max_width
    narrow = link.width < link.max_width
    reached_pct = 100 * fastest / possible if fastest is not None else float("nan")
    slow = link.generation < link.max_generation and reached_pct < limits.max_of_link_pct
    if not narrow and not slow:
        return None
    ratio = link.width / link.max_width if narrow else reached_pct / 100
    lost = float(length.sum()) / facts.steps[gpu].number * (1 - ratio)
    evidence = [
        Evidence("width", "lanes, of at most", f"{link.width} of {link.max_width}"),
        Evidence(
            "generation", "generation, of at most", f"{link.generation} of {link.max_generation}"
        ),
    ]
    if fastest is not None:
        evidence.append(Evidence("copy_gb_per_s", "fastest pinned copy", fastest, "min_copy_mib"))
        evidence.append(
            Evidence("of_link_pct", "of the link at its best", reached_pct, "max_of_link_pct")
        )
    what = f"{link.width} of {link.max_width} lanes"
    if not narrow:
        what = f"generation {link.generation} of {link.max_generation}"
    return Symptom(
        sentence=f"The PCIe link of {who(facts.trace, (gpu,))} runs with {what}.",
        where=Where(gpus=(gpu,)),
        evidence=tuple(evidence),
        cost=Cost(lost, "copies from and to the host beyond what a full link takes"),
        advice=(
            Fix("See the state of the link under load.", "nvidia-smi -q -d PCIE"),
            Fix("Seat the card again; look at riser, slot and BIOS settings."),
        ),
        caveats=("Idle links lower their generation by design: judge it while copies run.",),
    )


def _host_copies(ops: Table) -> Table:
    hit = ops.strings.where(lambda text: text.startswith(("Memcpy HtoD", "Memcpy DtoH")))
    return ops.take(np.append(hit, False)[ops["name"]] & ops.known("bytes"))


RULE = Rule(
    check=check,
    area="network",
    confidence="high",
    needs=(Need.ENVIRONMENT,),
    thresholds=Limits(),
)
