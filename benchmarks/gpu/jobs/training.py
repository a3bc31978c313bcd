"""A data-parallel training loop that writes down when each step ended, and knows of no profiler.

torchrun --nproc-per-node 2 benchmarks/gpu/jobs/training.py --out DIR --seconds 60
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block, to have the usual mixture of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        done: torch.Tensor = x + self.feed_forward(self.norms[1](x))
        return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    device = torch.device(
        "cuda", 0 if "ALL_ON_GPU0" in os.environ else int(os.environ["LOCAL_RANK"])
    )
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(6)]).to(device, torch.bfloat16)
    net = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(8, 512, WIDTH, device=device, dtype=torch.bfloat16)
    left = torch.tensor([1.0], device=device)
    end_at = time.monotonic() + arguments.seconds
    ends = []
    step = 0
    while left.item() > 0:
        for _ in range(20):
            net(batch).float().pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.time_ns())
            step += 1
        # Every 20 steps, so that the host does not run far ahead and all ranks end together.
        left.fill_(end_at - time.monotonic())
        dist.all_reduce(left, op=dist.ReduceOp.MIN)
        if step == 60:
            (arguments.out / "alive").touch()
    torch.cuda.synchronize()
    path = arguments.out / f"rank{dist.get_rank():05d}.steps.txt"
    path.write_text("".join(f"{end}\n" for end in ends))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
