"""Small collectives on MI200 pay for scratch memory that is given back.

## Looks for
Collectives of small messages on the MI200 series, with a ROCm that gives scratch memory back after
each kernel, unless told not to.

## Why it costs time
RCCL's kernels need scratch memory. Where it is given back after each, it is allocated again for the
next: small collectives take several times as long.

## How it decides
The GPU is an MI210, MI250 or MI250X, PyTorch was built for ROCm 7.13 or newer,
`HSA_NO_SCRATCH_RECLAIM` is not 1, and collectives of less than `max_small_mib` take
`min_small_pct` of the step or more.

## Stays silent when
Small collectives take little time, the version is older or not known, or the variable is set.

## What to do
Keep the scratch memory.

## Example
Tensor parallelism on MI250X with all-reduces of 2 MiB that take 30 % of the step.

## References
- ROCm, RCCL usage tips: HSA_NO_SCRATCH_RECLAIM
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    NotApplicable,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    duration,
    limit,
    percent,
    size,
    who,
)
from diagnose.rules._steps import step_rows
from diagnose.trace import Gpu

_MODEL = re.compile(r"\bMI2[15]0X?\b")
_ROCM = re.compile(r"\+rocm(\d+)\.(\d+)")
_SINCE = (7, 13)


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When small collectives matter."""

    max_small_mib: float = limit(16.0, "messages below it are affected, as RCCL's tips say")
    min_small_pct: float = limit(5.0, "of the step in small collectives; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs with many small collectives."""
    able = [gpu for gpu in facts.gpus if _is_affected(facts, gpu.source)]
    if not able:
        return NotApplicable("no MI200 with such a ROCm, or the variable is set")
    small = {gpu: _small(facts, gpu, limits.max_small_mib * 2**20) for gpu in able}
    hit = {gpu: t for gpu, t in small.items() if facts.share_pct(t) >= limits.min_small_pct}
    return (_symptom(facts, hit, limits),) if hit else Clean("small collectives take little time")


def _is_affected(facts: Facts, source: int) -> bool:
    version = _ROCM.search(str(facts.environment(source).get("torch") or ""))
    kept = facts.variables("HSA_NO_SCRATCH_RECLAIM").get(source, "").strip() == "1"
    return (
        _MODEL.search(facts.gpu_name(source) or "") is not None
        and version is not None
        and (int(version[1]), int(version[2])) >= _SINCE
        and not kept
    )


def _small(facts: Facts, gpu: Gpu, limit_bytes: float) -> float:
    """Time in small collectives per step, in nanoseconds."""
    collectives = facts.trace.collectives
    ops = facts.trace.gpu_ops.take(collectives["gpu_op_row"])
    steps = facts.steps[gpu]
    chosen = facts.on(ops, gpu) & collectives.known("bytes") & (collectives["bytes"] < limit_bytes)
    if steps.timed:
        chosen &= step_rows(ops, steps)
    return float((ops["end_ns"] - ops["start_ns"])[chosen].sum()) / steps.number


def _symptom(facts: Facts, hit: dict[Gpu, float], limits: Limits) -> Symptom:
    gpus = tuple(hit)
    longest = max(hit.values())
    share = facts.share_pct(longest)
    return Symptom(
        sentence=(
            f"Collectives below {size(limits.max_small_mib * 2**20)} take {duration(longest)} "
            f"{facts.a_step} ({percent(share)}) on {who(facts.trace, gpus)}, and scratch memory is "
            "given back after each kernel."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("small_ns", f"small collectives {facts.a_step}", longest),
            Evidence("small_pct", "share of the step", share, "min_small_pct"),
        ),
        cost=Cost(longest, "time in small collectives, waiting for late ranks included"),
        advice=(Fix("Keep it, and measure.", "export HSA_NO_SCRATCH_RECLAIM=1"),),
        caveats=("The memory stays held: the job has less of it.",),
        no_gain="no replayed change models scratch memory",
    )


RULE = Rule(
    check=check,
    area="amd",
    confidence="medium",
    needs=(Need.AMD, Need.COMMUNICATION, Need.ENVIRONMENT),
    thresholds=Limits(),
)
