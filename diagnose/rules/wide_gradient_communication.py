"""Gradients are reduced in 32 bits though the model computes in 16.

## Looks for
Reductions of a backward pass whose elements are 32 bit floats, beside matrix products in bfloat16,
float16 or narrower.

## Why it costs time
Twice the bytes take up to twice the transfer.

## How it decides
At least `min_narrow_gemm_pct` of the time in matrix products goes to kernels whose names say a type
of 16 bits or less, and 32 bit reductions of backward passes are exposed for `min_exposed_pct` of
the step or more.

## Stays silent when
Gradients are already narrow, the reductions are hidden, the model computes in 32 bits, or kernels'
names do not tell the type.

## What to do
Reduce in bfloat16, if the training tolerates it. This changes the numerics: decide it, do not let a
tool decide.

## Example
All-reduces of 500 MiB of float32 gradients, 6 ms of them exposed: in bfloat16 about 3 ms are left.

## References
- PyTorch, distributed communication hooks: bf16_compress_hook
- PyTorch, fully_shard, MixedPrecisionPolicy(reduce_dtype)
- Megatron-LM: --grad-reduce-in-bf16
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.names import Classifier
from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
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
from diagnose.rules._messages import REDUCTIONS, messages_on
from diagnose.schema import Activity
from diagnose.trace import Gpu

# cuBLAS writes the type of the operands as the first letter after nvjet_sm90_ (t: bfloat16,
# h: half, q and o: 8 bits), AMD's Tensile as the first of three before the tile.
_NARROW = re.compile(
    r"bf16|fp16|(?<![a-z0-9])f16|half|e4m3|e5m2|(?<![a-z])h\d{4,}gemm|nvjet_(sm\d+_)?[thqo]"
    r"|Cijk_\w*?_[BH][BHS][BHS]_",
)


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When wide gradients are worth naming."""

    min_exposed_pct: float = limit(3.0, "share of the step; worth a change of one line (judgement)")
    min_narrow_gemm_pct: float = limit(50.0, "of the time in matrix products; judgement")


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    found = {gpu: _wide_on(facts, gpu) for gpu in facts.gpus}
    hit = {
        gpu: wide
        for gpu, wide in found.items()
        if facts.share_pct(wide[0]) >= limits.min_exposed_pct
        and _narrow_gemm_pct(facts, gpu) >= limits.min_narrow_gemm_pct
    }
    if not hit:
        return Clean("no exposed 32 bit reduction beside narrower compute")
    worst = max(hit, key=lambda gpu: hit[gpu][0])
    return (_symptom(facts, tuple(hit), *hit[worst], _narrow_gemm_pct(facts, worst)),)


def _wide_on(facts: Facts, gpu: Gpu) -> tuple[float, float]:
    """Exposed transfer of a GPU's 32 bit gradient reductions, and their bytes, per step."""
    messages = messages_on(facts, gpu)
    wide = messages.is_kind(*REDUCTIONS) & messages.in_backward & (messages.bytes > 0)
    wide &= np.array([str(one).lower() in ("float", "float32") for one in messages.dtype], bool)
    return messages.per_step(messages.exposed_ns, wide), messages.per_step(messages.bytes, wide)


def _narrow_gemm_pct(facts: Facts, gpu: Gpu) -> float:
    ops = facts.operations_per_step(gpu)
    ops = ops.take(ops["activity"] == Activity.COMPUTE)
    length = np.bincount(ops["name"], ops["end_ns"] - ops["start_ns"])
    classifier, total, narrow = Classifier.load(), 0.0, 0.0
    for code in np.flatnonzero(length).tolist():
        name = ops.strings[code]
        if classifier.family(name) == "gemm":
            total += float(length[code])
            narrow += float(length[code]) * bool(_NARROW.search(name))
    return 100 * narrow / total if total else 0.0


def _symptom(
    facts: Facts, gpus: tuple[Gpu, ...], exposed: float, num_bytes: float, narrow_pct: float
) -> Symptom:
    share = facts.share_pct(exposed)
    return Symptom(
        sentence=(
            f"{who(facts.trace, gpus).capitalize()}: {size(num_bytes)} of gradients {facts.a_step} "
            f"are reduced as 32 bit floats though matrix products run in 16 bits or less; "
            f"{duration(exposed)} of it ({percent(share)}) is exposed."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("exposed_ns", f"exposed transfer {facts.a_step}", exposed),
            Evidence("exposed_pct", "share of the step", share, "min_exposed_pct"),
            Evidence("gradient_bytes", f"32 bit gradients {facts.a_step}", num_bytes),
            Evidence(
                "narrow_gemm_pct",
                "of matrix products, in 16 bits or less",
                narrow_pct,
                "min_narrow_gemm_pct",
            ),
        ),
        cost=Cost(exposed / 2, "half of the exposed transfer"),
        advice=(
            Fix(
                "DistributedDataParallel: compress to bfloat16 for the reduction.",
                "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
            ),
            Fix("FSDP2.", "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)"),
            Fix("Megatron-LM.", "--grad-reduce-in-bf16"),
        ),
        caveats=(
            "It changes the numerics: with many ranks, or accumulation over many micro-batches, "
            "32 bits may be there on purpose.",
        ),
    )


RULE = Rule(
    check=check,
    area="messages",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES, Need.STEPS),
    thresholds=Limits(),
    changes=("narrow-gradients",),
)
