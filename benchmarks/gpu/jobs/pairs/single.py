"""Pairs of one rank that has the whole GPU; a function a pair, with its name.

Each takes the place and the facts of an earlier build of it, which keep what was found by
measuring (how long to sleep) the same in the recording as in the truth.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.gpu.jobs.pairs import measure
from benchmarks.gpu.jobs.pairs.models import Training, captured, gpt, normed_layers
from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.variants import Action, Variant, Variants, nothing

Known = dict[str, Any]


def graph_gpt(place: Place, _known: Known) -> Variants:
    eager, graphed = (gpt(place, 16, 512, 2, 64, set_to_none=False) for _ in range(2))
    for training in (eager, graphed):
        training.optimizer = torch.optim.AdamW(
            training.model.parameters(), lr=1e-4, fused=True, capturable=not place.dry
        )
    return Variants(Variant(eager.step), Variant(captured(graphed)), eager.facts)


def graph_mlp(place: Place, _known: Known) -> Variants:
    layers, width = place.of(40, 3), place.of(256, 32)
    eager, graphed = (
        Training(place, normed_layers(layers, width), (64, width), set_to_none=False)
        for _ in range(2)
    )
    for training in (eager, graphed):
        training.optimizer = torch.optim.SGD(
            training.model.parameters(), lr=1e-4, momentum=0.9, foreach=True
        )
    facts = {**eager.facts, "layers": layers, "width": width, "optimizer": "SGD, foreach"}
    return Variants(Variant(eager.step), Variant(captured(graphed)), facts)


def watched(training: Training, look: Any) -> Variants:
    """Before: ``look`` at what each layer gives. After: nobody looks."""
    model = training.model

    def watch() -> None:
        model.after_layer = look

    def leave_alone() -> None:
        model.after_layer = None

    before = Variant(training.step, watch, leave_alone)
    return Variants(before, Variant(training.step), training.facts)


def greatest(x: torch.Tensor) -> float:
    """A figure for a log, as training scripts ask for it: waits for the GPU."""
    return float(x.detach().abs().amax().item())


def _outliers(x: torch.Tensor) -> float:
    return float(torch.nonzero(x.detach()[..., 0] > 2).shape[0]) + greatest(x)


def sync_item(place: Place, _known: Known) -> Variants:
    return watched(gpt(place, 12, 1024, 12, 1024), greatest)


def sync_small(place: Place, _known: Known) -> Variants:
    return watched(gpt(place, 16, 768, 8, 512), _outliers)


def stall_sleep(place: Place, known: Known) -> Variants:
    training = gpt(place, 6, 1024, 16, 1024)
    if "sleep_ms" not in known:
        # As long as the GPU works: whatever the host needs besides is a stall.
        known = {"sleep_ms": round(measure.usual_ms(place, training.step), 1)}
    return _sleeping(training, float(known["sleep_ms"]))


def stall_hidden(place: Place, _known: Known) -> Variants:
    return _sleeping(gpt(place, 6, 1024, 24, 1024), place.of(5.0, 1.0))


def _sleeping(training: Training, sleep_ms: float) -> Variants:
    def before() -> None:
        time.sleep(sleep_ms / 1e3)
        training.step()

    facts = {**training.facts, "sleep_ms": sleep_ms}
    return Variants(Variant(before), Variant(training.step), facts)


def churn(place: Place, _known: Known) -> Variants:
    training = gpt(place, 6, 1024, 12, 1024)

    def before() -> None:
        training.step()
        if not place.dry:
            torch.cuda.empty_cache()

    return Variants(Variant(before), Variant(training.step), training.facts)


def fp32_gemm(place: Place, _known: Known) -> Variants:
    training = gpt(place, 3, 1536, 4, 1024, dtype=torch.float32)
    return Variants(
        Variant(training.step, _precision("highest"), _precision("highest")),
        Variant(training.step, _precision("high"), _precision("highest")),
        training.facts,
    )


def _precision(name: str) -> Action:
    return lambda: torch.set_float32_matmul_precision(name)


def unfused_optimizer(place: Place, _known: Known) -> Variants:
    before, after = (gpt(place, 12, 1024, 4, 1024) for _ in range(2))
    before.optimizer = torch.optim.AdamW(
        before.model.parameters(), lr=1e-4, foreach=False, fused=False
    )
    return Variants(Variant(before.step), Variant(after.step), after.facts)


def launch_blocking(place: Place, _known: Known) -> Variants:
    training = gpt(place, 10, 1024, 8, 1024)
    return Variants(Variant(training.step), Variant(training.step), training.facts)


def power_heavy(place: Place, known: Known) -> Variants:
    """No pair: a GPU at its power limit. The host stays one step ahead of it."""
    width = place.of(8192, 64)
    left, right = (
        torch.randn(width, width, device=place.device, dtype=torch.bfloat16) for _ in range(2)
    )
    product = torch.empty_like(left)
    done = [] if place.dry else [torch.cuda.Event()]

    def step() -> None:
        for _ in range(40):
            torch.mm(left, right, out=product)
        for event in done:
            event.synchronize()  # of the last step; one that was never recorded is over
        if not place.dry:
            done[:] = [torch.cuda.Event()]
            done[0].record()

    facts = {"width": width, "products_per_step": 40, **known}
    return Variants(Variant(step), Variant(nothing), facts)
