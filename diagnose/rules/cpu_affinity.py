"""A process may not run where its GPU is, or ranks share CPUs.

## Looks for
A rank whose launches take longer than those of the others, and whose CPUs are the wrong ones: not
on the GPU's NUMA node, shared with another rank, or too few for the threads of all of them.

## Why it costs time
Each launch crosses from one socket to the other, or waits until another process leaves the CPU.
Where the host is what the GPU waits for, every launch adds to the step, and the other ranks wait.

## How it decides
A rank's median launch call, of `min_num_launches` or more, takes `min_launch_ratio` times the
median of the other ranks or more, and what they take longer adds up to `min_lost_pct` of the step
or more in which the GPU was idle for a busy host. And the environment record says one of these:
CPUs that the process may run on lie outside of the GPU's NUMA node; the rank and another one of its
host were given CPUs that overlap without being the same; or PyTorch's threads times the ranks on
those CPUs are more than the CPUs.

## Stays silent when
Launches are as fast as elsewhere, whatever the CPUs are; the GPU does not wait for them (a full
queue also makes launches slow); or the CPUs are right. Where a rank launches slowly and its place
was not noted, it is listed as not checked.

## What to do
Bind each rank to the NUMA node of its GPU, and give PyTorch no more threads than there are CPUs.

## Example
Rank 5 may run on all 128 CPUs of two sockets. Its launches take 9 us, those of the others 5 us, and
the GPU idles 2 ms of a step of 40 ms for it.

## References
- PyTorch, torchrun --numa-binding
- NCCL user guide, environment variables: NCCL_IGNORE_CPU_AFFINITY
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.analyzers._idle_causes.causes import Cause
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
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._placement import cpus_of, faults_of, near_cpus, placement_of
from diagnose.schema import Call
from diagnose.trace import Gpu

_BY_HOST = (Cause.HOST_OP, Cause.PYTHON, Cause.LAUNCH_LATENCY)
_FOLDS_PCT = 3.0
"""Of the step, from which the launches may be why the rank is late (findings: a warning)."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When slow launches are put down to the CPUs."""

    min_launch_ratio: float = limit(1.5, "median launch over that of the other ranks (judgement)")
    min_lost_pct: float = limit(1.0, "of the step; the smallest effect worth naming (judgement)")
    min_num_launches: int = limit(30, "so that a median means something (judgement)")


