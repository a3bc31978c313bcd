"""Five states fill a window and a step exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analyzers.breakdown import BREAKDOWN, breakdown
from diagnose.schema import NO_ROW, Detail
from tests.builder import TraceBuilder, build_trace

STATES = (
    "compute_only_ns",
    "overlapped_ns",
    "exposed_communication_ns",
    "memory_only_ns",
    "idle_ns",
)


def states(table, row: int) -> list[int]:
    return [int(table[name][row]) for name in STATES]


def test_a_step_is_divided_where_it_ran_and_not_where_it_was_launched():
    builder = TraceBuilder(rank=0).step(1, 0, 50).step(2, 50, 50)
    builder.kernel("gemm", 100, 100, launch=10)  # step 1 ends at 200
    builder.collective("allreduce", 180, 40, launch=60)  # [180,220) of step 2
    builder.kernel("gemm", 210, 20, launch=61)  # [210,230)
    builder.copy("HtoD", 240, 10, launch=62)  # [240,250)
    table = breakdown(build_trace(builder))
    assert table["step_row"].tolist() == [NO_ROW, 1]
    # Window [100,250): compute only [100,180) and [220,230), both [180,200) and [210,220).
    assert states(table, 0) == [90_000, 30_000, 10_000, 10_000, 10_000]
    # Step 2 is [200,250): both [210,220), exposed [200,210), compute [220,230), copy, idle.
    assert states(table, 1) == [10_000, 10_000, 10_000, 10_000, 10_000]


def test_steps_need_launches_and_windows_do_not():
    builder = TraceBuilder(rank=0).step(1, 0, 50).kernel("gemm", 0, 10, launch=1)
    table = breakdown(build_trace(builder, detail=Detail.GPU))
    assert table["step_row"].tolist() == [NO_ROW]
    assert states(table, 0) == [10_000, 0, 0, 0, 0]


def test_a_trace_without_gpu_work_has_no_rows():
    table = breakdown(build_trace(TraceBuilder(rank=0).step(1, 0, 10)))
    assert len(table) == 0
    assert table.schema is BREAKDOWN


ops = st.lists(
    st.tuples(st.sampled_from("kcm"), st.integers(0, 60), st.integers(1, 25)),
    min_size=1,
    max_size=12,
)


@given(ops)
def test_the_states_of_a_window_are_what_counting_instants_gives(drawn):
    builder = TraceBuilder(rank=0)
    running = {kind: np.zeros(100, bool) for kind in "kcm"}
    for stream, (kind, start, duration) in enumerate(drawn):
        running[kind][start : start + duration] = True
        if kind == "k":
            builder.kernel("gemm", start, duration, stream=stream)
        elif kind == "c":
            builder.collective("allreduce", start, duration, stream=stream)
        else:
            builder.copy("HtoD", start, duration, stream=stream)
    low = min(start for _, start, _ in drawn)
    high = max(start + duration for _, start, duration in drawn)
    window = np.zeros(100, bool)
    window[low:high] = True
    compute, communication, memory = running["k"], running["c"], running["m"]
    expected = [
        compute & ~communication,
        compute & communication,
        communication & ~compute,
        memory & ~compute & ~communication,
        window & ~compute & ~communication & ~memory,
    ]
    table = breakdown(build_trace(builder))
    assert states(table, 0) == [1000 * int(state.sum()) for state in expected]
