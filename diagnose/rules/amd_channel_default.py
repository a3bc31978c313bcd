"""RCCL's default number of channels on MI350X may not suit the job.

## Looks for
A job over several nodes with MI350X that leaves the number of channels to RCCL, where either the
bandwidth or the compute beside communication suffers.

## Why it costs time
A channel is a block of RCCL's kernel on a compute unit. 48 channels leave more units to compute, 64
reach more bandwidth. The default went from the one to the other, so what suits a job may have been
changed by an update of ROCm.

## How it decides
The GPU is an MI350X, the job has more ranks than its nodes hold, and neither channels nor CTAs are
set. With ROCm 7.14 up to 10.0 (48 channels) it fires where `min_exposed_pct` of the step or more is
exposed communication. From ROCm 10.0 on (64 channels) it fires where compute beside communication
takes `min_slowdown_ratio` times as long as alone or more, measured on `min_coverage_pct` of it or
more.

## Stays silent when
The job runs on one node, the number was chosen, ROCm is older than 7.14 or not known, or neither
suffers.

## What to do
Try the other number, measure, and keep what makes the step shorter.

## Example
16 MI350X in two nodes on ROCm 10.0: compute beside all-reduces takes 1.2 times as long.

## References
- ROCm, RCCL usage tips: number of channels on MI350X
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

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

_ROCM = re.compile(r"\+rocm(\d+)\.(\d+)")
_SINCE, _MORE_SINCE = (7, 14), (10, 0)
_FEW, _MANY = 48, 64
_CHOSEN = (
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CTA_POLICY"),
)


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When the other default is worth a try."""

    min_exposed_pct: float = limit(3.0, "exposed share of the step; worth a change of one line")
    min_slowdown_ratio: float = limit(1.10, "of compute beside communication (judgement)")
    min_coverage_pct: float = limit(30.0, "of that compute that was measured (judgement)")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each default that does not suit."""
    models = [gpu for gpu in facts.gpus if "MI350X" in (facts.gpu_name(gpu.source) or "")]
    if not models:
        return NotApplicable("no MI350X")
    across = {gpu: _is_across_nodes(facts, gpu.source) for gpu in models}
    if all(told is None for told in across.values()):
        return NotJudged(
            "how many ranks a node holds is not known",
            "start the job with torchrun, which sets LOCAL_WORLD_SIZE, or record with "
            "`diagnose attach`",
        )
    chosen = {source for name in _CHOSEN for source in facts.variables(name)}
    defaults = {
        gpu: _default(facts, gpu.source)
        for gpu in models
        if across[gpu] and gpu.source not in chosen
    }
    few = tuple(gpu for gpu, number in defaults.items() if number == _FEW)
    many = tuple(gpu for gpu, number in defaults.items() if number == _MANY)
    if not few and not many:
        return NotApplicable("one node, another ROCm, or the number of channels was chosen")
    found = (_exposed(facts, limits, few), _slowed(facts, limits, many))
    return tuple(one for one in found if one is not None) or Clean("the default does no harm")


def _is_across_nodes(facts: Facts, source: int) -> bool | None:
    told = facts.variables("LOCAL_WORLD_SIZE").get(source, "")
    held = int(told) if told.isdigit() else placement_of(facts, source).get("ranks_per_node")
    size = facts.trace.sources[source].world_size
    return size > held if isinstance(held, int) and size is not None else None


def _default(facts: Facts, source: int) -> int | None:
    version = _ROCM.search(str(facts.environment(source).get("torch") or ""))
    if version is None or (int(version[1]), int(version[2])) < _SINCE:
        return None
    return _MANY if (int(version[1]), int(version[2])) >= _MORE_SINCE else _FEW


def _exposed(facts: Facts, limits: Limits, gpus: tuple[Gpu, ...]) -> Symptom | None:
    """More bandwidth may help."""
    steps = facts.table("breakdown")
    exposed = {gpu: facts.per_step(steps, "exposed_communication_ns", gpu) for gpu in gpus}
    hit = tuple(g for g, t in exposed.items() if facts.share_pct(t) >= limits.min_exposed_pct)
    if not hit:
        return None
    longest = max(exposed[gpu] for gpu in hit)
    share = facts.share_pct(longest)
    return Symptom(
        sentence=(
            f"{who(facts.trace, hit).capitalize()} (MI350X, several nodes) leave RCCL its default "
            f"of {_FEW} channels, and expose {duration(longest)} of communication {facts.a_step} "
            f"({percent(share)})."
        ),
        where=Where(gpus=hit),
        evidence=(
            Evidence("num_channels", "default of this ROCm", _FEW),
            Evidence("exposed_ns", f"exposed communication {facts.a_step}", longest),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
        ),
        cost=Cost(longest, "exposed communication, waiting for late ranks included"),
        advice=(Fix("Try more channels, and measure.", f"NCCL_MIN_NCHANNELS={_MANY}"),),
        caveats=("More channels take compute units from the kernels beside them.",),
        no_gain="no replayed change models more channels",
        subject="more",
    )


def _slowed(facts: Facts, limits: Limits, gpus: tuple[Gpu, ...]) -> Symptom | None:
    """Fewer compute units in RCCL's hands may help."""
    table = facts.find("contention", by="gpu") if gpus else None
    if table is None:
        return None
    mine = np.zeros(len(table), bool)
    for gpu in gpus:
        mine |= facts.on(table, gpu)
    mine &= (table["slowdown"] >= limits.min_slowdown_ratio) & (table["slowdown_low"] > 1)
    rows = np.flatnonzero(mine & (table["coverage_pct"] >= limits.min_coverage_pct))
    if not rows.size:
        return None
    worst = int(rows[table["slowdown"][rows].argmax()])
    slowdown = float(table["slowdown"][worst])
    places = set(zip(table["source"][rows].tolist(), table["device"][rows].tolist(), strict=True))
    hit = tuple(gpu for gpu in gpus if (gpu.source, gpu.device) in places)
    return Symptom(
        sentence=(
            f"{who(facts.trace, hit).capitalize()} (MI350X, several nodes) leave RCCL its default "
            f"of {_MANY} channels, and compute beside communication takes {slowdown:.2f} times "
            "as long."
        ),
        where=Where(gpus=hit),
        evidence=(
            Evidence("num_channels", "default of this ROCm", _MANY),
            Evidence("slowdown_ratio", "beside / alone", slowdown, "min_slowdown_ratio"),
            Evidence(
                "coverage_pct", "measured", float(table["coverage_pct"][worst]), "min_coverage_pct"
            ),
        ),
        advice=(Fix("Try fewer channels, and measure.", f"NCCL_MAX_NCHANNELS={_FEW}"),),
        caveats=("With fewer channels communication takes longer, and more of it may be exposed.",),
        no_gain="how much of the slowdown goes with the channels is not known until it is tried",
        subject="fewer",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
