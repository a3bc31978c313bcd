"""The hardware could move data without the SMs.

## Looks for
Collectives within a machine whose kernels occupy many multiprocessors and slow the compute beside
them, where an NVLink switch and an NCCL are at hand that need few or none.

## Why it costs time
Copy engines move data and the switch adds it up while all multiprocessors compute. NCCL uses them
only for buffers that were registered with it; for others its kernels copy.

## How it decides
On a GPU, collectives whose blocks can be on more than `min_share_pct` of the multiprocessors, in
groups of one machine with a GPU for each rank, transfer for `min_communication_pct` of the step or
more, and contention costs `min_cost_pct` of the step or more (interval of the slowdown above 1).
Every rank of the group has a GPU of the Hopper generation or newer with links to a switch, and NCCL
2.28 or newer. What the switch and copy engines would reach is not known: this is a hint.

## Stays silent when
Nothing is slowed, a rank of the group has no switch or an older NCCL, or what NCCL's memory would
need is set against: buffers are registered already, or the allocator uses expandable segments.
Where a GPU's links were not noted, it is listed as not checked.

## What to do
Let the buffers of collectives come from NCCL's own allocator, registered on all ranks, and measure.

## Example
All-gathers of FSDP in 24 of 132 blocks, 20 % of the step, beside which compute takes 1.3 times as
long, on eight GPUs behind a switch.

## References
- NCCL user guide, user buffer registration; NCCL_CTA_POLICY
- PyTorch, FSDPModule.set_allocate_memory_from_process_group_for_comm
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
from diagnose.rules._contended import contended_on
from diagnose.rules._messages import messages_on
from diagnose.rules._nvlink_domain import (
    has_copy_engine_collectives,
    in_one_domain,
    is_switched,
    links_noted,
    members_of,
)
from diagnose.trace import Gpu

_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_REGISTERED = ("NVLS", "ncclSym")
"""In names of kernels that use the switch, or memory that all ranks registered."""
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When it is worth a try."""

    min_communication_pct: float = limit(5.0, "share of the step (judgement)")
    min_share_pct: float = limit(10.0, "of the multiprocessors (judgement)")
    min_cost_pct: float = limit(2.0, "share of the step, of contention (judgement)")


class Held(NamedTuple):
    """What collectives within the machine take of one GPU, per step."""

    transfer_ns: float
    blocks: int
    multiprocessors: int
    cost_ns: float
    """Of contention, of all collectives."""
    members: frozenset[int]
    """Sources of their groups."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for all GPUs."""
    found = {gpu: one for gpu in facts.gpus if (one := _held_on(facts, limits, gpu)) is not None}
    hit = {
        gpu: one
        for gpu, one in found.items()
        if facts.share_pct(one.transfer_ns) >= limits.min_communication_pct
        and facts.share_pct(one.cost_ns) >= limits.min_cost_pct
    }
    if not hit:
        return Clean("collectives within a machine take few multiprocessors, or slow nothing")
    unknown = [s for one in hit.values() for s in one.members if not links_noted(facts, s)]
    if unknown:
        return NotJudged(
            "whether a switch connects the GPUs was not noted",
            "record with `diagnose attach` or `diagnose run`, which ask the driver",
        )
    able = {gpu: one for gpu, one in hit.items() if all(_could(facts, s) for s in one.members)}
    if not able:
        return Clean("not every rank has a switch, NCCL 2.28 and memory that could be registered")
    return (_symptom(facts, tuple(able), max(able.values(), key=lambda one: one.cost_ns)),)


def _held_on(facts: Facts, limits: Limits, gpu: Gpu) -> Held | None:
    contended, units = contended_on(facts, gpu), facts.sm_count(gpu.source)
    if contended is None or not contended.slowdown_low > 1 or units is None:
        return None
    messages = messages_on(facts, gpu)
    ops = facts.trace.gpu_ops.take(messages.row)
    blocks = blocks_of(ops)
    rows = messages.is_kind(*_KINDS) & (100 * blocks > limits.min_share_pct * units)
    names = np.array(ops.texts("name"), object)
    rows &= np.array([not any(word in name for word in _REGISTERED) for name in names], bool)
    inside, members = _within_machine(facts, messages.row, rows)
    rows &= inside
    if not rows.any():
        return None
    return Held(
        messages.per_step(messages.transfer_ns, rows),
        int(blocks[rows].max()),
        units,
        contended.cost_ns,
        members,
    )


