"""Streams that do not wait for each other."""

from __future__ import annotations

import torch

from benchmarks.gpu.hazards.gpu import Gpu
from benchmarks.gpu.hazards.program import Step, outputs


def consumer_does_not_wait(gpu: Gpu, racy: bool) -> Step:
    """One side stream writes, another reads."""
    producer, consumer = gpu.stream(), gpu.stream()
    source, shared, same = gpu.square(1), gpu.square(), gpu.identity()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(producer):
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
        if not racy:
            consumer.wait_stream(producer)
        with gpu.on(consumer):
            return torch.mm(same, shared, out=out[number])

    return step


def input_not_ready(gpu: Gpu, racy: bool) -> Step:
    """A side stream reads what the default stream still makes."""
    side = gpu.stream()
    source, batch, same = gpu.square(1), gpu.square(), gpu.identity()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        gpu.sleep()
        torch.mul(source, number + 1, out=batch)
        if not racy:
            side.wait_stream(gpu.current())
        with gpu.on(side):
            return torch.mm(same, batch, out=out[number])

    return step


def output_used_too_early(gpu: Gpu, racy: bool) -> Step:
    """The default stream waits for nothing before it uses what a side stream computes."""
    side = gpu.stream()
    source, batch, hidden, same = gpu.square(1), gpu.square(), gpu.square(), gpu.identity()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        torch.mul(source, number + 1, out=batch)
        side.wait_stream(gpu.current())
        with gpu.on(side):
            gpu.sleep()
            torch.mm(same, batch, out=hidden)
        if not racy:
            gpu.current().wait_stream(side)
        return torch.mul(hidden, 2, out=out[number])

    return step


def overwritten_while_read(gpu: Gpu, racy: bool) -> Step:
    """The default stream overwrites what a side stream still reads."""
    side = gpu.stream()
    source, weights, same = gpu.square(1), gpu.square(), gpu.identity()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        torch.mul(source, number + 1, out=weights)
        side.wait_stream(gpu.current())
        with gpu.on(side):
            gpu.sleep()
            torch.mm(same, weights, out=out[number])
        if not racy:
            gpu.current().wait_stream(side)
        weights.fill_(-1)
        return out[number]

    return step


def two_writers(gpu: Gpu, racy: bool) -> Step:
    """Two streams write one buffer; the later one in the program must win."""
    side = gpu.stream()
    source, shared = gpu.square(1), gpu.square()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
        if not racy:
            gpu.current().wait_stream(side)
        shared.fill_(-1 - number)
        gpu.current().wait_stream(side)
        return torch.mul(shared, 2, out=out[number])

    return step


def wait_missing_every_second_step(gpu: Gpu, racy: bool) -> Step:
    """The wait is skipped in odd steps."""
    side = gpu.stream()
    source, shared = gpu.square(1), gpu.square()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(side):
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
        if not (racy and number % 2):
            gpu.current().wait_stream(side)
        return torch.mul(shared, 2, out=out[number])

    return step


def graph_beside_eager(gpu: Gpu, racy: bool) -> Step:
    """The static input of a CUDA graph is overwritten while a side stream replays it."""
    side = gpu.stream()
    source, static, result = gpu.square(1), gpu.square(), gpu.square()
    out = outputs(gpu.square)

    def captured() -> None:
        gpu.sleep()
        torch.mul(static, 2, out=result)

    graph = gpu.graph(captured)

    def step(number: int) -> torch.Tensor:
        torch.mul(source, number + 1, out=static)
        side.wait_stream(gpu.current())
        with gpu.on(side):
            graph.replay()
        if not racy:
            gpu.current().wait_stream(side)
        static.fill_(-1)
        gpu.current().wait_stream(side)
        return out[number].copy_(result)

    return step


def broken_chain(gpu: Gpu, racy: bool) -> Step:
    """The reader waits for a stream that should itself have waited for the writer."""
    writer, between, reader = gpu.stream(), gpu.stream(), gpu.stream()
    source, shared, other = gpu.square(1), gpu.square(), gpu.square()
    out = outputs(gpu.square)

    def step(number: int) -> torch.Tensor:
        with gpu.on(writer):
            gpu.sleep()
            torch.mul(source, number + 1, out=shared)
        if not racy:
            between.wait_stream(writer)
        with gpu.on(between):
            other.add_(1)
        reader.wait_stream(between)
        with gpu.on(reader):
            return torch.mul(shared, 2, out=out[number])

    return step
