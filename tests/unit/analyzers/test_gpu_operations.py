"""GPU operations by name, with sums worked out by hand. Times in microseconds."""

from __future__ import annotations

from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.schema import Activity
from tests.builder import TraceBuilder, build_trace


def operations(*builders):
    return engine.run(engine.analyzers()["gpu_operations"], build_trace(*builders))


def test_durations_are_summed_over_gpus_and_the_longest_comes_first():
    first = TraceBuilder(rank=0, world_size=2).kernel("relu", 0, 10).kernel("gemm", 10, 30)
    second = TraceBuilder(rank=1, world_size=2).kernel("gemm", 0, 50).copy("HtoD", 60, 10)
    table = operations(first, second)
    assert table.texts("name") == ["gemm", "relu", "Memcpy HtoD (Pinned -> Device)"]
    activities = [Activity.COMPUTE, Activity.COMPUTE, Activity.MEMORY]
    assert table["activity"].tolist() == activities
    assert table["num_ops"].tolist() == [2, 1, 1]
    assert table["kernel_time_ns"].tolist() == [80_000, 10_000, 10_000]
    assert table["mean_ns"].tolist() == [40_000, 10_000, 10_000]
    assert table["longest_ns"].tolist() == [50_000, 10_000, 10_000]
    assert table["kernel_time_pct"].tolist() == [80, 10, 10]


def test_operations_at_the_same_time_both_count():
    table = operations(TraceBuilder().kernel("gemm", 0, 10).kernel("gemm", 0, 10, stream=8))
    assert table["kernel_time_ns"].tolist() == [20_000]


def test_without_gpu_work_it_is_unavailable():
    assert isinstance(operations(TraceBuilder().step(1, 0, 10)), Unavailable)
