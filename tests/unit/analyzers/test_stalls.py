"""Every free interval gets one cause, and the causes sum to idle plus memory-only exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers._idle_causes.causes import Cause, Confidence
from diagnose.analyzers._idle_causes.host_threads import nest
from diagnose.analyzers.stall_sites import stall_sites
from diagnose.analyzers.stalls import stall_causes, stalls
from diagnose.readers import read
from diagnose.schema import Activity
from diagnose.trace import Table, Trace
from tests.builder import TraceBuilder, build_trace

BACKWARD_THREAD = 4300


def found(trace: Trace, **options: tuple[int, int]) -> list[tuple[float, str]]:
    """(length in us, cause) of every interval in order of time."""
    table = stalls(trace, **options)
    assert isinstance(table, Table)
    return [
        (length / 1000, Cause(cause).name)
        for length, cause in zip(table["length_ns"].tolist(), table["cause"].tolist(), strict=True)
    ]


def only(trace: Trace) -> tuple[float, str, str]:
    table = stalls(trace)
    assert isinstance(table, Table)
    assert len(table) == 1
    return (
        int(table["length_ns"][0]) / 1000,
        Cause(table["cause"][0]).name,
        Confidence(table["confidence"][0]).name,
    )


def late(launch: float = 400) -> TraceBuilder:
    """A kernel [0, 100), and one launched at ``launch`` that starts 10 us later: a gap."""
    builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
    return builder.kernel("second", launch + 10, 50, launch=launch)


class TestLateLaunch:
    """The GPU ran dry at 100; the gap of 310 us is looked at from 90 to 400 on the host."""

    def test_between_operators_it_is_python(self) -> None:
        assert only(build_trace(late())) == (310, "PYTHON", "MEDIUM")

    def test_in_an_operator(self) -> None:
        builder = late()
        builder.operator("aten::mul", 50, 360)
        assert only(build_trace(builder)) == (310, "HOST_OP", "HIGH")

    def test_the_larger_share_wins(self) -> None:
        builder = late()
        builder.operator("aten::mul", 90, 100)
        assert only(build_trace(builder))[1] == "PYTHON"
        builder.operator("aten::mul", 190, 60)
        table = stalls(build_trace(builder))
        assert isinstance(table, Table)
        assert Cause(table["cause"][0]).name == "HOST_OP"
        assert table["cause_ns"].tolist() == [160_000]

    def test_in_a_data_loader(self) -> None:
        builder = late()
        span = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        builder.operator(span, 80, 310, category="user_annotation")
        builder.operator("aten::stack", 120, 200)
        assert only(build_trace(builder)) == (310, "DATA_LOADING", "HIGH")

    def test_absent_before_the_first_kernel_of_a_step(self) -> None:
        builder = late()
        builder.step(1, -60, 150).step(2, 90, 400)
        assert only(build_trace(builder)) == (310, "DATA_LOADING", "MEDIUM")

    def test_what_was_copied_out_is_worked_on_before_a_step(self) -> None:
        """The thread is away from 102 to 5000: 1 MiB is a checkpoint, a loss is not."""
        for num_bytes, cause in ((1 << 20, "PYTHON"), (4, "DATA_LOADING")):
            builder = late(5000)
            builder.copy("DtoH", 100, 2, launch=-40, bytes=num_bytes)
            builder.step(1, -60, 150).step(2, 120, 5000)
            table = stalls(build_trace(builder))
            assert isinstance(table, Table)
            causes = {
                length: Cause(cause).name
                for length, cause in zip(table["length_ns"], table["cause"], strict=True)
            }
            assert causes[5_010_000 - 102_000] == cause

    def test_what_was_copied_out_before_other_kernels_does_not_count(self) -> None:
        builder = late(5000)
        builder.copy("DtoH", -30, 2, launch=-45, bytes=1 << 24)
        builder.step(1, -60, 150).step(2, 120, 5000)
        assert [cause for length, cause in found(build_trace(builder)) if length == 4910] == [
            "DATA_LOADING"
        ]

    def test_absent_in_the_middle_of_a_step_is_python(self) -> None:
        builder = late()
        builder.step(1, -60, 550)
        assert only(build_trace(builder)) == (310, "PYTHON", "MEDIUM")

    def test_allocating(self) -> None:
        builder = late()
        builder.operator("aten::empty", 85, 300)
        builder.call("cudaMalloc", 90, 250)
        assert only(build_trace(builder)) == (310, "ALLOCATION", "HIGH")

    def test_collecting_garbage(self) -> None:
        builder = late()
        builder.operator("Python GC", 95, 280, category="python_function")
        builder.operator("<built-in method del>", 100, 200, category="python_function")
        assert only(build_trace(builder)) == (310, "GARBAGE_COLLECTION", "HIGH")

    def test_waiting_for_a_lock(self) -> None:
        builder = late()
        builder.operator(
            "<method 'acquire' of '_thread.lock' objects>", 95, 280, category="python_function"
        )
        assert only(build_trace(builder)) == (310, "LOCK", "HIGH")

    def test_in_a_synchronising_call(self) -> None:
        builder = late()
        builder.operator("aten::item", 20, 370)
        builder.call("cudaStreamSynchronize", 30, 350)
        assert only(build_trace(builder)) == (310, "HOST_SYNC", "HIGH")

    def test_the_wait_in_which_the_gpu_ran_dry_is_the_cause_of_the_work_after_it(self) -> None:
        builder = late()
        builder.call("cudaStreamSynchronize", 30, 80)
        builder.operator("aten::mul", 120, 275)
        table = stalls(build_trace(builder))
        assert isinstance(table, Table)
        assert Cause(table["cause"][0]) == Cause.HOST_SYNC
        # Of the 310 us looked at (90 to 400) the call covers 90 to 110.
        assert table["cause_ns"].tolist() == [20_000]

    def test_a_long_absence_before_a_step_outweighs_the_wait_before_it(self) -> None:
        builder = late(5000)
        builder.step(1, -60, 150).step(2, 120, 5000)
        builder.call("cudaStreamSynchronize", 30, 80)
        assert only(build_trace(builder))[1] == "DATA_LOADING"

    def test_a_thread_that_was_handed_the_work_is_not_blamed_for_waiting(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
        builder.operator("aten::mul", 50, 345)
        builder.kernel("second", 410, 50, launch=400, thread=BACKWARD_THREAD)
        table = stalls(build_trace(builder))
        assert isinstance(table, Table)
        assert Cause(table["cause"][0]) == Cause.HOST_OP
        assert table.texts("thread") == ["4242/4242"]

    def test_what_the_host_did_is_named(self) -> None:
        builder = late()
        builder.operator("aten::item", 20, 370)
        builder.call("cudaStreamSynchronize", 30, 350)
        trace = build_trace(builder)
        table = stalls(trace)
        assert isinstance(table, Table)
        op, call = int(table["host_op_row"][0]), int(table["call_row"][0])
        assert trace.host_ops.texts("name")[op] == "aten::item"
        assert trace.launches.texts("name")[call] == "cudaStreamSynchronize"
        assert table["launch_delay_ns"].tolist() == [10_000]


class TestOnTheGpu:
    """Launched long before: what the operation waited for is on the GPU."""

    @staticmethod
    def early(start: float, *, stream: int = 7) -> TraceBuilder:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-80)
        return builder.kernel("second", start, 50, stream=stream, launch=-70)

    def test_switch_on_a_stream(self) -> None:
        assert only(build_trace(self.early(103))) == (3, "SWITCH", "HIGH")

    def test_wait_for_another_stream(self) -> None:
        assert only(build_trace(self.early(103, stream=9))) == (3, "STREAM_WAIT", "MEDIUM")

    def test_a_long_pause_is_unexplained(self) -> None:
        assert only(build_trace(self.early(300))) == (200, "UNEXPLAINED", "LOW")

    def test_wait_for_a_copy_of_another_stream(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-80)
        builder.copy("HtoD", 50, 60, stream=9, launch=-75)
        builder.kernel("second", 114, 50, launch=-70)
        assert found(build_trace(builder)) == [(10, "COPY_HTOD_PINNED"), (4, "COPY_WAIT")]

    def test_launched_just_before(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-80)
        builder.kernel("second", 104, 50, launch=94)
        assert only(build_trace(builder)) == (4, "LAUNCH_LATENCY", "MEDIUM")

    def test_launch_not_recorded(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100).kernel("second", 140, 50)
        assert only(build_trace(builder)) == (40, "LAUNCHED_BEFORE_WINDOW", "HIGH")

    def test_pause_within_a_graph_replay(self) -> None:
        builder = TraceBuilder()
        replay = builder.call("cudaGraphLaunch", -20, 5)
        builder.kernel("first", 0, 100, correlation=replay)
        builder.kernel("second", 140, 50, correlation=replay)
        assert only(build_trace(builder)) == (40, "GRAPH_PAUSE", "HIGH")

    def test_edges_of_a_given_window(self) -> None:
        builder = TraceBuilder().kernel("only", 0, 100, launch=-20)
        trace = build_trace(builder)
        start = int(trace.gpu_ops["start_ns"][0])
        window = (start - 30_000, start + 150_000)
        assert found(trace, window=window) == [(30, "WINDOW_EDGE"), (50, "WINDOW_EDGE")]


class TestExposedCopies:
    @pytest.mark.parametrize(
        ("name", "cause"),
        [
            ("Memcpy HtoD (Pageable -> Device)", "COPY_HTOD_PAGEABLE"),
            ("Memcpy HtoD (Pinned -> Device)", "COPY_HTOD_PINNED"),
            ("Memcpy HtoD", "COPY_HTOD"),
            ("CopyHostToDevice", "COPY_HTOD"),
            ("Memcpy DtoH (Device -> Pinned)", "COPY_DTOH"),
            ("Memcpy DtoD (Device -> Device)", "COPY_DTOD"),
            ("Memcpy HtoH", "COPY_OTHER"),
        ],
    )
    def test_by_kind(self, name: str, cause: str) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
        builder.gpu("gpu_memcpy", name, 100, 30, launch=-40)
        builder.kernel("second", 130, 20, launch=-30)
        assert found(build_trace(builder)) == [(30, cause)]

    def test_only_the_part_without_compute_counts(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
        builder.gpu("gpu_memset", "Memset (Device)", 90, 30, stream=9, launch=-40)
        builder.copy("DtoH", 110, 40, stream=9, launch=-40)
        builder.kernel("second", 140, 20, launch=-30)
        assert found(build_trace(builder)) == [(20, "FILL"), (20, "COPY_DTOH")]


def test_without_gpu_work_it_says_so() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mm", 0, 10)
    answer = stalls(build_trace(builder))
    assert isinstance(answer, Unavailable)
    assert "no GPU work" in answer.because


def random_trace(seed: int) -> tuple[TraceBuilder, list[tuple[int, int, bool]]]:
    """Random work on three streams, and (start, end, is memory) of it in us."""
    random = np.random.default_rng(seed)
    builder, events = TraceBuilder(), []
    builder.step(1, 0, 200).step(2, 200, 200).step(3, 400, 300)
    at, free_at = 0, {7: 0, 8: 0, 20: 0}
    for number in range(60):
        length, stream = int(random.integers(1, 14)), int(random.choice([7, 8, 20]))
        at = max(at + int(random.integers(0, 18)), free_at[stream])
        free_at[stream] = at + length
        launch = at - int(random.integers(1, 60)) if random.random() < 0.8 else None
        kind = int(random.integers(0, 4))
        if kind == 0:
            builder.copy("HtoD", at, length, stream=stream, launch=launch)
        elif kind == 1:
            builder.collective("allreduce", at, length, stream=stream, launch=launch)
        else:
            builder.kernel(f"kernel{number}", at, length, stream=stream, launch=launch)
        if random.random() < 0.3:
            builder.operator("aten::mm", at - 20, int(random.integers(1, 15)))
        if random.random() < 0.1:
            builder.call("cudaStreamSynchronize", at - 8, int(random.integers(1, 6)))
        events.append((at, at + length, kind == 0))
    return builder, events


@pytest.mark.parametrize("seed", range(25))
def test_the_causes_cover_free_time_once(seed: int) -> None:
    builder, events = random_trace(seed)
    trace = build_trace(builder)
    table = stalls(trace)
    assert isinstance(table, Table)
    zero = int(trace.gpu_ops["start_ns"].min())
    first, last = min(e[0] for e in events), max(e[1] for e in events)
    work, memory = np.zeros(last - first, int), np.zeros(last - first, int)
    for start, end, is_memory in events:
        (memory if is_memory else work)[start - first : end - first] += 1
    idle, alone = np.zeros_like(work), np.zeros_like(work)
    columns = [table[name].tolist() for name in ("start_ns", "end_ns", "memory_row")]
    for start_ns, end_ns, row in zip(*columns, strict=True):
        span = slice((start_ns - zero) // 1000, (end_ns - zero) // 1000)
        (idle if row < 0 else alone)[span] += 1
    assert idle.tolist() == ((work == 0) & (memory == 0)).astype(int).tolist()
    assert alone.tolist() == ((work == 0) & (memory > 0)).astype(int).tolist()
    summed = stall_causes(trace)
    assert isinstance(summed, Table)
    assert summed["length_ns"].sum() == 1000 * int((work == 0).sum())
    assert summed["num_intervals"].sum() == len(table)


def test_stalls_of_the_same_site_are_summed() -> None:
    builder = TraceBuilder().kernel("a", 0, 100, launch=-50)
    builder.operator("aten::mul", 50, 360)
    builder.kernel("b", 410, 50, launch=400)
    builder.operator("aten::mul", 450, 55)
    builder.kernel("c", 510, 10, launch=500)
    builder.copy("DtoH", 520, 30, launch=-30)
    table = stall_sites(build_trace(builder))
    assert isinstance(table, Table)
    assert [Cause(cause).name for cause in table["cause"].tolist()] == ["HOST_OP", "COPY_DTOH"]
    assert table.texts("host_op") == ["aten::mul", None]
    assert table.texts("operation") == [None, "Memcpy DtoH (Device -> Pinned)"]
    assert table["num_intervals"].tolist() == [2, 1]
    assert table["length_ns"].tolist() == [360_000, 30_000]
    assert table["longest_ns"].tolist() == [310_000, 30_000]


def test_intervals_are_cut_at_the_ends_of_steps() -> None:
    builder = TraceBuilder().step(1, 0, 50).step(2, 50, 50).step(3, 100, 100)
    builder.kernel("one", 100, 50, launch=10).kernel("two", 160, 40, launch=60)
    builder.copy("DtoH", 195, 30, launch=65).kernel("three", 240, 10, launch=110)
    trace = build_trace(builder)
    summed = stall_causes(trace)
    assert isinstance(summed, Table)
    # Steps end on the GPU at 150, 225 and 250: the second has 10 idle and 25 of a copy,
    # the third 15 idle.
    by_step = {}
    for step, length in zip(summed["step_row"].tolist(), summed["length_ns"].tolist(), strict=True):
        by_step[step] = by_step.get(step, 0) + length
    assert by_step == {1: 35_000, 2: 15_000}


def test_parents_of_nested_and_crossing_events() -> None:
    #        0: [0, 10)  1: [1, 5)  2: [2, 3)  3: [5, 12) crosses the end of 0  4: [20, 30)
    start, end = np.array([0, 1, 2, 5, 20]), np.array([10, 5, 3, 12, 30])
    cut, parent, depth = nest(start, end)
    assert parent.tolist() == [-1, 0, 1, 0, -1]
    assert depth.tolist() == [0, 1, 2, 1, 0]
    assert cut.tolist() == [10, 5, 3, 10, 30]


def per_step(folder: Path) -> dict[str, float]:
    """Notable idle time per GPU step by cause, in us, of the slower rank."""
    trace = read(folder)
    table = stall_causes(trace)
    assert isinstance(table, Table)
    ranks = []
    for source in range(2):
        mine = (table["source"] == source) & (table["step_row"] >= 0)
        steps = np.unique(table["step_row"][mine]).size
        ranks.append(
            {
                Cause(cause).name: int(table["notable_ns"][mine & (table["cause"] == cause)].sum())
                / steps
                / 1000
                for cause in np.unique(table["cause"][mine]).tolist()
            }
        )
    return max(ranks, key=lambda causes: sum(causes.values()))


class TestRecordings:
    """One behaviour was induced in each: it must be the largest cause."""

    @pytest.mark.parametrize(
        ("name", "cause"),
        [
            ("host_sync", "HOST_SYNC"),
            ("data_stall", "DATA_LOADING"),
            ("pageable_copy", "COPY_HTOD_PAGEABLE"),
            ("launch_bound", "HOST_OP"),
        ],
    )
    def test_the_induced_cause_is_the_largest_and_grew_most(
        self, recordings: Path, name: str, cause: str
    ) -> None:
        causes, healthy = per_step(recordings / name), per_step(recordings / "healthy")
        assert max(causes, key=causes.__getitem__) == cause
        growth = {name: value - healthy.get(name, 0) for name, value in causes.items()}
        assert max(growth, key=growth.__getitem__) == cause

    @pytest.mark.parametrize("name", ["healthy", "straggler"])
    def test_nothing_is_notable_where_nothing_was_induced(
        self, recordings: Path, name: str
    ) -> None:
        # A step takes 39 ms: 1 % of it is the smallest effect worth naming.
        assert sum(per_step(recordings / name).values()) < 390


def test_the_case_of_a_wait_in_every_layer(cases: Path) -> None:
    trace = read(cases / "rule-host-sync-per-layer" / "rank00000.trace.json")
    assert found(trace) == [
        (3, "COPY_DTOH"), (47, "HOST_SYNC"), (3, "COPY_DTOH"), (47, "HOST_SYNC"),
        (3, "COPY_DTOH"), (47, "HOST_SYNC"), (3, "COPY_DTOH"),
    ]  # fmt: skip


def test_the_case_of_launches_that_never_queue(cases: Path) -> None:
    [path] = (cases / "rule-launch-bound").glob("rank*.json")
    assert found(read(path)) == [(7, "HOST_OP")] * 99


def test_memory_is_not_free_time_of_communication() -> None:
    builder = TraceBuilder().collective("allreduce", 0, 100, launch=-20)
    builder.copy("DtoH", 20, 30, launch=-10)
    trace = build_trace(builder)
    assert Activity.COMMUNICATION in trace.gpu_ops["activity"]
    assert found(trace) == []
