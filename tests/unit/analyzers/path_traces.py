"""Traces whose times follow from launches, streams, events and waits, and their paths."""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnose.analysis import Unavailable
from diagnose.analyzers.critical_path import critical_path
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.trace import Table, Trace
from tests.builder import TraceBuilder, build_trace


def table_of(answer: Table | Unavailable) -> Table:
    assert isinstance(answer, Table)
    return answer


def path_of(trace: Trace, source: int = 0, **options: Any) -> list[tuple[str, float]]:
    """(class, length in us) of every stretch of one source's path, in order of time."""
    path = table_of(critical_path(trace, **options))
    mine = path["source"] == source
    return [
        (PathClass(kind).name, length / 1000)
        for kind, length in zip(
            path["path_class"][mine].tolist(), path["length_ns"][mine].tolist(), strict=True
        )
    ]


def by_class(trace: Trace) -> dict[str, float]:
    sums: dict[str, float] = {}
    for kind, length in path_of(trace):
        sums[kind] = sums.get(kind, 0) + length
    return sums


def stream_wait(
    builder: TraceBuilder, at: float, *, stream: int, record: float | None = None, event: int = 5
) -> TraceBuilder:
    """``stream`` waits for an event; ``record``: when it was recorded, if the trace says."""
    args: dict[str, Any] = {"cuda_sync_kind": "Stream Wait Event", "stream": stream, "device": 0}
    args |= {"wait_on_cuda_event_id": event, "wait_on_stream": -1}
    args["wait_on_cuda_event_record_corr_id"] = (
        -1 if record is None else builder.call("cudaEventRecord", record, 1)
    )
    args["correlation"] = builder.call("cudaStreamWaitEvent", at, 1)
    builder.event("cuda_sync", "Stream Wait Event", at, 1, pid=0, tid=stream, args=args)
    return builder


def jobs(late_us: float = 200, *, host: str = "node-a") -> list[TraceBuilder]:
    """Two ranks, eight all-reduces of 50 us each; rank 1 comes late to every one."""
    builders = []
    for rank in range(2):
        builder = TraceBuilder(rank, 2)
        builder.top["host_name"] = host
        at = 0.0
        for number in range(8):
            compute = 100 + (late_us if rank == 1 else 0)
            builder.kernel("gemm", at, compute, launch=-200 + number * 10)
            stream_wait(builder, -199 + number * 10, stream=20)
            arrival = at + compute + 1
            end = at + 100 + late_us + 1 + 50
            builder.collective(
                "allreduce",
                arrival,
                end - arrival,
                launch=-196 + number * 10,
                elements=(number + 1) << 20,
            )
            stream_wait(builder, -193 + number * 10, stream=7)
            at = end + 1
        builder.kernel("optimizer", at, 30, launch=-100)
        builders.append(builder)
    return builders


def random_trace(seed: int) -> Trace:
    """Work on three streams whose times follow from launches, order, events and waits."""
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    host, free_at, ended = 0, {7: 0, 8: 0, 20: 0}, [(7, 0)]
    for number in range(40):
        host += int(random.integers(3, 40))
        stream = int(random.choice([7, 8, 20]))
        ready = free_at[stream]
        if random.random() < 0.3:
            other = int(random.choice([s for s in free_at if s != stream]))
            stream_wait(builder, host, stream=stream, event=number)
            ready = max(ready, free_at[other])
            host += 3
        start = max(ready + int(random.integers(0, 4)), host + int(random.integers(4, 9)))
        length = int(random.integers(5, 60))
        if stream == 20:
            builder.collective("allreduce", start, length, launch=host)
        else:
            builder.kernel(f"kernel{number}", start, length, stream=stream, launch=host)
        free_at[stream] = start + length
        ended.append((stream, start + length))
        host += 3
        if random.random() < 0.1:
            # A copy from pageable memory holds the host until (nearly) its end.
            begin = max(free_at[7], host + 5) + 1
            length = int(random.integers(10, 60))
            until = begin + length - int(random.integers(0, 2))
            correlation = builder.call("cudaMemcpyAsync", host, until - host)
            name = "Memcpy HtoD (Pageable -> Device)"
            builder.gpu("gpu_memcpy", name, begin, length, stream=7, correlation=correlation)
            free_at[7] = begin + length
            host = until + 1
        if random.random() < 0.15:
            until = max(free_at.values())
            builder.call("cudaDeviceSynchronize", host, max(until - host, 0) + 4)
            host = max(until, host) + 5
    return build_trace(builder)


def disordered_jobs(seed: int) -> Trace:
    """Ranks whose launches, waits and clocks contradict each other by some 20 us, as real ones do.

    Kernels may begin before their launch, events be recorded after the wait, and
    collectives not end together.
    """
    random = np.random.default_rng(seed)
    num_ranks = int(random.integers(2, 5))
    builders = [TraceBuilder(rank, num_ranks) for rank in range(num_ranks)]
    for builder in builders:
        builder.top["host_name"] = f"node-{random.integers(0, 3)}"
        builder.top["baseTimeNanoseconds"] += int(random.choice([0, 3000, 10**6, -(10**7)]))
    at = np.zeros(num_ranks)
    for number in range(int(random.integers(3, 12))):
        compute = random.integers(5, 300, num_ranks)
        arrival = at + compute + 1
        end = arrival.max() + int(random.integers(5, 80))
        stream = int(random.choice([20, 21]))
        for rank, builder in enumerate(builders):
            wrong = float(random.integers(-20, 20)) if random.random() < 0.3 else 0.0
            launch = float(at[rank]) - float(random.integers(5, 400)) + wrong
            begin, left = float(arrival[rank]), float(end - arrival[rank] + random.integers(-2, 3))
            builder.kernel("gemm", float(at[rank]), int(compute[rank]), launch=launch)
            if random.random() < 0.7:
                record = launch + 0.5 if random.random() < 0.3 else None
                stream_wait(builder, launch + 1, stream=stream, record=record)
            builder.collective(
                "allreduce", begin, left, stream=stream, launch=launch + 2,
                elements=(number + 1) << 20,
            )  # fmt: skip
            if random.random() < 0.5:
                aside = float(random.integers(1, 100))
                builder.kernel("aside", begin + 1, aside, stream=9, launch=launch + 3)
            if random.random() < 0.7:
                stream_wait(builder, launch + 3, stream=7)
            at[rank] = end + 1 + int(random.integers(0, 100))
    for rank, builder in enumerate(builders):
        builder.kernel("optimizer", float(at[rank]), 30, launch=float(at[rank]) - 20)
    return build_trace(*builders)
