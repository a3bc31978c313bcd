"""A GEMM needs a second wave because communication holds some SMs.

## Looks for
Matrix products that start one block for every multiprocessor (or a small multiple) and take about
twice as long beside collectives that hold only a few of the multiprocessors.

## Why it costs time
Such a kernel is laid out to fill the GPU exactly once. If a collective holds some of the
multiprocessors, the blocks that find no place wait until the others are done: a second wave, for a
few blocks, takes as long as the first.

## How it decides
Per GPU and kernel, by the analysis `contention_kernels`: a GEMM whose blocks are a whole multiple
of the multiprocessors, up to `max_num_blocks_each`, whose duration beside communication is
`min_duration_ratio` to `max_duration_ratio` times that alone with a 95 % interval above 1, from
`min_num_twins` occurrences or more of each kind. The collectives beside it have blocks for at most
`max_share_pct` of the multiprocessors. What it loses beyond the share of the multiprocessors that
is taken makes `min_cost_pct` of the step or more. A product with a dimension below `min_num_rows`,
where shapes were recorded, does not count: memory limits it.

## Stays silent when
The grid leaves multiprocessors free already, the kernel is no matrix product or limited by memory,
or collectives hold a large part of the GPU (nccl-cta-share).

## What to do
Tell the libraries to leave as many multiprocessors as the collectives take, let kernels that are
not persistent be chosen, or give the collectives fewer blocks.

## Example
A persistent GEMM of 132 blocks on 132 multiprocessors takes 1.0 ms alone and 1.95 ms beside an
all-gather of 16 blocks; on the other 116 it would take 1.14 ms.

## References
- pytorch/pytorch issue 143988: a tenth of an H100's multiprocessors doubles such a GEMM
- pytorch/pytorch pull request 147966, on the carveout
"""

from __future__ import annotations

import json
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
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._blocks import blocks_of
from diagnose.rules._contended import SlowedKernel, rows_of, slowed_on
from diagnose.trace import Gpu


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a second wave is what slows a GEMM."""

    max_num_blocks_each: int = limit(4, "blocks for each multiprocessor (judgement)")
    min_duration_ratio: float = limit(1.6, "two waves instead of one, less what hides (judgement)")
    max_duration_ratio: float = limit(2.2, "more is another cause (judgement)")
    min_num_twins: int = limit(5, "alone, and beside communication (judgement)")
    max_share_pct: float = limit(25.0, "of the multiprocessors, held by collectives (judgement)")
    min_cost_pct: float = limit(1.0, "share of the step; the smallest effect worth naming")
    min_num_rows: int = limit(128, "below, memory limits a product; multiples of tiles (judgement)")


class Waves(NamedTuple):
    """A GEMM of one GPU that needs a second wave."""

    kernel: SlowedKernel
    blocks: int
    multiprocessors: int
    held: int
    """Most blocks of a collective beside it."""
    lost_ns: float
    """Of all such GEMMs of the GPU, beyond what fewer multiprocessors explain; per step."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs: its costliest GEMM is named."""
    units = {gpu: facts.sm_count(gpu.source) for gpu in facts.gpus}
    if not any(units.values()):
        return NotJudged(
            "the number of multiprocessors is not known",
            "the trace says it (deviceProperties), or the environment file beside it",
        )
    found = {
        gpu: waves
        for gpu, number in units.items()
        if number and (waves := _waves_on(facts, limits, gpu, number)) is not None
    }
    hit = {
        gpu: waves
        for gpu, waves in found.items()
        if facts.share_pct(waves.lost_ns) >= limits.min_cost_pct
    }
    if not hit:
        return Clean("no GEMM that fills the GPU exactly doubles beside communication")
    return (_symptom(facts, tuple(hit), max(hit.values(), key=lambda waves: waves.lost_ns)),)


