"""Pairs of two ranks that shard their parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.gpu.jobs.pairs.models import Training, gpt
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.single import Known
from benchmarks.gpu.jobs.pairs.variants import Variant, Variants


def fsdp_no_prefetch(place: Place, _known: Known) -> Variants:
    before, after = (_sharded(gpt(place, 6, 1536, 4, 1024)) for _ in range(2))
    _without_prefetch(before)
    return Variants(Variant(before.step), Variant(after.step), after.facts)


def fsdp_late_gathers(place: Place, _known: Known) -> Variants:
    """As ``fsdp_no_prefetch``, with units so large that gathering one shows."""
    before, after = (_sharded(gpt(place, 3, 4096, 1, 1024)) for _ in range(2))
    _without_prefetch(before)
    return Variants(Variant(before.step), Variant(after.step), after.facts)


def fsdp_regather(place: Place, _known: Known) -> Variants:
    """Few tokens: units are gathered twice, and compute less than it takes to gather the next."""
    before = _sharded(gpt(place, 3, 4096, 1, 256))
    after = _sharded(gpt(place, 3, 4096, 1, 256), reshard=False)
    return Variants(Variant(before.step), Variant(after.step), after.facts)


def _sharded(training: Training, *, reshard: bool = True) -> Training:
    mesh = init_device_mesh(training.place.device.type, (training.place.world,))
    for block in training.model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(training.model, mesh=mesh, reshard_after_forward=reshard)
    # The parameters are others now.
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4, fused=True)
    return training


def _without_prefetch(training: Training) -> None:
    """No all-gather before the layer that needs it is reached.

    Backward: an empty list leaves the default on, so each layer is told to fetch itself, which
    it has by then. Forward: the default fetches ahead as the host runs ahead, on streams of
    its own; gathers that the layer's own stream issues and waits for cannot.
    """
    model: Any = training.model
    model._set_unshard_async_op(True)
    for block in model.blocks:
        block.set_modules_to_forward_prefetch([])
        block.set_modules_to_backward_prefetch([block])
