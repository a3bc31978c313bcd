"""A rank owns only a part of a GPU.

## Looks for
Signs that a process does not have a whole GPU to itself: a share of it set by MPS, a MIG instance,
fewer multiprocessors than the product has, or two ranks on one GPU.

## Why it costs time
It is no fault, but it changes what the figures mean. Ranks on one GPU share memory bandwidth, power
and copy engines, so slowdown by overlap, bandwidth of collectives and power do not carry over to
GPUs of their own; telemetry is that of the whole GPU.

## How it decides
Any of: `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` below 100, a UUID or a visible device that begins with
MIG, `NCCL_MULTI_RANK_GPU_ENABLE` set, fewer multiprocessors than the product is known to have, or
one UUID for the GPUs of two ranks. There is no threshold.

## Stays silent when
The whole GPU is visible, or the product is not known here and nothing else says that it is shared.

## What to do
Say so beside each figure taken from this recording, and do not generalise from it.

## Example
Two ranks on the two halves of one H200: each sees 66 of 132 multiprocessors, and both name the same
UUID.

## References
- NVIDIA Multi-Process Service, environment variables
- NVIDIA Multi-Instance GPU user guide
- NCCL user guide, NCCL_MULTI_RANK_GPU_ENABLE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from diagnose.rules import (
    Clean,
    Evidence,
    Facts,
    Fix,
    Outcome,
    Rule,
    Symptom,
    Where,
    who,
)

WHOLE: Mapping[str, int] = MappingProxyType(
    {
        "NVIDIA H200": 132,
        "NVIDIA H100 80GB HBM3": 132,
        "NVIDIA H100 PCIe": 114,
        "NVIDIA GH200 480GB": 132,
        "NVIDIA H800": 132,
        "NVIDIA H20": 78,
        "NVIDIA A100-SXM4-40GB": 108,
        "NVIDIA A100-SXM4-80GB": 108,
        "NVIDIA A100-PCIE-40GB": 108,
        "NVIDIA A100 80GB PCIe": 108,
        "NVIDIA B200": 148,
        "NVIDIA L40S": 142,
        "NVIDIA L4": 58,
        "NVIDIA A10": 72,
        "Tesla V100-SXM2-16GB": 80,
        "Tesla V100-SXM2-32GB": 80,
        "Tesla T4": 40,
    }
)
"""Multiprocessors of whole GPUs, from NVIDIA's data sheets, by the name that the driver gives."""


def check(facts: Facts, thresholds: object) -> Outcome:  # noqa: ARG001
    """One finding for all ranks that share."""
    shared = Counter(_card(facts, source) for source in {gpu.source for gpu in facts.gpus})
    signs = {}
    for gpu in facts.gpus:
        seen = tuple(_signs(facts, gpu.source))
        number = shared[_card(facts, gpu.source)]
        if number > 1 and _card(facts, gpu.source) is not None:
            seen += (f"{number} ranks on one GPU",)
        if seen:
            signs[gpu] = seen
    if not signs:
        return Clean("nothing says that a GPU is shared")
    gpus = tuple(signs)
    most = max(signs.values(), key=len)
    whose = who(facts.trace, gpus)
    verb = "owns" if len(gpus) == 1 else "own"
    evidence = [Evidence("signs", "seen on the first such rank", "; ".join(most))]
    count = facts.sm_count(gpus[0].source)
    if count is not None:
        evidence.append(Evidence("num_multiprocessors", "multiprocessors visible", count))
    whole = WHOLE.get(facts.gpu_name(gpus[0].source) or "")
    if whole is not None:
        evidence.append(Evidence("num_whole", "multiprocessors of the product", whole))
    return (
        Symptom(
            sentence=(
                f"{whose[:1].upper()}{whose[1:]} {verb} only a part of a GPU "
                f"({'; '.join(most)}): slowdown, bandwidth and power do not carry over to whole "
                "GPUs."
            ),
            where=Where(gpus=gpus),
            evidence=tuple(evidence),
            advice=(
                Fix("Say so beside figures of this recording; do not generalise from them."),
                Fix("Telemetry is of the whole GPU: count its power once, not for each rank."),
            ),
            no_gain="it says what the figures mean, not what is wrong",
        ),
    )


def _card(facts: Facts, source: int) -> tuple[str | None, str] | None:
    """What tells physical GPUs apart: host and UUID."""
    known = facts.trace.sources[source]
    return None if known.gpu_uuid is None else (known.host, known.gpu_uuid)


def _signs(facts: Facts, source: int) -> Iterator[str]:
    share = facts.variables("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").get(source, "")
    if _below_100(share):
        yield f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share}"
    uuid = facts.trace.sources[source].gpu_uuid or ""
    visible = facts.variables("CUDA_VISIBLE_DEVICES").get(source, "")
    if uuid.startswith("MIG") or visible.startswith("MIG") or " MIG " in _name(facts, source):
        yield "a MIG instance"
    if facts.variables("NCCL_MULTI_RANK_GPU_ENABLE").get(source, "0").strip() not in ("", "0"):
        yield "NCCL_MULTI_RANK_GPU_ENABLE is set"
    count, whole = facts.sm_count(source), WHOLE.get(_name(facts, source))
    if count is not None and whole is not None and count < whole:
        yield f"{count} of {whole} multiprocessors"


def _name(facts: Facts, source: int) -> str:
    return facts.gpu_name(source) or ""


def _below_100(share: str) -> bool:
    try:
        return 0 < float(share) < 100
    except ValueError:
        return False


RULE = Rule(check=check, area="validity", confidence="high", at_most="info")
