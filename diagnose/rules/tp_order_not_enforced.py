"""A GEMM overtakes the tensor-parallel collective launched before it.

## Looks for
Collectives of a tensor-parallel group that the host launched before a GEMM of another stream, that
were ready when the GEMM began, and that began after it all the same.

## Why it costs time
The GEMM takes the multiprocessors and the collective, meant to run beside it, waits for room. Its
result is needed next: what should have been hidden is exposed.

## How it decides
A pair is such a collective and the next GEMM launched after it, on another stream and not held by
the collective itself. In `min_overtaken_pct` of `min_num_pairs` pairs or more the GEMM began first
and the collective `min_delay_pct` of the GEMM's time or more after it; over a step these delays
are `min_step_pct` of it or more. Which groups are tensor-parallel their descriptions say. Where the
environment is not known, the same is a hint.

## Stays silent when
CUDA_DEVICE_MAX_CONNECTIONS is 1, the GPU is Blackwell or newer, the job also uses FSDP or expert
parallelism (whose overlap one queue would break), recorded waits held the collective, or no wait
of any stream was recorded.

## What to do
Set CUDA_DEVICE_MAX_CONNECTIONS to 1, or give the group a high-priority stream.

## Example
Megatron with tensor parallelism of 8 on H100: the all-reduce of an input's gradient begins 180 us
after the weight's GEMM of 200 us, instead of before it.

## References
- NVIDIA/Megatron-LM, arguments.py and tensor_parallel/layers.py: asks for 1 below Blackwell
- NVIDIA/Megatron-LM issue 533
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.names import Classifier
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
from diagnose.rules._queues import Array, Queued, queued_on
from diagnose.rules._spans import spans_where
from diagnose.trace import Gpu

_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_TENSOR = re.compile(r"tensor_model_parallel|(?:^|[^a-z])tp(?:$|[^a-z])", re.IGNORECASE)
_OTHER = re.compile(r"expert|fsdp|dp_shard|(?:^|[^a-z])ep(?:$|[^a-z])", re.IGNORECASE)
_FSDP = re.compile(r"FSDP::|FullyShardedDataParallel")
_BLACKWELL = 10


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a broken order is worth naming."""

    min_num_pairs: int = limit(5, "in the recording, so that a share means something (judgement)")
    min_overtaken_pct: float = limit(30.0, "of the pairs, overtaken (judgement)")
    min_delay_pct: float = limit(50.0, "of the GEMM's time; more than its launch (judgement)")
    min_step_pct: float = limit(1.0, "of the step; smallest effect worth naming")


