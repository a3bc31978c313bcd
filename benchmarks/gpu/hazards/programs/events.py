"""Events that stand for something else than the access that has to come first."""

from __future__ import annotations

import time

import torch

from benchmarks.gpu.hazards.gpu import Gpu
from benchmarks.gpu.hazards.program import Step, outputs


def event_recorded_too_early(gpu: Gpu, racy: bool) -> Step:
    """The event is recorded before the kernel it should stand for."""
    side, event = gpu.stream(), gpu.event()
    source, shared = gpu.square(1), gpu.square()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            if racy:
                event.record(side)
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
            if not racy:
                event.record(side)
        gpu.current().wait_event(event)
        return torch.mul(shared, 2, out=out[number])

    return step


def event_waited_by_wrong_stream(gpu: Gpu, racy: bool) -> Step:
    """The wait is there, but in a stream that does not read."""
    producer, consumer, bystander = gpu.stream(), gpu.stream(), gpu.stream()
    event = gpu.event()
    source, shared, other = gpu.square(1), gpu.square(), gpu.square()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(producer):
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
            event.record(producer)
        (bystander if racy else consumer).wait_event(event)
        with gpu.on(bystander):
            other.add_(1)
        with gpu.on(consumer):
            return torch.mul(shared, 2, out=out[number])

    return step


def one_buffer_too_few(gpu: Gpu, racy: bool) -> Step:
    """A ring meant for two buffers has one: the producer runs ahead into what is being read."""
    chunks, count = 4, 1 if racy else 2
    side = gpu.stream()
    source, buffers = gpu.square(1), [gpu.square() for _ in range(count)]
    filled = [gpu.event() for _ in range(chunks)]
    consumed = [gpu.event() for _ in range(chunks)]
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        for chunk in range(chunks):
            buffer = buffers[chunk % count]
            with gpu.on(side):
                if chunk >= 2:
                    side.wait_event(consumed[chunk - 2])
                torch.mul(source, number * chunks + chunk + 1, out=buffer)
                filled[chunk].record(side)
            gpu.current().wait_event(filled[chunk])
            gpu.sleep(0.5)
            out[number].add_(buffer)
            consumed[chunk].record(gpu.current())
        return out[number]

    return step


def event_not_polled(gpu: Gpu, racy: bool) -> Step:
    """The host orders two streams by asking an event until it has happened."""
    side, event = gpu.stream(), gpu.event()
    source, shared = gpu.square(1), gpu.square()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
            event.record(side)
        while not racy and not event.query():
            time.sleep(0.002)
        return torch.mul(shared, 2, out=out[number])

    return step
