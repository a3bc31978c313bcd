"""Launches, steps and devices of GPU operations."""

from __future__ import annotations

import numpy as np

from diagnose.schema import NO_ROW, Detail
from diagnose.trace import Trace
from tests.builder import TraceBuilder, build_trace


def step_numbers(trace: Trace) -> list[int | None]:
    numbers = trace.steps["number"].tolist()
    return [numbers[row] if row >= 0 else None for row in trace.gpu_ops["step_row"].tolist()]


def test_an_operation_belongs_to_the_step_in_which_it_was_launched() -> None:
    builder = TraceBuilder(rank=0).step(7, 0, 100).step(8, 100, 100)
    builder.kernel("late", 250, 10, launch=50)
    builder.kernel("other_thread", 270, 10, launch=99.999, thread=9)
    builder.kernel("on_the_boundary", 290, 10, launch=100)
    builder.kernel("after_all", 310, 10, launch=200)
    builder.kernel("before_the_window", 5, 10)
    trace = build_trace(builder)
    names = trace.gpu_ops.texts("name")
    found = dict(zip(names, step_numbers(trace), strict=True))
    assert found == {
        "late": 7,
        "other_thread": 7,
        "on_the_boundary": 8,
        "after_all": None,
        "before_the_window": None,
    }


def test_launch_row_points_at_the_call_with_the_same_correlation() -> None:
    builder = TraceBuilder(rank=0)
    builder.kernel("second", 60, 5, launch=50)
    builder.kernel("first", 30, 5, launch=20)
    trace = build_trace(builder)
    rows = trace.gpu_ops["launch_row"]
    assert trace.gpu_ops.texts("name") == ["first", "second"]
    assert (trace.launches["start_ns"][rows] - 5_000_000_000).tolist() == [20_000, 50_000]
    assert (trace.launches["correlation"][rows] == trace.gpu_ops["correlation"]).all()


def test_operations_of_one_graph_share_a_launch() -> None:
    builder = TraceBuilder(rank=0).step(1, 0, 50)
    graph = builder.call("cudaGraphLaunch", 10)
    for start in (20, 30, 40):
        builder.kernel("node", start, 10, correlation=graph)
    trace = build_trace(builder)
    assert trace.gpu_ops["launch_row"].tolist() == [0, 0, 0]
    assert step_numbers(trace) == [1, 1, 1]


def test_zero_is_no_correlation_id() -> None:
    builder = TraceBuilder(rank=0)
    builder.call("cudaLaunchKernel", 0, correlation=0)
    builder.kernel("gemm", 20, 10, correlation=0)
    assert build_trace(builder).gpu_ops["launch_row"].tolist() == [NO_ROW]


def test_a_launching_call_is_preferred_over_another_with_the_same_id() -> None:
    builder = TraceBuilder(rank=0)
    builder.call("cudaEventRecord", 5, correlation=77)
    builder.call("cudaLaunchKernel", 10, correlation=77)
    builder.call("cuLaunchKernel", 11, correlation=77)
    builder.kernel("gemm", 20, 10, correlation=77)
    trace = build_trace(builder)
    (row,) = trace.gpu_ops["launch_row"].tolist()
    assert trace.launches.texts("name")[row] == "cudaLaunchKernel"


def test_external_id_is_taken_from_the_launch_if_the_operation_has_none() -> None:
    builder = TraceBuilder(rank=0)
    parent = builder.operator("aten::mm", 0, 20)
    call = builder.call("cudaLaunchKernel", 5, parent=parent)
    builder.kernel("gemm", 20, 10, correlation=call)
    trace = build_trace(builder)
    assert trace.gpu_ops["external_id"].tolist() == [parent]


def test_without_launches_nothing_is_tied() -> None:
    builder = TraceBuilder(rank=0).step(1, 0, 50).kernel("gemm", 10, 10, launch=5)
    trace = build_trace(builder, detail=Detail.GPU)
    assert len(trace.launches) == 0
    assert trace.gpu_ops["launch_row"].tolist() == [NO_ROW]
    assert trace.gpu_ops["step_row"].tolist() == [NO_ROW]
    assert len(trace.steps) == 1


