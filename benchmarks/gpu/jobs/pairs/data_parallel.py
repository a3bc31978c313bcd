"""Pairs of two ranks that train data-parallel; a function a pair, with its name."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from benchmarks.gpu.jobs.pairs.models import Training, gpt, normed_layers
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.single import Known, greatest, watched
from benchmarks.gpu.jobs.pairs.variants import Variant, Variants

_LATE_MS = 8.0


def straggler(place: Place, _known: Known) -> Variants:
    training = gpt(place, 4, 1536, 4, 1024).distribute()
    edge, num_products = place.of(4096, 64), 10
    extra = torch.randn(edge, edge, device=place.device, dtype=torch.bfloat16)
    product = torch.empty_like(extra)

    def before() -> None:
        if place.rank == 1:
            for _ in range(num_products):
                torch.mm(extra, extra, out=product)
        training.step()

    facts = {**training.facts, "extra_products": num_products, "extra_width": edge}
    return Variants(Variant(before), Variant(training.step), facts)


def straggler_host(place: Place, _known: Known) -> Variants:
    training = gpt(place, 3, 1536, 4, 1024).distribute()

    def before() -> None:
        if place.rank == 1:
            time.sleep(_LATE_MS / 1e3)
        training.step()

    facts = {**training.facts, "sleep_ms": _LATE_MS}
    return Variants(Variant(before), Variant(training.step), facts)


def serial_all_reduce(place: Place, _known: Known) -> Variants:
    alone = gpt(place, 4, 2048, 2, 1024)
    together = gpt(place, 4, 2048, 2, 1024).distribute()

    def before() -> None:
        alone.backward()
        alone.average_gradients()
        alone.update()

    return Variants(Variant(before), Variant(together.step), alone.facts)


def tiny_buckets(place: Place, _known: Known) -> Variants:
    layers, width = place.of(60, 3), place.of(256, 32)

    def small() -> Training:
        training = Training(place, normed_layers(layers, width), (place.of(512, 8), width))
        training.facts |= {"layers": layers, "width": width}
        return training

    return _buckets(small(), small(), 0.05)


def giant_bucket(place: Place, _known: Known) -> Variants:
    before, after = (gpt(place, 4, 2048, 3, 1024) for _ in range(2))
    return _buckets(before, after, 4000)


def _buckets(before: Training, after: Training, mb: float) -> Variants:
    before.distribute(bucket_cap_mb=mb)
    after.distribute(bucket_cap_mb=25)
    return Variants(Variant(before.step), Variant(after.step), {**before.facts, "bucket_mb": mb})


def accumulate_sync(place: Place, _known: Known) -> Variants:
    training = gpt(place, 3, 2048, 1, 1024).distribute()
    num_micro_steps = 4

    def before() -> None:
        for _ in range(num_micro_steps):
            training.backward()
        training.update()

    def after() -> None:
        net: Any = training.net
        with net.no_sync():
            for _ in range(num_micro_steps - 1):
                training.backward()
        training.backward()
        training.update()

    facts = {**training.facts, "micro_steps": num_micro_steps}
    return Variants(Variant(before), Variant(after), facts)


def find_unused(place: Place, _known: Known) -> Variants:
    before = gpt(place, 12, 512, 4, 512).distribute(find_unused_parameters=True)
    after = gpt(place, 12, 512, 4, 512).distribute()
    return Variants(Variant(before.step), Variant(after.step), before.facts)


def gc_pause(place: Place, _known: Known) -> Variants:
    return _collecting(place, place.of(200_000, 2_000), lambda _step: True)


def gc_pause_rank0(place: Place, _known: Known) -> Variants:
    return _collecting(
        place, place.of(400_000, 2_000), lambda step: place.rank == 0 and step % 3 == 0
    )


def _collecting(place: Place, num_objects: int, now: Any) -> Variants:
    training = gpt(place, 4, 1536, 4, 1024).distribute()
    junk: list[list[int]] = []
    num_steps = 0

    def clutter() -> None:
        # What torch holds is not collected: only the objects made here cost time, everywhere alike.
        gc.collect()
        gc.freeze()
        junk.extend([number] for number in range(num_objects))

    def clear() -> None:
        junk.clear()
        gc.unfreeze()

    def before() -> None:
        nonlocal num_steps
        num_steps += 1
        if now(num_steps):
            gc.collect()
        training.step()

    def freeze() -> None:
        clutter()
        gc.freeze()
        gc.disable()

    def thaw() -> None:
        gc.enable()
        clear()

    facts = {**training.facts, "objects": num_objects}
    return Variants(Variant(before, clutter, clear), Variant(training.step, freeze, thaw), facts)


def sync_ddp(place: Place, _known: Known) -> Variants:
    return watched(gpt(place, 6, 1280, 4, 1024).distribute(), greatest)


def wide_gradients(place: Place, _known: Known) -> Variants:
    before, after = (
        gpt(place, 3, 2048, 2, 1024, dtype=torch.float32, autocast=True).distribute()
        for _ in range(2)
    )
    net: Any = after.net
    # gloo on CPUs has no bfloat16 hook.
    hook = default_hooks.fp16_compress_hook if place.dry else default_hooks.bf16_compress_hook
    net.register_comm_hook(None, hook)
    return Variants(Variant(before.step), Variant(after.step), before.facts)


def low_bandwidth(place: Place, _known: Known) -> Variants:
    training = gpt(place, 4, 2048, 2, 1024).distribute()
    return Variants(Variant(training.step), Variant(training.step), training.facts)
