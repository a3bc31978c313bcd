"""Memory handed out again, shared with the host, or seen through two views."""

from __future__ import annotations

import torch

from benchmarks.gpu.hazards.gpu import Gpu
from benchmarks.gpu.hazards.program import STEPS, Step, outputs


def freed_without_record_stream(gpu: Gpu, racy: bool) -> Step:
    """The allocator hands memory out again that a side stream still reads."""
    side = gpu.stream()
    out = outputs(lambda: gpu.flat(gpu.medium))

    def step(number: int) -> torch.Tensor:
        batch = gpu.flat(gpu.medium, number + 1)
        side.wait_stream(gpu.current())
        with gpu.on(side):
            gpu.sleep()
            torch.mul(batch, 2, out=out[number])
        if not racy:
            gpu.record_stream(batch, side)
        del batch
        gpu.flat(gpu.medium, -1)
        return out[number]

    return step


def pinned_overwritten_by_host(gpu: Gpu, racy: bool) -> Step:
    """The host refills page-locked memory that is still being copied to the GPU."""
    host, event = gpu.pinned(gpu.medium), gpu.event()
    batch = gpu.flat(gpu.medium)
    out = outputs(lambda: gpu.flat(gpu.medium))

    def step(number: int) -> torch.Tensor:
        host.fill_(number + 1)
        gpu.sleep()
        batch.copy_(host, non_blocking=True)
        if not racy:
            event.record(gpu.current())
            event.synchronize()
        host.fill_(-1)
        return torch.mul(batch, 2, out=out[number])

    return step


def host_reads_before_sync(gpu: Gpu, racy: bool) -> Step:
    """The host reads page-locked memory before the copy from the GPU has come."""
    host = gpu.pinned(gpu.medium)
    source, batch = gpu.flat(gpu.medium, 1), gpu.flat(gpu.medium)
    out = outputs(lambda: torch.zeros(gpu.medium))

    def step(number: int) -> torch.Tensor:
        torch.mul(source, number + 1, out=batch)
        gpu.sleep()
        host.copy_(batch, non_blocking=True)
        if not racy:
            gpu.current().synchronize()
        return out[number].copy_(host)

    return step


def prefetch_without_wait(gpu: Gpu, racy: bool) -> Step:
    """A batch is copied on a side stream, and used before it is there."""
    side = gpu.stream()
    hosts = [gpu.pinned(gpu.medium, number + 1) for number in range(STEPS)]
    batch = gpu.flat(gpu.medium)
    out = outputs(lambda: gpu.flat(gpu.medium))

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            gpu.sleep()
            batch.copy_(hosts[number], non_blocking=True)
        if not racy:
            gpu.current().wait_stream(side)
        return torch.mul(batch, 2, out=out[number])

    return step


def overlapping_views(gpu: Gpu, racy: bool) -> Step:
    """Two views of one storage on two streams: overlapping, or (repaired) apart, with no wait."""
    side, quarter = gpu.stream(), gpu.medium // 4
    source, shared = gpu.flat(2 * quarter, 1), gpu.flat(4 * quarter)
    written = shared[2 * quarter :]
    begin = quarter if racy else 0
    read = shared[begin : begin + 2 * quarter]
    out = outputs(lambda: gpu.flat(2 * quarter))

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            gpu.sleep()
            torch.mul(source, number + 1, out=written)
        return torch.mul(read, 2, out=out[number])

    return step
