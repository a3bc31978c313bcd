"""Host synchronisations: which call, in which operator and line, and the idle time they caused."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers.host_waits import host_wait_sites, host_waits
from diagnose.readers import read
from diagnose.trace import Table, Trace
from tests.builder import TraceBuilder, build_trace


def table_of(trace: Trace) -> Table:
    table = host_waits(trace)
    assert isinstance(table, Table)
    return table


def names(trace: Trace, table: Table, column: str) -> list[str | None]:
    texts = trace.host_ops.texts("name")
    return [texts[row] if row >= 0 else None for row in table[column].tolist()]


def test_the_case_of_a_wait_in_every_layer(cases: Path) -> None:
    trace = read(cases / "rule-host-sync-per-layer" / "rank00000.trace.json")
    table = table_of(trace)
    assert names(trace, table, "outer_op_row") == ["aten::item"] * 4
    assert int(table["length_ns"].sum()) == 672_000
    # The last wait ends the recording: no GPU is idle after it.
    assert table["idle_ns"].tolist() == [47_000, 47_000, 47_000, 0]
    assert table["num_stalls"].tolist() == [1, 1, 1, 0]


def test_waits_at_the_same_place_are_summed(cases: Path) -> None:
    trace = read(cases / "rule-host-sync-per-layer" / "rank00000.trace.json")
    table = host_wait_sites(trace)
    assert isinstance(table, Table)
    assert table.texts("outer_op") == ["aten::item"]
    sums = [table[name].tolist() for name in ("num_waits", "length_ns", "idle_ns", "num_stalls")]
    assert sums == [[4], [672_000], [141_000], [3]]


def test_places_are_told_apart_and_the_costliest_comes_first() -> None:
    builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
    builder.call("cudaDeviceSynchronize", -40, 20)
    builder.operator("aten::item", 10, 150)
    builder.call("cudaStreamSynchronize", 20, 120)
    builder.kernel("second", 200, 50, launch=190)
    builder.call("cudaDeviceSynchronize", 195, 60)
    table = host_wait_sites(build_trace(builder))
    assert isinstance(table, Table)
    assert table.texts("outer_op") == ["aten::item", None]
    assert table["num_waits"].tolist() == [1, 2]
    assert table["length_ns"].tolist() == [120_000, 80_000]
    assert table["idle_ns"].tolist() == [100_000, 0]


def waiting() -> TraceBuilder:
    builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
    builder.kernel("second", 200, 50, launch=190)
    builder.operator("aten::item", 10, 150)
    builder.operator("aten::_local_scalar_dense", 12, 140)
    return builder


def test_innermost_and_outermost_operator_and_the_line_of_the_user() -> None:
    builder = waiting()
    for name, start, duration in (
        ("train.py(10): main", -100, 500),
        ("train.py(42): log_loss", 5, 160),
        ("/usr/lib/python3.11/site-packages/torch/_tensor.py(9): item", 6, 158),
        ("<built-in method item of Tensor object>", 8, 155),
    ):
        builder.operator(name, start, duration, category="python_function")
    builder.call("cudaStreamSynchronize", 20, 120)
    trace = build_trace(builder)
    table = table_of(trace)
    assert names(trace, table, "inner_op_row") == ["aten::_local_scalar_dense"]
    assert names(trace, table, "outer_op_row") == ["aten::item"]
    assert names(trace, table, "python_row") == ["train.py(42): log_loss"]
    assert table.texts("name") == ["cudaStreamSynchronize"]
    assert table["length_ns"].tolist() == [120_000]
    assert table["idle_ns"].tolist() == [100_000]


def test_without_operators_around_it_nothing_is_made_up() -> None:
    builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
    builder.call("cudaDeviceSynchronize", 20, 120)
    table = table_of(build_trace(builder))
    assert not table.known("inner_op_row").any()
    assert not table.known("outer_op_row").any()
    assert not table.known("python_row").any()
    assert table["idle_ns"].tolist() == [0]


def test_a_wait_with_work_queued_costs_nothing() -> None:
    builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
    builder.kernel("second", 101, 200, launch=-40)
    builder.call("cudaEventSynchronize", 20, 85)
    builder.kernel("third", 302, 50, launch=110)
    table = table_of(build_trace(builder))
    assert table["length_ns"].tolist() == [85_000]
    assert table["idle_ns"].tolist() == [0]


@pytest.mark.parametrize(("duration", "waits"), [(60, 1), (5, 0)])
def test_a_blocking_copy_from_the_gpu_is_a_wait(duration: float, waits: int) -> None:
    """The copy runs from 100 to 140; a call that returns at 155 waited for it, at 100 not."""
    builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
    correlation = builder.call("cudaMemcpy", 95, duration)
    builder.copy("DtoH", 100, 40, correlation=correlation)
    assert len(table_of(build_trace(builder))) == waits


def test_a_driver_call_within_a_runtime_call_counts_once() -> None:
    builder = waiting()
    builder.call("cudaStreamSynchronize", 20, 120)
    builder.call("cuStreamSynchronize", 25, 100)
    table = table_of(build_trace(builder))
    assert table.texts("name") == ["cudaStreamSynchronize"]
    assert table["idle_ns"].tolist() == [100_000]


def test_queries_do_not_wait() -> None:
    builder = waiting()
    builder.call("cudaEventQuery", 20, 120)
    assert len(table_of(build_trace(builder))) == 0


def test_without_calls_it_says_what_to_record() -> None:
    answer = host_waits(build_trace(TraceBuilder().kernel("only", 0, 10)))
    assert isinstance(answer, Unavailable)
    assert "ProfilerActivity.CPU" in answer.remedy


def test_eighteen_items_are_found_in_the_recording(recordings: Path) -> None:
    trace = read(recordings / "host_sync" / "rank00000.trace.json.gz")
    table = table_of(trace)
    items = [name == "aten::item" for name in names(trace, table, "outer_op_row")]
    # `.item()` once a layer: six layers, three steps.
    assert sum(items) == 18
    # The wait is forty milliseconds, the loss not three: waiting is not losing.
    wait, idle = int(table["length_ns"][items].sum()), int(table["idle_ns"][items].sum())
    assert wait > 10 * idle > 20_000_000
