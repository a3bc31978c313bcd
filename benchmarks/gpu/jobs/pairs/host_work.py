"""Pairs of one rank whose host does in the loop what belongs outside of it."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from benchmarks.gpu.jobs.pairs.models import Training, gpt, normed_layers
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.single import Known
from benchmarks.gpu.jobs.pairs.variants import Variant, Variants

_STEPS_PER_SAVE = 5
_STEPS_PER_LENGTH = 3


def checkpoint(place: Place, _known: Known) -> Variants:
    """Weights and the optimizer's state, of every fifth step, straight to a file."""
    training = gpt(place, 4, 1024, 8, 1024)
    num_steps = 0

    def before() -> None:
        nonlocal num_steps
        num_steps += 1
        training.step()
        if num_steps % _STEPS_PER_SAVE == 0:
            parts = (training.model, training.optimizer)
            state = [part.state_dict() for part in parts]
            with tempfile.TemporaryFile() as file:
                torch.save(state, file)

    facts = {**training.facts, "steps_per_save": _STEPS_PER_SAVE}
    return Variants(Variant(before), Variant(training.step), facts)


def pinned_in_step(place: Place, _known: Known) -> Variants:
    """Page-locked staging memory: made and given back in each step, or made once."""
    training = gpt(place, 4, 1024, 8, 1024)
    numel = max(place.of(64, 1) << 18, training.x.numel())
    batch = torch.full((numel,), 0.5)

    def staging() -> torch.Tensor:
        return torch.empty(numel, pin_memory=not place.dry)

    def train_on(staged: torch.Tensor) -> None:
        staged.copy_(batch)
        there = staged.to(place.device, non_blocking=True)
        x = training.x
        training.step(x + there[: x.numel()].view(x.shape).to(x.dtype))

    def before() -> None:
        if not place.dry:
            # PyTorch keeps page-locked memory; code that calls the driver itself does not.
            torch._C._host_emptyCache()
        train_on(staging())

    kept = staging()
    facts = {**training.facts, "staged_mib": numel >> 18}
    return Variants(Variant(before), Variant(lambda: train_on(kept)), facts)


def recompile(place: Place, _known: Known) -> Variants:
    """Sequences of new lengths, each compiled anew, or one graph for all lengths.

    Compiled by Dynamo alone (``backend="eager"``): it takes less than a second a graph.
    """
    config: Any = torch._dynamo.config
    config.recompile_limit = config.accumulated_recompile_limit = 1 << 20
    forget = torch._dynamo.reset  # or each side would search the graphs of both
    return Variants(
        Variant(_of_many_lengths(place, dynamic=False), forget),
        Variant(_of_many_lengths(place, dynamic=True), forget),
        {"steps_per_length": _STEPS_PER_LENGTH},
    )


def _of_many_lengths(place: Place, *, dynamic: bool) -> Any:
    width = place.of(1024, 32)
    layers = normed_layers(place.of(6, 2), width)
    training = Training(place, layers, (place.of(8, 2), place.of(1024, 64), width))
    training.net = torch.compile(training.model, dynamic=dynamic, backend="eager")
    longest = training.x.shape[1]
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        length = longest - num_steps // _STEPS_PER_LENGTH % (longest // 2)
        num_steps += 1
        training.step(training.x[:, :length])

    return step
