"""Whole training jobs, recorded with ``check_sync``: right ones, and two that wait too little.

    python -m benchmarks.gpu.hazards.jobs --out DIR [--only NAME,NAME]

Jobs of two ranks are started as ``benchmarks/gpu/two_ranks.py`` says. ``DIR/NAME/`` gets the
recording and ``measured.json``: milliseconds a step before anything was recorded, and the losses
of the recorded steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import diagnose
from benchmarks.gpu import two_ranks
from benchmarks.gpu.jobs.several import Block

WARM, TIMED, RECORDED = 6, 20, 3
ROWS, WIDTH = 16384, 4096
"""Of a batch that is prefetched: 256 MiB of float, 5 ms at 53 GB/s."""

Step = Callable[[], torch.Tensor]


class Job(NamedTuple):
    """How to build its step, and the ranks that it needs."""

    build: Callable[[torch.device], Step]
    ranks: int
    waits_too_little: bool = False


def healthy(device: torch.device, bucket_mb: float = 25) -> Step:
    """Data-parallel training as PyTorch does it."""
    model = _model(device)
    net = DistributedDataParallel(
        model, device_ids=[device.index], bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
    )
    return _training(net, model, device)


def tiny_buckets(device: torch.device) -> Step:
    """The same with a reduction for each parameter."""
    return healthy(device, bucket_mb=0.05)


def fsdp(device: torch.device) -> Step:
    """Fully sharded: all-gathers and reduce-scatters on streams and memory of their own."""
    from torch.distributed.fsdp import fully_shard

    model = _model(device)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return _training(model, model, device)


def gradients_not_waited(device: torch.device) -> Step:
    """Gradients are reduced on a side stream for which the optimizer does not wait."""
    model, side = _model(device), torch.cuda.Stream()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(4, 512, 1024, device=device, dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        loss = model(batch).float().pow(2).mean()
        loss.backward()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        return loss.detach()

    return step


def one_buffer(device: torch.device) -> Step:
    """The next batch is copied into the tensor that the step reads, when that is over."""
    return _prefetching(device, buffers=1)


def two_buffers(device: torch.device) -> Step:
    """The next batch is copied beside the step."""
    return _prefetching(device, buffers=2)


def batch_not_waited(device: torch.device) -> Step:
    """The step does not wait for its batch."""
    return _prefetching(device, buffers=2, waits=False)


def _prefetching(device: torch.device, *, buffers: int, waits: bool = True) -> Step:
    layer = nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    side = torch.cuda.Stream()
    batches = [torch.randn(ROWS, WIDTH).pin_memory() for _ in range(2)]
    held = [torch.zeros(ROWS, WIDTH, device=device) for _ in range(buffers)]
    copied = [torch.cuda.Event() for _ in range(buffers)]
    used = [torch.cuda.Event() for _ in range(buffers)]
    torch.cuda.synchronize()
    number = 0

    def fetch(turn: int) -> None:
        place = turn % buffers
        with torch.cuda.stream(side):
            side.wait_event(used[place])
            held[place].copy_(batches[turn % 2], non_blocking=True)
            copied[place].record(side)

    def step() -> torch.Tensor:
        nonlocal number
        place = number % buffers
        if number == 0:
            fetch(0)
        if buffers > 1:
            fetch(number + 1)
        if waits:
            torch.cuda.current_stream().wait_event(copied[place])
        loss = layer(held[place]).pow(2).mean()
        loss.backward()
        used[place].record()
        optimizer.step()
        optimizer.zero_grad()
        number += 1
        if buffers == 1:
            fetch(number)
        return loss.detach()

    return step


def _model(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(1024) for _ in range(4)]).to(device, torch.bfloat16)


def _training(net: nn.Module, model: nn.Module, device: torch.device) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(4, 512, 1024, device=device, dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        loss: Any = net(batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return step


JOBS = {
    "healthy": Job(healthy, 2),
    "tiny_buckets": Job(tiny_buckets, 2),
    "fsdp": Job(fsdp, 2),
    "gradients_not_waited": Job(gradients_not_waited, 2, waits_too_little=True),
    "one_buffer": Job(one_buffer, 1),
    "two_buffers": Job(two_buffers, 1),
    "batch_not_waited": Job(batch_not_waited, 1, waits_too_little=True),
}


def run(name: str, out: Path) -> None:
    """Time the steps of one job, then record some. In each of its processes."""
    job, folder = JOBS[name], out / name
    local = 0 if "ALL_ON_GPU0" in os.environ else int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    if job.ranks > 1:
        dist.init_process_group("nccl", device_id=device)
    step = job.build(device)
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMED):
        step()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - begin) / TIMED * 1e3
    (out / "alive").touch()
    with diagnose.record(folder, steps=RECORDED, skip=2, check_sync=True, telemetry=False):
        losses = [step() for _ in range(RECORDED + 6)]
        torch.cuda.synchronize()
    if os.environ.get("RANK", "0") == "0":
        said = {"step_ms": step_ms, "losses": [loss.item() for loss in losses]}
        (folder / "measured.json").write_text(json.dumps(said) + "\n")
    if job.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def start(name: str, out: Path) -> str:
    """Run one job in processes of its own; how it ended."""
    module = ["-m", "benchmarks.gpu.hazards.jobs", "--out", str(out), "--one", name]
    try:
        if JOBS[name].ranks == 1:
            line = [sys.executable, *module]
            done = subprocess.run(line, capture_output=True, text=True, timeout=150, check=False)
            return f"status {done.returncode} {done.stderr[-2000:] if done.returncode else ''}"
        with two_ranks.job(module, {}, out / "alive") as running:
            return f"status {running.wait(100)}"
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        return str(error)


def main() -> None:
    """Run the jobs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--one", choices=sorted(JOBS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        run(arguments.one, arguments.out)
        return
    two_ranks.end_cleanly()
    for name in arguments.only.split(","):
        print(f"{name}: {start(name, arguments.out)}", flush=True)


if __name__ == "__main__":
    main()