class Launches(NamedTuple):
    """The launch calls of one GPU's process."""

    number: float
    """Per step."""
    call_ns: float
    """Median."""
    idle_ns: float
    """GPU idle per step while the host was busy in operators, Python or a launch."""

    def lost_ns(self, usual_ns: float) -> float:
        """At most this is lost per step: a slow launch costs only where the GPU waits for it."""
        return min((self.call_ns - usual_ns) * self.number, self.idle_ns)


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each rank that launches slowly from the wrong CPUs."""
    launches = {gpu: one for gpu in facts.gpus if (one := _launches(facts, gpu, limits))}
    slow = {}
    for gpu, mine in launches.items():
        others = [one.call_ns for other, one in launches.items() if other.source != gpu.source]
        usual = float(np.median(others)) if others else 0.0
        enough = facts.share_pct(mine.lost_ns(usual)) >= limits.min_lost_pct
        if usual and mine.call_ns >= limits.min_launch_ratio * usual and enough:
            slow[gpu] = usual
    if not slow:
        return Clean("no GPU waits for launches that take longer than on the other ranks")
    reasons = {gpu: faults_of(facts, gpu.source) for gpu in slow}
    symptoms = tuple(
        _symptom(facts, gpu, launches[gpu], usual, reasons[gpu])
        for gpu, usual in slow.items()
        if reasons[gpu]
    )
    if symptoms:
        return symptoms
    unknown = [gpu for gpu in slow if not _is_known(facts, gpu)]
    if unknown:
        return NotJudged(
            f"{who(facts.trace, unknown)} launches slowly, and on which CPUs it may run or which "
            "are near its GPU was not noted",
            "record with `diagnose attach` or `diagnose run`, with a PyTorch that knows the GPU's "
            "PCI address (about 2.8 and later), and with /sys visible to the job",
        )
    return Clean("a rank launches slowly, but not for its CPUs")


def _launches(facts: Facts, gpu: Gpu, limits: Limits) -> Launches | None:
    """None where too few were recorded for a median."""
    ops, calls = facts.operations_per_step(gpu), facts.trace.launches
    rows = np.unique(ops["launch_row"][ops.known("launch_row")])
    rows = rows[calls["call"][rows] == Call.LAUNCH]
    if len(rows) < limits.min_num_launches:
        return None
    stalls = facts.table("stall_causes")
    idle = facts.per_step(stalls, "length_ns", gpu, np.isin(stalls["cause"], _BY_HOST))
    length = calls["end_ns"][rows] - calls["start_ns"][rows]
    return Launches(len(rows) / facts.steps[gpu].number, float(np.median(length)), idle)


def _is_known(facts: Facts, gpu: Gpu) -> bool:
    """Whether both its CPUs and those near its GPU were noted."""
    allowed = cpus_of(placement_of(facts, gpu.source).get("allowed_cpus"))
    return allowed is not None and near_cpus(facts, gpu.source) is not None


def _symptom(
    facts: Facts, gpu: Gpu, launches: Launches, usual: float, reasons: Mapping[str, str]
) -> Symptom:
    place = placement_of(facts, gpu.source)
    lost = launches.lost_ns(usual)
    share = facts.share_pct(lost)
    return Symptom(
        sentence=(
            f"Launches of {who(facts.trace, (gpu,))} take {duration(launches.call_ns)} each, "
            f"{launches.call_ns / usual:.1f} times as long as on the other ranks, and "
            f"{'; '.join(reasons.values())}: up to {duration(lost)} {facts.a_step} "
            f"({percent(share)})."
        ),
        where=Where(gpus=(gpu,)),
        evidence=(
            Evidence(
                "launch_ratio",
                "launch over that of the other ranks",
                launches.call_ns / usual,
                "min_launch_ratio",
            ),
            Evidence("lost_pct", "of the step, at most", share, "min_lost_pct"),
            Evidence("launch_ns", "launch call, median", launches.call_ns),
            Evidence("others_launch_ns", "of the other ranks", usual),
            Evidence("num_launches", f"launches {facts.a_step}", launches.number),
            Evidence("idle_ns", f"GPU idle for a busy host {facts.a_step}", launches.idle_ns),
            Evidence("allowed_cpus", "may run on", str(place.get("allowed_cpus"))),
            Evidence("gpu_cpus", "near its GPU", str(place.get("gpu_cpus") or "not known")),
            Evidence("reasons", "what is wrong", ", ".join(reasons)),
        ),
        cost=Cost(lost, "slower launches that the GPU waits for", is_upper_bound=True),
        advice=_advice(place, reasons),
        caveats=(
            "A cgroup or the batch system may fix the CPUs: then ask it for those near the GPU.",
            "A slow launch may have another reason: more work in Python, a full queue.",
        ),
        explains=("straggler-rank",) if share >= _FOLDS_PCT else (),
    )


def _advice(place: Mapping[str, object], reasons: Mapping[str, str]) -> tuple[Fix, ...]:
    node = place.get("gpu_numa_node")
    bind = f"numactl --cpunodebind={node} --preferred={node}" if isinstance(node, int) else ""
    fixes = [
        Fix("Bind each rank to the NUMA node of its GPU.", "torchrun --numa-binding=node"),
        Fix("Other launchers: bind the process when it is started.", bind or "numactl"),
        Fix(
            "Where NCCL's own threads keep to the wrong CPUs, let it ignore the binding.",
            "NCCL_IGNORE_CPU_AFFINITY=1",
        ),
    ]
    if "crowded" in reasons:
        fixes.insert(0, Fix("Give each rank its share of the CPUs' threads.", "OMP_NUM_THREADS"))
    return tuple(fixes)


RULE = Rule(
    check=check,
    area="host",
    confidence="medium",
    needs=(Need.SEVERAL_RANKS, Need.LAUNCHES),
    thresholds=Limits(),
)
