"""Pairs of one rank about what comes from the host: copies and data loaders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu.jobs.pairs.models import Convolutions, Training, gpt
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.single import Known, greatest
from benchmarks.gpu.jobs.pairs.variants import Action, Variant, Variants

_LOADER_MS = 15.0


class Batch:
    """Float32 on the host that each step copies to the GPU and takes its input from."""

    def __init__(self, training: Training, mib: int) -> None:
        self.training = training
        numel = max(training.place.of(mib, 1) << 18, training.x.numel())
        self.pageable = torch.full((numel,), 0.5)
        self.pinned = self.pageable
        if not training.place.dry:
            self.pinned = self.pageable.pin_memory()
        training.facts["copied_mib"] = numel >> 18

    def blocking(self) -> None:
        self.train_on(self.pageable.to(self.training.place.device))

    def non_blocking(self) -> None:
        self.train_on(self.pinned.to(self.training.place.device, non_blocking=True))

    def train_on(self, there: torch.Tensor) -> None:
        x = self.training.x
        self.training.step(x + there[: x.numel()].view(x.shape).to(x.dtype))


def pageable_small(place: Place, _known: Known) -> Variants:
    return _pinned(Batch(gpt(place, 8, 1024, 8, 1024), 64))


def pageable_big(place: Place, _known: Known) -> Variants:
    layers, channels = place.of(12, 2), place.of(192, 8)
    shape = (place.of(96, 2), 3, place.of(64, 8), place.of(64, 8))
    training = Training(place, Convolutions(layers, channels), shape)
    training.model.to(memory_format=torch.channels_last)
    training.facts |= {"layers": layers, "channels": channels}
    return _pinned(Batch(training, 512))


def _pinned(batch: Batch) -> Variants:
    return Variants(Variant(batch.blocking), Variant(batch.non_blocking), batch.training.facts)


def copy_and_item(place: Place, _known: Known) -> Variants:
    batch = Batch(gpt(place, 12, 1024, 4, 1024), 64)
    model = batch.training.model

    def watch() -> None:
        model.after_layer = greatest

    def leave_alone() -> None:
        model.after_layer = None

    before = Variant(batch.blocking, watch, leave_alone)
    return Variants(before, Variant(batch.non_blocking), batch.training.facts)


def prefetch_copy(place: Place, _known: Known) -> Variants:
    batch = Batch(gpt(place, 6, 1024, 16, 1024), 256)
    if place.dry:
        return Variants(Variant(batch.non_blocking), Variant(batch.non_blocking))
    there = [torch.empty_like(batch.pinned, device=place.device) for _ in range(2)]

    def before() -> None:
        there[0].copy_(batch.pinned, non_blocking=True)
        batch.train_on(there[0])

    return Variants(Variant(before), Variant(_prefetching(batch, there)), batch.training.facts)


def _prefetching(batch: Batch, there: list[torch.Tensor]) -> Action:
    aside = torch.cuda.Stream()
    copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    turn = 0

    def fetch(number: int) -> None:
        aside.wait_event(used[number])
        with torch.cuda.stream(aside):
            there[number].copy_(batch.pinned, non_blocking=True)
            copied[number].record(aside)

    def step() -> None:
        nonlocal turn
        now, turn = turn, 1 - turn
        fetch(turn)
        torch.cuda.current_stream().wait_event(copied[now])
        batch.train_on(there[now])
        used[now].record()

    aside.wait_stream(torch.cuda.current_stream())
    fetch(0)
    return step


class Pictures(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Pictures that cost the CPU some time each: flipped, shifted and normalised."""

    def __init__(self, size: int, passes: int) -> None:
        self._picture = np.arange(3 * size * size, dtype=np.float32).reshape(3, size, size)
        self._passes = passes

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> torch.Tensor:
        x = self._picture
        for turn in range(self._passes):
            x = np.roll(x[:, :, ::-1], (number + turn) % 7, axis=1)
            x = (x - x.mean()) / (x.std() + 1e-3)
        return torch.from_numpy(np.ascontiguousarray(x))


def stall_loader(place: Place, known: Known) -> Variants:
    layers, channels = place.of(10, 2), place.of(128, 8)
    shape = (place.of(64, 4), 3, place.of(64, 8), place.of(64, 8))
    training = Training(place, Convolutions(layers, channels), shape)
    training.model.to(memory_format=torch.channels_last)
    passes = known.get("passes") or _passes(shape)
    pictures = Pictures(shape[-1], passes)
    facts: dict[str, Any] = {**training.facts, "layers": layers, "channels": channels}
    facts["passes"] = passes
    pin = not place.dry
    alone = iter(DataLoader(pictures, shape[0], num_workers=0, pin_memory=pin))
    # Forked as most jobs fork theirs; the workers never touch the GPU.
    ahead = iter(
        DataLoader(
            pictures,
            shape[0],
            num_workers=4,
            prefetch_factor=4,
            persistent_workers=True,
            pin_memory=pin,
            multiprocessing_context="fork",
        )
    )

    def step(batches: Iterator[torch.Tensor]) -> None:
        there = next(batches).to(place.device, non_blocking=True)
        training.step(there.to(training.x.dtype))  # not before: the CPU would convert it

    return Variants(
        Variant(lambda: step(alone)),
        Variant(lambda: step(ahead)),
        facts,
        lambda: ahead._shutdown_workers(),
    )


def _passes(shape: tuple[int, ...]) -> int:
    """How often a picture is worked over so that a batch takes about ``_LOADER_MS``."""
    pictures = Pictures(shape[-1], 1)
    for number in range(shape[0]):
        _ = pictures[number]
    begin = time.perf_counter()
    for number in range(shape[0]):
        _ = pictures[number]
    once_ms = (time.perf_counter() - begin) * 1e3
    return max(1, round(_LOADER_MS / once_ms))
