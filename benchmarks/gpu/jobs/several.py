"""A training loop of N ranks with one known behaviour, that knows of no profiler.

    torchrun --nproc-per-node N benchmarks/gpu/jobs/several.py --job healthy --out DIR --seconds 60

Before it trains, collectives are timed alone, as nccl-tests does: ``DIR/alone.json``, medians in
milliseconds by kind and size. ``DIR/alive`` appears once it trains.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

JOBS = ("healthy", "fsdp", "serial", "tiny_buckets", "straggler", "low_bandwidth")
WIDTH, LAYERS, TOKENS = 2048, 8, 4096
MIB = 1 << 20
SIZES = (MIB, 32 * MIB, 256 * MIB)
TIMED, WARM = 20, 5


class Block(nn.Module):  # type: ignore[misc]
    """A feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done: torch.Tensor = x + self.inner(self.norm(x))
        return done


def timed_alone(device: torch.device) -> dict[str, dict[str, float]]:
    """Median milliseconds of each kind and size; sizes as nccl-tests counts them, in bytes."""
    world, rank = dist.get_world_size(), dist.get_rank()
    found: dict[str, dict[str, float]] = {}
    for size in SIZES:
        whole = torch.zeros(size // 2 // world * world, device=device, dtype=torch.bfloat16)
        part = torch.zeros(len(whole) // world, device=device, dtype=torch.bfloat16)
        received = torch.empty_like(whole)
        there, here = (rank + 1) % world, (rank - 1) % world
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(dist.all_gather_into_tensor, whole, part),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, part, whole),
            "send_recv": partial(_exchange, whole, there, received, here),
        }
        for kind, call in calls.items():
            found.setdefault(kind, {})[str(whole.numel() * 2)] = _median_ms(call)
    return found


def _exchange(sent: torch.Tensor, there: int, received: torch.Tensor, here: int) -> None:
    operations = [dist.P2POp(dist.isend, sent, there), dist.P2POp(dist.irecv, received, here)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _median_ms(call: Callable[[], Any]) -> float:
    for _ in range(WARM):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED + 1)]
    dist.barrier()
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    took = [float(one.elapsed_time(other)) for one, other in itertools.pairwise(marks)]
    middle: float = statistics.median(took)
    return middle


def step_of(job: str, device: torch.device) -> Callable[[], None]:
    """One step of training with the job's behaviour."""
    torch.manual_seed(0)
    width = 256 if job == "tiny_buckets" else WIDTH
    layers = 60 if job == "tiny_buckets" else LAYERS
    model = nn.Sequential(*[Block(width) for _ in range(layers)]).to(device, torch.bfloat16)
    net: nn.Module = model
    if job == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model:
            fully_shard(block)
        fully_shard(model)
    elif job != "serial":
        net = DistributedDataParallel(
            model,
            device_ids=[device.index],
            bucket_cap_mb=0.05 if job == "tiny_buckets" else 25,
            gradient_as_bucket_view=True,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(TOKENS, width, device=device, dtype=torch.bfloat16)
    square = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    is_late = job == "straggler" and dist.get_rank() == 1

    def step() -> None:
        for _ in range(24 * is_late):
            torch.mm(square, square)
        net(batch).float().pow(2).mean().backward()
        if job == "serial":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    """Time collectives, then train until the time is over on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", choices=JOBS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    device = torch.device(
        "cuda", 0 if "ALL_ON_GPU0" in os.environ else int(os.environ["LOCAL_RANK"])
    )
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    alone = timed_alone(device)
    if dist.get_rank() == 0:
        (arguments.out / "alone.json").write_text(json.dumps(alone, indent=1) + "\n")
    step = step_of(arguments.job, device)
    left = torch.tensor([1.0], device=device)
    end_at = time.monotonic() + arguments.seconds
    number = 0
    while left.item() > 0:
        for _ in range(10):
            step()
            number += 1
        # Every ten steps, so that the host does not run far ahead and all ranks end together.
        left.fill_(end_at - time.monotonic())
        dist.all_reduce(left, op=dist.ReduceOp.MIN)
        if number == 40:
            (arguments.out / "alive").touch()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