def _waves_on(facts: Facts, limits: Limits, gpu: Gpu, units: int) -> Waves | None:
    worst, total, most = None, 0.0, 0.0
    for kernel in slowed_on(facts, gpu):
        if (
            kernel.family != "gemm"
            or min(kernel.num_alone, kernel.num_paired) < limits.min_num_twins
        ):
            continue
        if not limits.min_duration_ratio <= kernel.duration_ratio <= limits.max_duration_ratio:
            continue
        blocks, held = _blocks_beside(facts, gpu, kernel)
        fills = blocks > 0 and blocks % units == 0
        if not fills or blocks > limits.max_num_blocks_each * units:
            continue
        if not 0 < 100 * held <= limits.max_share_pct * units:
            continue
        if _least_dimension(kernel.shapes) < limits.min_num_rows:
            continue
        # Without the wave it would still have fewer multiprocessors.
        fair = kernel.alone_ns * units / (units - held)
        lost = (kernel.beside_ns - fair) * kernel.paired_per_step
        total += max(lost, 0.0)
        if lost > most:
            worst, most = Waves(kernel, blocks, units, held, lost), lost
    return None if worst is None else worst._replace(lost_ns=total)


def _blocks_beside(facts: Facts, gpu: Gpu, kernel: SlowedKernel) -> tuple[int, int]:
    """Blocks of a kernel, and the most of a collective that ever ran beside it; 0: not known."""
    trace = facts.trace
    ops = trace.gpu_ops.take(trace.on(gpu))
    own = ops.take(rows_of(ops, kernel.name, kernel.launch_shape))
    beside = trace.gpu_ops.take(trace.collectives["gpu_op_row"])
    beside = beside.take(facts.on(beside, gpu))
    begun = np.searchsorted(np.sort(own["start_ns"]), beside["end_ns"], "left")
    over = np.searchsorted(np.sort(own["end_ns"]), beside["start_ns"], "right")
    blocks = blocks_of(own)
    held = blocks_of(beside)[begun > over]
    return int(blocks.max(initial=0)), int(held.max(initial=0))


def _least_dimension(shapes: str) -> float:
    """The least of rows, columns and inner length of a product; infinite where not known."""
    try:
        inputs = json.loads(shapes)
    except ValueError:
        return float("inf")
    sizes = [
        length
        for one in (inputs if isinstance(inputs, list) else [])
        if isinstance(one, list) and len(one) >= 2
        for length in one[-2:]
        if isinstance(length, int)
    ]
    return float(min(sizes, default=float("inf")))


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], waves: Waves) -> Symptom:
    kernel, held, units = waves.kernel, waves.held, waves.multiprocessors
    share = facts.share_pct(waves.lost_ns)
    return Symptom(
        sentence=(
            f"GEMMs on {who(facts.trace, gpus)} that fill all {units} multiprocessors take "
            f"{kernel.duration_ratio:.2f} times as long beside collectives of {held} blocks, as "
            f"in a second wave: {duration(waves.lost_ns)} {facts.a_step} ({percent(share)})."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("kernel", "kernel that lost most", kernel.name),
            Evidence("num_blocks", "its blocks", waves.blocks, "max_num_blocks_each"),
            Evidence("num_multiprocessors", "multiprocessors", units),
            Evidence("alone_ns", "alone, median", kernel.alone_ns),
            Evidence("beside_ns", "beside communication, median", kernel.beside_ns),
            Evidence(
                "duration_ratio", "beside / alone", kernel.duration_ratio, "min_duration_ratio"
            ),
            Evidence("num_alone", "measured alone", kernel.num_alone, "min_num_twins"),
            Evidence("num_beside", "measured beside", kernel.num_paired, "min_num_twins"),
            Evidence("num_held", "blocks of the collectives", held),
            Evidence("held_pct", "of the multiprocessors", 100 * held / units, "max_share_pct"),
            Evidence("lost_ns", f"lost to the second wave {facts.a_step}", waves.lost_ns),
            Evidence("lost_pct", "share of the step", share, "min_cost_pct"),
        ),
        cost=Cost(waves.lost_ns, "time of GEMMs beyond what fewer multiprocessors explain"),
        advice=(
            Fix(
                "Keep as many multiprocessors free of PyTorch's GEMMs (a private function).",
                f"torch._C._set_sm_carveout_experimental({held})",
            ),
            Fix("The same in Transformer Engine.", f"NVTE_EXT_MARGIN_SM={held}"),
            Fix("Let NCCL use fewer blocks.", f"NCCL_MAX_CTAS={max(held // 2, 1)}"),
        ),
        caveats=(
            "A margin costs every GEMM that runs alone its share of the multiprocessors.",
            "A kernel that memory limits gains nothing from it.",
        ),
    )


RULE = Rule(
    check=check,
    area="contention",
    confidence="high",
    needs=(Need.COMMUNICATION,),
    thresholds=Limits(),
)
