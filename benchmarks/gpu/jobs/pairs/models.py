"""The networks that are trained, and one training step of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.jobs.pairs.place import Place
from benchmarks.gpu.jobs.pairs.variants import Action

_HEAD = 64


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.projections = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.projections(self.norms[0](x)).view(batch, tokens, 3, width // _HEAD, _HEAD)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(y.transpose(1, 2).reshape(batch, tokens, width))
        done: torch.Tensor = x + self.feed_forward(self.norms[1](x))
        return done


class Gpt(nn.Module):  # type: ignore[misc]
    """Transformer blocks. ``after_layer`` is called with what each layer gives."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.after_layer: Callable[[torch.Tensor], Any] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            if self.after_layer is not None:
                self.after_layer(x)
        return x


class Convolutions(nn.Module):  # type: ignore[misc]
    """Residual convolutions over pictures of three channels."""

    def __init__(self, layers: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


def normed_layers(layers: int, width: int) -> nn.Module:
    """Linear, LayerNorm and ReLU, again and again: many small kernels."""
    return nn.Sequential(
        *[
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
            for _ in range(layers)
        ]
    )


class Training:
    """A model with its batch and optimizer."""

    def __init__(
        self,
        place: Place,
        model: nn.Module,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype = torch.bfloat16,
        autocast: bool = False,
        set_to_none: bool = True,
    ) -> None:
        torch.manual_seed(0)
        self.place = place
        self.model = model.to(place.device, dtype)
        self.net: nn.Module = self.model
        self.x = torch.randn(*shape, device=place.device, dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self._autocast = autocast
        self._set_to_none = set_to_none
        self.facts: dict[str, Any] = {
            "model": type(model).__name__,
            "parameters": sum(one.numel() for one in model.parameters()),
            "parameter_tensors": sum(1 for _ in model.parameters()),
            "batch_shape": list(shape),
            "dtype": str(dtype).removeprefix("torch."),
        }

    def distribute(self, **options: Any) -> Training:
        """Train data-parallel, with the options of DistributedDataParallel."""
        devices = None if self.place.dry else [self.place.device.index]
        self.net = DistributedDataParallel(self.model, device_ids=devices, **options)
        return self

    def backward(self, x: torch.Tensor | None = None) -> torch.Tensor:
        cast = torch.autocast(self.place.device.type, torch.bfloat16) if self._autocast else None
        with cast or contextlib.nullcontext():
            loss: torch.Tensor = self.net(self.x if x is None else x).float().pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        return loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self._set_to_none)

    def step(self, x: torch.Tensor | None = None) -> None:
        self.backward(x)
        self.update()

    def average_gradients(self) -> None:
        """One all-reduce per parameter, on the stream of the computation."""
        # gloo on CPUs has no average.
        how = dist.ReduceOp.SUM if self.place.dry else dist.ReduceOp.AVG
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, op=how)


def gpt(
    place: Place,
    layers: int,
    width: int,
    batch: int,
    tokens: int,
    **options: Any,
) -> Training:
    """A transformer, in bfloat16 unless the options say otherwise; tiny without a GPU."""
    layers, width = place.of(layers, 2), place.of(width, _HEAD)
    shape = (place.of(batch, 2), place.of(tokens, 8), width)
    training = Training(place, Gpt(layers, width), shape, **options)
    training.facts |= {"layers": layers, "width": width}
    return training


def captured(training: Training) -> Action:
    """The training step as one CUDA graph."""
    if training.place.dry:
        return training.step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step()
    replay: Action = graph.replay
    return replay