class Overtaken(NamedTuple):
    """Tensor-parallel collectives of one GPU and the GEMMs launched after them."""

    num_pairs: int
    number: int
    delay_ns: float
    """Per step."""
    groups: tuple[str, ...]
    streams: tuple[int, ...]


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for the GPUs whose variable is known not to be 1, one for the others."""
    described = {gpu: _described(facts, gpu) for gpu in facts.gpus}
    if not any(described.values()):
        return NotJudged(
            "which groups are tensor-parallel is not known",
            "record with a PyTorch that writes pg_config (process groups) into the trace",
        )
    tensor = {gpu: _groups(named, _TENSOR) for gpu, named in described.items()}
    if not any(tensor.values()):
        return NotApplicable("no tensor-parallel group")
    if any(_groups(named, _OTHER) for named in described.values()) or len(
        spans_where(facts, lambda text: _FSDP.search(text) is not None)
    ):
        return Clean("FSDP or expert parallelism beside it: one queue would break their overlap")
    found = []
    for known in (True, False):
        hit: dict[Gpu, Overtaken] = {}
        for gpu in facts.gpus:
            if bool(facts.environment(gpu.source)) != known or not _applies(facts, gpu):
                continue
            one = _overtaken(facts, limits, gpu, tensor[gpu])
            if (
                one.num_pairs >= limits.min_num_pairs
                and 100 * one.number >= limits.min_overtaken_pct * one.num_pairs
                and facts.share_pct(one.delay_ns) >= limits.min_step_pct
            ):
                hit[gpu] = one
        if hit:
            found.append(_symptom(facts, hit, known=known))
    return found or Clean("collectives begin before the GEMMs launched after them")


def _described(facts: Facts, gpu: Gpu) -> dict[str, str]:
    """Name -> description of the process groups of a rank, of more than one rank each."""
    said = facts.trace.sources[gpu.source].metadata.get("distributedInfo")
    groups = said.get("pg_config") if isinstance(said, Mapping) else None
    found = {}
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping) and group.get("pg_size") != 1:
            found[str(group.get("pg_name"))] = str(group.get("pg_desc"))
    return found


def _groups(described: Mapping[str, str], pattern: re.Pattern[str]) -> frozenset[str]:
    return frozenset(name for name, text in described.items() if pattern.search(text))


def _applies(facts: Facts, gpu: Gpu) -> bool:
    """Whether one queue is not set and would help."""
    noted = facts.environment(gpu.source).get("gpu")
    major = str(noted.get("compute_capability", "")) if isinstance(noted, Mapping) else ""
    devices = facts.trace.sources[gpu.source].metadata.get("deviceProperties")
    if not major and isinstance(devices, list) and devices and isinstance(devices[0], Mapping):
        major = str(devices[0].get("computeMajor", ""))
    number = major.partition(".")[0]
    newer = number.isdecimal() and int(number) >= _BLACKWELL
    return not newer and facts.variables(_NAME).get(gpu.source, "").strip() != "1"


def _overtaken(facts: Facts, limits: Limits, gpu: Gpu, groups: frozenset[str]) -> Overtaken:
    queued = queued_on(facts, gpu)
    nothing = Overtaken(0, 0, 0.0, (), ())
    gemms = np.flatnonzero(queued.computes & _is_gemm(queued))
    mine = np.flatnonzero(queued.in_steps & _in_groups(facts, queued, groups))
    # Places are in order of launch: the next GEMM launched after each.
    place = np.searchsorted(gemms, mine)
    mine, place = mine[place < gemms.size], place[place < gemms.size]
    if not mine.size or not queued.waits_recorded:
        return nothing
    gemm = gemms[place]
    start, end, stream = (queued.ops[name] for name in ("start_ns", "end_ns", "stream"))
    pair = (stream[gemm] != stream[mine]) & (queued.ready_ns[gemm] < end[mine])
    pair &= queued.ready_ns[mine] <= start[gemm]
    delay = start[mine] - start[gemm]
    late = pair & (100 * delay >= limits.min_delay_pct * (end[gemm] - start[gemm])) & (delay > 0)
    return Overtaken(
        int(pair.sum()),
        int(late.sum()),
        float(delay[late].sum()) / facts.steps[gpu].number,
        tuple(sorted(groups)),
        tuple(np.unique(stream[mine[late]]).tolist()),
    )


def _is_gemm(queued: Queued) -> npt.NDArray[np.bool_]:
    classifier = Classifier.load()
    names, place = np.unique(queued.ops["name"], return_inverse=True)
    said = [classifier.family(queued.ops.strings[name]) == "gemm" for name in names.tolist()]
    return np.array(said, bool)[place.reshape(-1)]


def _in_groups(facts: Facts, queued: Queued, groups: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Which operations are collectives of some groups."""
    table = facts.trace.collectives
    wanted = np.append(table.strings.where(groups.__contains__), False)
    rows: Array = table["gpu_op_row"][wanted[table["group"]]]
    found: npt.NDArray[np.bool_] = np.isin(queued.rows, rows)
    return found


def _symptom(facts: Facts, hit: dict[Gpu, Overtaken], *, known: bool) -> Symptom:
    worst = max(hit.values(), key=lambda one: one.delay_ns)
    share = 100 * worst.number / worst.num_pairs
    step = facts.share_pct(worst.delay_ns)
    return Symptom(
        sentence=(
            f"A GEMM launched later began first in {percent(share)} of {worst.num_pairs} "
            f"tensor-parallel collectives on {who(facts.trace, hit)}: they were ready and began "
            f"{duration(worst.delay_ns)} {facts.a_step} ({percent(step)}) after it."
        ),
        where=Where(gpus=tuple(hit), streams=worst.streams),
        evidence=(
            Evidence("delay_ns", f"begun after the GEMM {facts.a_step}", worst.delay_ns),
            Evidence("step_pct", "share of the step", step, "min_step_pct"),
            Evidence("overtaken_pct", "of the pairs, overtaken", share, "min_overtaken_pct"),
            Evidence("num_pairs", "collectives with a GEMM", worst.num_pairs, "min_num_pairs"),
            Evidence("variable", _NAME, "not 1" if known else "not known"),
        ),
        cost=Cost(worst.delay_ns, "tensor-parallel collectives behind a GEMM", True),
        advice=(
            Fix("Hand work to the GPU in the order of launches.", f"{_NAME}=1"),
            Fix(
                "Or give the tensor-parallel group high priority.",
                "ProcessGroupNCCL.Options(is_high_priority_stream=True)",
            ),
        ),
        caveats=(
            "FSDP and the overlap of expert parallelism want more queues: do not set 1 with them.",
            "Blackwell and newer GPUs do not need it.",
        ),
        confidence="medium" if known else "low",
        subject=_NAME,
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.NVIDIA),
    thresholds=Limits(),
    explains=("comm-starved-by-compute", "exposed-communication"),
)