def _within_machine(
    facts: Facts, row: npt.NDArray[np.int64], wanted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], frozenset[int]]:
    """Of the wanted operations those of groups of one machine, and the sources of these groups."""
    said = facts.trace.collectives
    said = said.take(np.searchsorted(said["gpu_op_row"], row))
    keys = list(zip(said.texts("group_ranks"), said["group_size"].tolist(), strict=True))
    asked = {key for key, one in zip(keys, wanted.tolist(), strict=True) if one}
    good = {key for key in asked if key[1] > 1 and in_one_domain(facts, *key)}
    members = frozenset(source for key in good for source in members_of(facts, key[0]))
    return np.array([key in good for key in keys], bool), members


def _could(facts: Facts, source: int) -> bool:
    """Whether a process could register its buffers, and has not."""
    if not is_switched(facts, source) or not has_copy_engine_collectives(facts, source):
        return False
    allocator = " ".join(facts.variables(name).get(source, "") for name in _ALLOCATOR)
    if "expandable_segments:true" in allocator.lower().replace(" ", ""):
        return False
    hook = facts.variables("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK").get(source, "0")
    policy = facts.variables("NCCL_CTA_POLICY").get(source, "")
    return hook.strip().lower() in ("", "0", "false", "no") and not (
        {"2", "ZERO"} & set(policy.upper().replace("|", " ").split())
    )


def _symptom(facts: Facts, gpus: tuple[Gpu, ...], held: Held) -> Symptom:
    taken = 100 * min(held.blocks, held.multiprocessors) / held.multiprocessors
    transfer, cost = facts.share_pct(held.transfer_ns), facts.share_pct(held.cost_ns)
    return Symptom(
        sentence=(
            f"Collectives within the machine hold up to {percent(taken)} of the multiprocessors "
            f"of {who(facts.trace, gpus)} for {duration(held.transfer_ns)} {facts.a_step}, and "
            f"contention costs {duration(held.cost_ns)} ({percent(cost)}); the NVLink switch and "
            "copy engines could move the data instead."
        ),
        where=Where(gpus=gpus),
        evidence=(
            Evidence("transfer_ns", f"transfer {facts.a_step}", held.transfer_ns),
            Evidence("transfer_pct", "share of the step", transfer, "min_communication_pct"),
            Evidence("num_blocks", "most blocks of a collective", held.blocks),
            Evidence("multiprocessors_pct", "of the multiprocessors", taken, "min_share_pct"),
            Evidence("cost_ns", f"contention {facts.a_step}", held.cost_ns),
            Evidence("cost_pct", "share of the step", cost, "min_cost_pct"),
        ),
        cost=Cost(held.cost_ns, "contention of all collectives", is_upper_bound=True),
        advice=(
            Fix(
                "FSDP2: buffers from NCCL's allocator.",
                "module.set_allocate_memory_from_process_group_for_comm(True)",
            ),
            Fix("FSDP2, symmetric memory.", 'module.set_symm_mem_for_comm("NCCL")'),
            Fix("Megatron.", "--use-nccl-ub"),
            Fix("Then let NCCL take none where it can (ZERO), and compare.", "NCCL_CTA_POLICY=2"),
        ),
        caveats=(
            "All ranks must register, and registered buffers take memory of their own.",
            "It does not go with expandable segments of the allocator.",
            "Copy engines may be slower than kernels, above all for small messages: measure both.",
        ),
    )


RULE = Rule(
    check=check,
    area="contention",
    confidence="low",
    needs=(Need.COMMUNICATION, Need.ENVIRONMENT, Need.NVIDIA),
    thresholds=Limits(),
)
