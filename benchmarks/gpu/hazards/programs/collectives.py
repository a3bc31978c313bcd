"""Buffers used while a communication stream still works on them."""

from __future__ import annotations

import torch

from benchmarks.gpu.hazards.gpu import Gpu
from benchmarks.gpu.hazards.program import Step, outputs


def update_beside_reduction(gpu: Gpu, racy: bool) -> Step:
    """The optimizer uses gradients that a communication stream (simulated) still reduces."""
    communication = gpu.stream()
    source, gradient = gpu.square(1), gpu.square()
    weights = torch.nn.Parameter(gpu.square())
    weights.grad = gradient
    optimizer = torch.optim.SGD([weights], lr=1.0, foreach=False)
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        torch.mul(source, 2 * number + 2, out=gradient)
        communication.wait_stream(gpu.current())
        with gpu.on(communication):
            gpu.sleep()
            gradient.mul_(0.5)
        if not racy:
            gpu.current().wait_stream(communication)
        optimizer.step()
        return out[number].copy_(weights.detach())

    return step


def update_beside_all_gather(gpu: Gpu, racy: bool) -> Step:
    """Weights are updated in place while NCCL still gathers them; the work is never waited for."""
    dist = gpu.distributed()
    weights = gpu.flat(gpu.large, 1)
    end = weights[gpu.large // 2 :]
    out = outputs(lambda: gpu.flat(gpu.large))

    def step(number: int) -> torch.Tensor:
        gpu.sleep()
        work = dist.all_gather_into_tensor(out[number], weights, async_op=True)
        if not racy:
            work.wait()
        end.add_(1)
        return out[number]

    return step


def reduction_read_before_wait(gpu: Gpu, racy: bool) -> Step:
    """The result of an NCCL reduction is read, and only then waited for."""
    source, bucket = gpu.flat(gpu.large, 1), gpu.flat(gpu.large)
    end = bucket[gpu.large // 2 :]
    out = outputs(lambda: gpu.flat(gpu.large - gpu.large // 2))
    gpu.distributed()

    def step(number: int) -> torch.Tensor:
        torch.mul(source, 2 * number + 2, out=bucket)
        gpu.sleep()
        work = gpu.halve(bucket)
        if not racy:
            work.wait()
        torch.mul(end, 2, out=out[number])
        if racy:
            work.wait()
        return out[number]

    return step