def test_the_same_mark_written_twice_is_one_step() -> None:
    builder = TraceBuilder(rank=0)
    for number, start in ((5, 0), (6, 100)):
        builder.operator(f"ProfilerStep#{number}", start + 1, 98)
        builder.operator(f"ProfilerStep#{number}", start + 2, 90, category="python_function")
        builder.step(number, start, 100)
        builder.step(number, start + 0.5, 99, thread=9)
    trace = build_trace(builder)
    assert trace.steps["number"].tolist() == [5, 6]
    assert (trace.steps["end_ns"] - trace.steps["start_ns"]).tolist() == [100_000, 100_000]


def test_marks_of_old_versions_are_operators() -> None:
    builder = TraceBuilder(rank=0)
    builder.operator("ProfilerStep#3", 0, 10)
    builder.operator("ProfilerStep#4", 10, 10)
    builder.operator("NotProfilerStep#4", 10, 10)
    builder.operator("ProfilerStep#", 10, 10)
    assert build_trace(builder).steps.texts("name") == ["ProfilerStep#3", "ProfilerStep#4"]


def test_a_number_may_come_again_later() -> None:
    builder = TraceBuilder(rank=0).step(0, 0, 10).step(0, 10, 10).step(0, 30, 10)
    assert build_trace(builder).steps["number"].tolist() == [0, 0, 0]


def test_of_nested_marks_the_inner_one_counts() -> None:
    builder = TraceBuilder(rank=0).step(1, 0, 100).step(2, 20, 20)
    for name, launch in (("outer", 10), ("inner", 30), ("outer again", 50)):
        builder.kernel(name, 200 + launch, 5, launch=launch)
    assert step_numbers(build_trace(builder)) == [1, 2, 1]


def test_devices_are_kept_apart_and_said() -> None:
    builder = TraceBuilder(rank=0)
    builder.kernel("on_one", 0, 10, device=1).kernel("on_zero", 5, 10, device=0)
    trace = build_trace(builder)
    assert [gpu.device for gpu in trace.gpus] == [0, 1]
    assert trace.gpu_ops.texts("name") == ["on_zero", "on_one"]
    (note,) = [note for note in trace.notes if note.code == "several-devices"]
    assert (note.count, note.severity) == (2, "info")


def test_a_missing_device_comes_from_the_process_else_is_doubted() -> None:
    builder = TraceBuilder(rank=0)
    for pid in (3, "gpu", 99_999_999):
        builder.event("kernel", "gemm", 0, 10, pid=pid, tid=7, args={"stream": 7, "correlation": 1})
    trace = build_trace(builder)
    assert trace.gpu_ops["device"].tolist() == [0, 0, 3]
    (note,) = [note for note in trace.notes if note.code == "device-unknown"]
    assert (note.count, note.severity) == (2, "warning")


def test_every_table_is_in_the_order_of_its_schema_and_ids_are_unique() -> None:
    rng = np.random.default_rng(7)
    builders = []
    for rank in range(3):
        builder = TraceBuilder(rank=rank, pid=4000 + rank)
        for _ in range(60):
            start, launch = rng.integers(0, 900, 2).tolist()
            builder.kernel(
                "gemm",
                start,
                1,
                stream=start % 5,
                device=start % 2,
                launch=launch,
                thread=start % 3,
            )
            builder.operator("aten::mm", start, 3, thread=9 - start % 7)
            builder.sync("Stream Wait Event", launch, 1, stream=7)
        builders.append(builder)
    trace = build_trace(*builders)
    for table in (trace.gpu_ops, trace.host_ops, trace.launches, trace.syncs):
        rows = list(zip(*(table[name].tolist() for name in table.schema.order), strict=True))
        assert rows == sorted(rows)
        assert len(set(table["op_id"].tolist())) == len(table) >= 180
