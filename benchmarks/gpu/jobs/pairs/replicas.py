"""Pairs of two data-parallel ranks about order, buffers and variables."""

from __future__ import annotations

import torch

from benchmarks.gpu.jobs.pairs.models import Training, gpt, normed_layers
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.single import Known
from benchmarks.gpu.jobs.pairs.variants import Action, Variant, Variants


def missing_sync(place: Place, _known: Known) -> Variants:
    """Gradients are averaged on a stream of its own; the optimizer waits for it, or forgot to."""
    training = gpt(place, 4, 2048, 2, 1024)
    if place.dry:
        step = _averaging(training)
        return Variants(Variant(step), Variant(step), training.facts)
    aside = torch.cuda.Stream()

    def reduce() -> None:
        training.backward()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            training.average_gradients()

    def before() -> None:
        reduce()
        training.update()  # reads gradients that are not averaged yet
        torch.cuda.synchronize()  # or the next step would free them while they are averaged

    def after() -> None:
        reduce()
        torch.cuda.current_stream().wait_stream(aside)
        training.update()
        torch.cuda.synchronize()

    return Variants(Variant(before), Variant(after), training.facts)


def _averaging(training: Training) -> Action:
    def step() -> None:
        training.backward()
        training.average_gradients()
        training.update()

    return step


def buffer_broadcast(place: Place, _known: Known) -> Variants:
    """A causal mask a layer, kept as a buffer, which is broadcast before each forward pass."""
    layers, edge = place.of(6, 2), place.of(2048, 16)

    def masked(*, broadcast: bool) -> Training:
        training = gpt(place, layers, 1536, 4, 1024)
        for block in training.model.blocks:
            mask = torch.ones(edge, edge, device=place.device).tril()
            block.register_buffer("mask", mask)
        return training.distribute(broadcast_buffers=broadcast)

    before, after = masked(broadcast=True), masked(broadcast=False)
    facts = {**before.facts, "buffer_mib": layers * edge * edge * 4 / 2**20}
    return Variants(Variant(before.step), Variant(after.step), facts)


def _as_it_is(training: Training) -> Variants:
    """What differs are the variables of the processes."""
    return Variants(Variant(training.step), Variant(training.step), training.facts)


def small_buffers(place: Place, _known: Known) -> Variants:
    return _as_it_is(gpt(place, 4, 2048, 2, 1024).distribute())


def one_queue(place: Place, _known: Known) -> Variants:
    return _as_it_is(gpt(place, 4, 2048, 3, 1024).distribute())


def left_variables(place: Place, _known: Known) -> Variants:
    layers, width = place.of(60, 3), place.of(256, 32)
    training = Training(place, normed_layers(layers, width), (place.of(512, 8), width))
    return _as_it_is(training.distribute(bucket_cap_mb=1))
