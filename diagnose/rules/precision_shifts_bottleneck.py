"""Matrix products run in FP32, without the tensor cores.

## Looks for
Matrix products in single precision on the ordinary multiprocessors (`sgemm`, `ffma` in the kernel's
name), on a GPU that has tensor cores for TF32 and BF16.

## Why it costs time
Tensor cores multiply many times faster. What is bound by arithmetic gets shorter, and then
something else is the bottleneck: communication that these kernels hid comes into the open.

## How it decides
Kernels so named take `min_compute_pct` of the compute kernels' time, on a GPU of compute capability
8.0 or more. The gain is replayed with these kernels `speedup_ratio` times as fast, which is less
than the tensor cores' peak gives (7 to 8 times for TF32).

## Stays silent when
The kernels' names say BF16, FP16 or TF32, or the GPU is older.

## What to do
Allow TF32, or use autocast to BF16; then look at exposed communication again.

## Example
A model in FP32: `simt_sgemm` and `ffma` kernels are 86 % of its compute time. In TF32 the step gets
71 % shorter.

## References
- PyTorch, torch.set_float32_matmul_precision
- PyTorch, torch.amp.autocast
- arXiv 2507.03114: precision moves the bottleneck
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
from diagnose.rules._sensors import busy_samples_of
from diagnose.schema import Activity
from diagnose.trace import Gpu, Strings

_PARTS = ("sgemm", "_ffma")
"""Of kernel names: cuBLAS and CUTLASS; no kernel has both."""
_TENSOR_CORES = 8.0
"""Compute capability from which tensor cores take FP32 numbers (as TF32) and BF16."""


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When FP32 is worth naming."""

    min_compute_pct: float = limit(10.0, "of compute time in FP32 matrix products; judgement")
    speedup_ratio: float = limit(2.0, "assumed in the replay; TF32's peak is 7 to 8 times FP32's")


class Products(NamedTuple):
    """FP32 matrix products of one GPU, per step."""

    time_ns: float
    compute_pct: float
    parts: frozenset[str]
    longest: str


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs that multiply in FP32."""
    seen = {gpu: _products(facts, gpu) for gpu in facts.gpus}
    able = {gpu: _capability(facts, gpu.source) for gpu in facts.gpus}
    hit = {
        gpu: one for gpu, one in seen.items() if one and one.compute_pct >= limits.min_compute_pct
    }
    if not hit:
        return Clean("few matrix products run in FP32")
    if all(able[gpu] is None for gpu in hit):
        return NotJudged(
            "the GPU's compute capability is not known", "record with `diagnose run` or `attach`"
        )
    hit = {gpu: one for gpu, one in hit.items() if (able[gpu] or 0.0) >= _TENSOR_CORES}
    if not hit:
        return NotApplicable("the GPU has no tensor cores for TF32 or BF16")
    return (_symptom(facts, hit, limits),)


def _products(facts: Facts, gpu: Gpu) -> Products | None:
    """None where no such kernel runs."""
    ops = facts.operations_per_step(gpu)
    ops = ops.take(ops["activity"] == Activity.COMPUTE)
    if not len(ops):
        return None
    length = (ops["end_ns"] - ops["start_ns"]).astype(np.float64)
    slow = np.zeros(len(ops), bool)
    parts = set()
    for part in _PARTS:
        named = _has(ops.strings, part)[ops["name"]]
        if named.any():
            parts.add(part)
            slow |= named
    if not slow.any():
        return None
    codes, at = np.unique(ops["name"][slow], return_inverse=True)
    longest = codes[int(np.argmax(np.bincount(at, length[slow])))]
    return Products(
        float(length[slow].sum()) / facts.steps[gpu].number,
        100 * float(length[slow].sum() / length.sum()),
        frozenset(parts),
        ops.strings[int(longest)],
    )


def _has(strings: Strings, part: str) -> npt.NDArray[np.bool_]:
    return strings.where(lambda text: part in text.lower())


def _capability(facts: Facts, source: int) -> float | None:
    """As 9.0; None: not known."""
    noted = facts.environment(source).get("gpu")
    text = noted.get("compute_capability") if isinstance(noted, dict) else None
    if text is None:
        devices = facts.trace.sources[source].metadata.get("deviceProperties")
        if isinstance(devices, list) and devices and isinstance(devices[0], dict):
            major, minor = (devices[0].get(name) for name in ("computeMajor", "computeMinor"))
            text = f"{major}.{minor}"
    try:
        return float(text) if text is not None else None
    except (TypeError, ValueError):
        return None


def _symptom(facts: Facts, hit: dict[Gpu, Products], limits: Limits) -> Symptom:
    gpus = tuple(hit)
    worst = max(gpus, key=lambda gpu: hit[gpu].time_ns)
    products = hit[worst]
    evidence = [
        Evidence("fp32_ns", f"FP32 matrix products {facts.a_step}", products.time_ns),
        Evidence("compute_pct", "of compute time", products.compute_pct, "min_compute_pct"),
        Evidence("kernel", "longest kernel", products.longest),
    ]
    tensor = busy_samples_of(facts, worst)["gpm_tensor_util_pct"]
    if (~np.isnan(tensor)).any():
        evidence.append(Evidence("tensor_pct", "tensor cores in use", float(np.nanmean(tensor))))
    return Symptom(
        sentence=(
            f"{percent(products.compute_pct)} of the compute time of {who(facts.trace, gpus)} "
            f"({duration(products.time_ns)} {facts.a_step}) are matrix products in FP32 that do "
            "not use the tensor cores."
        ),
        where=Where(gpus=gpus),
        evidence=tuple(evidence),
        cost=Cost(products.time_ns, "FP32 matrix products"),
        changes=_changes(hit, limits),
        advice=(
            Fix(
                "Allow TF32: FP32 numbers, multiplied with 10 bits of mantissa.",
                'torch.set_float32_matmul_precision("high")',
            ),
            Fix(
                "Or run forward and loss in BF16.",
                "with torch.autocast('cuda', dtype=torch.bfloat16): ...",
            ),
            Fix(
                "Then diagnose again: shorter compute hides less communication.",
                "diagnose compare BEFORE AFTER",
            ),
        ),
        caveats=(
            f"The gain assumes these kernels {limits.speedup_ratio:g} times as fast; small ones "
            "gain less, large ones more.",
            "Where the result needs FP32 (loss, some optimizers, physics), keep it.",
            "Large models in low precision draw more power and may run into the power limit.",
        ),
    )


def _changes(hit: dict[Gpu, Products], limits: Limits) -> tuple[str, ...]:
    parts = sorted(set().union(*(one.parts for one in hit.values())))
    return tuple(f"faster-kernels:name={part},factor={limits.speedup_ratio}" for part in parts)


RULE = Rule(
    check=check,
    area="precision",
    confidence="medium",
    needs=(Need.NVIDIA,),
    thresholds=Limits(),
)
