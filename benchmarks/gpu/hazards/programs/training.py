"""A whole training step."""

from __future__ import annotations

import torch

from benchmarks.gpu.hazards.gpu import Gpu
from benchmarks.gpu.hazards.program import STEPS, Step, outputs


def training_with_prefetch(gpu: Gpu, racy: bool) -> Step:
    """A real step, data parallel, with AdamW; the batch is prefetched on a side stream."""
    dist = gpu.distributed()
    assert dist.is_initialized()
    torch.manual_seed(0)
    width = 64 if gpu.width == 64 else 1024
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    model = torch.nn.Sequential(
        layers[0], torch.nn.GELU(), layers[1], torch.nn.LayerNorm(width),
        layers[2], torch.nn.GELU(), layers[3],
    ).to(gpu.device)  # fmt: skip
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    side, hosts = gpu.stream(), [gpu.pinned(width * width, number + 1) for number in range(STEPS)]
    out = outputs(lambda: gpu.flat(width))

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            gpu.sleep()
            batch = hosts[number].to(gpu.device, non_blocking=True).view(width, width)
        if not racy:
            gpu.current().wait_stream(side)
        gpu.record_stream(batch, gpu.current())
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(parallel(batch / 7), batch)
        loss.backward()
        optimizer.step()
        return out[number].copy_(layers[3].bias.detach())

    return step
