"""Small recordings of three steps whose model can be worked out by hand. Times in us."""

from __future__ import annotations

from dataclasses import replace

from diagnose.trace import HostIntervals, Observer, Trace
from tests.builder import MAIN_THREAD, TraceBuilder, build_trace
from tests.unit.analyzers.path_traces import stream_wait

BACKWARD = MAIN_THREAD + 58


def launch_bound(steps: int = 3, builder: TraceBuilder | None = None) -> TraceBuilder:
    """Steps of 100: two kernels that the GPU waits for, 20 and 10 long."""
    builder = builder or TraceBuilder()
    for step in range(steps):
        t = 100 * step
        builder.step(step, t, 100)
        builder.kernel("first", t + 16, 20, launch=t + 10)
        builder.kernel("second", t + 57, 10, launch=t + 50)
    return builder


def two_streams() -> TraceBuilder:
    """Steps of 200 on the GPU, 30 on the host: compute 100, all-reduce 50, optimizer 40."""
    builder = TraceBuilder()
    for step in range(3):
        host, gpu = 30 * step, 200 * step
        builder.step(step, host, 30)
        builder.kernel("backward", gpu + 10, 100, launch=host + 2)
        stream_wait(builder, host + 5, stream=20)
        builder.collective("allreduce", gpu + 113, 50, launch=host + 8)
        stream_wait(builder, host + 11, stream=7)
        builder.kernel("optimizer", gpu + 166, 40, launch=host + 14)
    return builder


def late_rank() -> list[TraceBuilder]:
    """Steps of 233: rank 1 computes 180, rank 0 100; then an all-reduce of 50 after 1."""
    builders = []
    for rank, compute in enumerate((100, 180)):
        builder = TraceBuilder(rank, 2)
        builder.top["host_name"] = "node-a"
        for step in range(3):
            host, gpu = 20 * step, 100 + 233 * step
            builder.step(step, host, 20)
            builder.kernel("backward", gpu, compute, launch=host + 2)
            stream_wait(builder, host + 5, stream=20)
            begin, end = gpu + compute + 1, gpu + 231
            builder.collective("allreduce", begin, end - begin, launch=host + 8, elements=1 << 20)
            stream_wait(builder, host + 11, stream=7)
        builders.append(builder)
    return builders


def synchronous() -> TraceBuilder:
    """Steps of 131: a kernel of 100, the host waits for it and then takes 20."""
    builder = TraceBuilder()
    for step in range(3):
        t = 131 * step
        builder.step(step, t - 1, 131)
        builder.kernel("forward", t + 5, 100, launch=t)
        builder.call("cudaDeviceSynchronize", t + 4, 107)
    return builder


def backward_thread(*, main_busy: bool = False) -> TraceBuilder:
    """Steps of 100: forward and optimizer on one thread, backward on another.

    ``main_busy``: the main thread is inside an operator when the backward call returns.
    """
    builder = TraceBuilder()
    for step in range(3):
        t = 100 * step
        builder.step(step, t, 100)
        builder.operator("aten::mm", t + 8, 5)
        builder.kernel("forward", t + 15, 10, launch=t + 10)
        builder.operator("MmBackward0", t + 38, 5, thread=BACKWARD)
        builder.operator("aten::mm", t + 39, 4, thread=BACKWARD)
        builder.kernel("backward", t + 46, 10, launch=t + 40, thread=BACKWARD)
        if main_busy:
            builder.operator("aten::busy", t + 35, 20)
        builder.operator("aten::add_", t + 68, 5)
        builder.kernel("optimizer", t + 75, 5, launch=t + 70)
    return builder


QUEUE = 1022
KERNELS = 700


def full_queue() -> TraceBuilder:
    """Steps of 700 kernels of 10, launched every 4 until the launch queue is full.

    A call returns 11 after the kernel 1022 before its own has ended.
    """
    builder = TraceBuilder()
    host, ends = 0, [5]
    for step in range(4):
        begin = host
        for _ in range(KERNELS):
            number = len(ends) - 1
            start = max(ends[-1], host + 5)
            ends.append(start + 10)
            ahead = ends[number - QUEUE + 1] if number >= QUEUE else 0
            back = ahead + 11 if ahead > host else host + 2
            builder.gpu(
                "kernel", "step", start, 10,
                correlation=builder.call("cudaLaunchKernel", host, back - host),
            )  # fmt: skip
            host = back + 2
        builder.step(step, begin, host - begin)
    return builder


def observed(builder: TraceBuilder, before_us: float, spread_us: float = 0) -> Trace:
    """A trace whose recorder saw the job's own steps before the window."""
    trace = build_trace(builder)
    seen = Observer(
        before_ns=round(before_us * 1000),
        num_before=10,
        before_spread_ns=round(spread_us * 1000),
    )
    sources = tuple(replace(source, host_intervals=HostIntervals()) for source in trace.sources)
    return replace(trace, observer=seen, sources=sources)
