"""Small jobs whose reports can be worked out by hand. Times in microseconds."""

from __future__ import annotations

from diagnose.readers.assemble import Origin
from diagnose.trace import HostIntervals, Trace
from tests.builder import TraceBuilder, build_trace


def _rank(rank: int, late: int = 0) -> TraceBuilder:
    """Three steps of 100 us; the GPU runs 20 us behind the host.

    In each step n from t = 100 n: gemm [t+20, t+80+late), all-reduce of 2 MiB
    [t+60+late, t+110), copy [t+110, t+115). Hidden: 20. Exposed: 30 - late. A
    gemm from before the window runs [5, 15).
    """
    builder = TraceBuilder(rank=rank, world_size=2)
    builder.top["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    builder.kernel("gemm", 5, 10)
    for step in range(3):
        t = 100 * step
        builder.step(7 + step, t, 100)
        builder.kernel("gemm", t + 20, 60 + late, launch=t + 1)
        builder.collective("allreduce", t + 60 + late, 50 - late, elements=2**20, launch=t + 4)
        builder.copy("HtoD", t + 110, 5, launch=t + 7)
    return builder


def two_ranks(late: int = 10) -> Trace:
    """Rank 1 computes 10 us (``late``) longer, so its all-reduce starts later and is shorter.

    Window [5, 315) = 310. Compute 10 + 3 x 60 = 190 and 220; communication 150
    and 120; hidden 60 on both, 40 and 50 % of it, 31.6 and 27.3 % of compute; exposed
    90 and 60; idle [15,20), [115,120), [215,220) = 15; copies alone 15.
    Step times of 8 and 9: 100, of which 5 idle and 5 copy.
    """
    return build_trace(_rank(0), _rank(1, late=late))


def unknown_ranks() -> Trace:
    """Two files that do not say whose they are, without step marks and collectives."""
    first = TraceBuilder().kernel("gemm", 0, 60).copy("DtoH", 70, 10)
    second = TraceBuilder().kernel("gemm", 0, 30)
    return build_trace(first, second)


def many_ranks() -> Trace:
    """40 ranks; rank r computes 100 us and communicates r + 1 us alone after it."""
    builders = []
    for rank in range(40):
        builder = TraceBuilder(rank=rank, world_size=40).step(1, 0, 50).step(2, 50, 50)
        builder.step(3, 100, 50)
        for step in range(3):
            t = 200 * step + 10
            builder.kernel("gemm", t, 100, launch=50 * step + 1)
            builder.collective("allreduce", t + 100, rank + 1, group_size=40, launch=50 * step + 3)
        builders.append(builder)
    return build_trace(*builders)


def class_in_doubt() -> Trace:
    """A kernel that computes and reduces in one: compute, but 40 us of it are in doubt."""
    builder = TraceBuilder(rank=0, world_size=1).kernel("gemm_reduce_scatter_kernel", 0, 40)
    return build_trace(builder.collective("allreduce", 30, 20))


def no_gpu_work() -> Trace:
    """The profiler ran without GPU activities."""
    builder = TraceBuilder(rank=0, world_size=1).step(1, 0, 50).step(2, 50, 50).step(3, 100, 50)
    builder.operator("aten::mm", 5, 20)
    return build_trace(builder)


CPU_BUILD = {"torch": "2.13.0+cpu", "cuda": None, "gpu": None}


def on_cpu() -> Trace:
    """Two ranks that nobody gave a GPU: steps of 10, 12 and 14 ms, on rank 1 of 11, 15 and 16 ms.

    Outside of the window; in it they are longer. Medians 12 and 15 ms: 25 % more.
    """
    builders, origins = [], []
    for rank, times in enumerate(((10, 12, 14), (11, 15, 16))):
        builder = TraceBuilder(rank=rank, world_size=2).step(1, 0, 20_000)
        for at in range(rank + 2):
            builder.operator("aten::mm", 100 * at, 50)
        ns = tuple(1_000_000 * ms for ms in times)
        intervals = HostIntervals(before=ns[:2], within=(20_000_000,), after=ns[2:])
        builders.append(builder)
        origins.append(Origin(environment=CPU_BUILD, host_intervals=intervals))
    return build_trace(*builders, origins=origins)


HOSTILE = "[red]\x1b[31m<script>alert(1)</script>\n| evil |\u202e\u200f" + "x" * 8000


def hostile_names() -> Trace:
    """Names of everything that a report shows try to break out of it."""
    builder = TraceBuilder(rank=0, world_size=1)
    builder.top["deviceProperties"] = [{"id": 0, "name": HOSTILE}]
    builder.event("user_annotation", f"ProfilerStep#1 {HOSTILE}", 0, 50)
    builder.kernel(HOSTILE, 0, 100, launch=1)
    builder.collective("allreduce", 80, 200, group=HOSTILE, launch=2)
    return build_trace(builder)


def gpu_is_the_limit() -> Trace:
    """One rank: per step gemm 60 us and an all-reduce of 40 us after it on the same stream.

    The host is done with a step after 10 us and runs ahead; the GPU works without a pause
    from 20 us on, so a step takes 100 us, and what the profiler cost the host matters to
    nothing. Without communication a step takes 60 us; the host needs at most 10.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(6):
        host, gpu = 10 * step, 100 * step + 20
        builder.step(step + 1, host, 10)
        builder.kernel("gemm", gpu, 60, launch=host + 1)
        builder.collective("allreduce", gpu + 60, 40, stream=7, elements=2**20, launch=host + 4)
    return build_trace(builder)


def costly_overlap() -> Trace:
    """Overlap that costs more than it hides: gemm 100 us alone, 250 beside an all-reduce of 100.

    Five steps: gemm alone [t+10, t+110), gemm [t+200, t+450) with the all-reduce [t+200, t+300)
    beside it, so each loses 150 us while 100 us of communication are hidden. The window
    [10, 2450) without contention is 2440 - 5 x 150 = 1690, serial 1690 + 500 = 2190: 250 less
    than it was. Contention ate 750 of the 500 that ideal overlap gains, 150 %.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(5):
        t = 500 * step
        builder.step(step, t, 500)
        builder.kernel("gemm", t + 10, 100, launch=t + 1)
        builder.collective("allreduce", t + 200, 100, launch=t + 2)
        builder.kernel("gemm", t + 200, 250, launch=t + 3)
    return build_trace(builder)
