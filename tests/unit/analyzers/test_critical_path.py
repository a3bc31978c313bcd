"""The critical path: its length is the step's, and it goes through what held the step up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers._idle_causes.causes import Confidence
from diagnose.analyzers.critical_path import (
    collective_slack,
    communication_cost,
    critical_path,
)
from diagnose.analyzers.critical_path.edges import Edge
from diagnose.analyzers.critical_path.graph import build
from diagnose.analyzers.critical_path.search import PathClass, binding_edges
from diagnose.analyzers.critical_path.slack import slack
from diagnose.readers import read
from diagnose.timeline.step_times import step_times
from tests.builder import TraceBuilder, build_trace
from tests.unit.analyzers.path_traces import (
    by_class,
    path_of,
    random_trace,
    stream_wait,
    table_of,
)


class TestByHand:
    def test_one_stream_launched_ahead(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-90)
        builder.kernel("second", 104, 50, launch=-80)
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("SWITCH", 4), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_a_late_launch_leads_to_the_host(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-10)
        builder.kernel("second", 310, 50, launch=300)
        # The host had launched the first before the window and was at work until 300.
        assert path_of(build_trace(builder)) == [("HOST", 300), ("LAUNCH", 10), ("COMPUTE", 50)]

    def test_a_synchronisation_leads_back_to_the_gpu(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-10)
        builder.call("cudaStreamSynchronize", 5, 103)
        builder.kernel("second", 130, 50, launch=120)
        # The call returned at 108; from the end of the kernel at 100 on it is the host's time.
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("HOST", 20), ("LAUNCH", 10), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_a_synchronisation_that_did_not_wait_does_not(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 20, launch=-10)
        builder.call("cudaStreamSynchronize", 100, 3)
        builder.kernel("second", 130, 50, launch=120)
        assert path_of(build_trace(builder)) == [("HOST", 120), ("LAUNCH", 10), ("COMPUTE", 50)]

    def test_a_blocking_copy_is_entered_at_its_end_and_left_at_its_start(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 30, launch=-60)
        correlation = builder.call("cudaMemcpyAsync", -50, 160)
        builder.gpu(
            "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 32, 70, correlation=correlation
        )
        builder.kernel("second", 140, 50, launch=130)
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 30), ("SWITCH", 2), ("MEMORY", 70),
            ("HOST", 28), ("LAUNCH", 10), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_through_an_event_to_a_collective(self) -> None:
        builder = TraceBuilder().kernel("backward", 0, 100, launch=-95)
        stream_wait(builder, -92, stream=20)
        builder.collective("allreduce", 103, 200, launch=-90)
        stream_wait(builder, -85, stream=7)
        builder.kernel("other", 101, 50, stream=9, launch=-84)
        builder.kernel("optimizer", 305, 40, launch=-80)
        trace = build_trace(builder)
        assert path_of(trace) == [
            ("COMPUTE", 100), ("SWITCH", 3), ("COMMUNICATION", 200),
            ("SWITCH", 2), ("COMPUTE", 40),
        ]  # fmt: skip
        path = table_of(critical_path(trace))
        edges = [Edge(edge).name for edge in path["edge"].tolist() if edge >= 0]
        assert edges == ["EVENT_WAIT", "EVENT_WAIT"]
        # Two other streams could have been meant at each wait, or one: never sure.
        waits = path["edge"] == Edge.EVENT_WAIT
        assert (path["confidence"][waits] < Confidence.HIGH).all()

    def test_a_recorded_event_is_sure(self) -> None:
        builder = TraceBuilder().kernel("producer", 0, 100, stream=9, launch=-95)
        stream_wait(builder, -90, stream=7, record=-92)
        # Launched after the event was recorded: not waited for, though it ended later.
        builder.kernel("later", 100, 20, stream=9, launch=-88)
        builder.kernel("consumer", 124, 40, stream=7, launch=-80)
        trace = build_trace(builder)
        graph = build(trace)
        waits = np.flatnonzero(graph.kind == Edge.EVENT_WAIT)
        assert graph.confidence[waits].tolist() == [Confidence.HIGH]
        producer = trace.gpu_ops.texts("name").index("producer")
        assert graph.from_node[waits].tolist() == [producer]

    def test_a_wait_covers_nothing_launched_after_it(self) -> None:
        builder = TraceBuilder().kernel("before", 0, 50, stream=9, launch=-95)
        stream_wait(builder, -90, stream=7)
        builder.kernel("after", 50, 50, stream=9, launch=-85)
        builder.kernel("consumer", 101, 40, stream=7, launch=-80)
        graph = build(build_trace(builder))
        waits = np.flatnonzero(graph.kind == Edge.EVENT_WAIT)
        assert graph.end_ns[graph.from_node[waits]].tolist() == [
            graph.end_ns[: graph.num_ops].min()
        ]

    def test_a_pause_without_an_edge_is_unexplained(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-90)
        builder.kernel("second", 160, 50, launch=-80)
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("SWITCH", 10), ("UNEXPLAINED", 50), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_work_that_had_to_wait_for_multiprocessors(self) -> None:
        """A GEMM that was free to begin at 100 does as the collective beside it ends."""
        builder = TraceBuilder().kernel("first", 0, 100, launch=-90)
        builder.collective("allreduce", 99, 401, launch=-85)
        builder.kernel("gemm", 480, 50, launch=-80)
        stream_wait(builder, -1000, stream=20)  # So waits are recorded, and none ties these two.
        # The collective itself was launched 84 us before it began, with nothing ahead of it.
        assert path_of(build_trace(builder))[-2:] == [("COMMUNICATION", 381), ("COMPUTE", 50)]

    def test_through_a_graph_replay(self) -> None:
        builder = TraceBuilder()
        replay = builder.call("cudaGraphLaunch", -20, 5)
        builder.kernel("a", 0, 100, correlation=replay)
        builder.collective("allreduce", 101, 60, correlation=replay)
        builder.kernel("b", 101, 20, correlation=replay)
        builder.kernel("c", 185, 40, correlation=replay)
        # c began 24 after the collective and 64 after b: too late to tell; its stream is certain.
        assert path_of(build_trace(builder))[-1] == ("COMPUTE", 40)
        assert sum(length for _, length in path_of(build_trace(builder))) == 225
        builder = TraceBuilder()
        replay = builder.call("cudaGraphLaunch", -20, 5)
        builder.kernel("a", 0, 100, correlation=replay)
        builder.collective("allreduce", 101, 60, correlation=replay)
        builder.kernel("b", 101, 20, correlation=replay)
        builder.kernel("c", 163, 40, correlation=replay)
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("SWITCH", 1), ("COMMUNICATION", 60), ("SWITCH", 2), ("COMPUTE", 40),
        ]  # fmt: skip

    def test_a_long_pause_within_a_replay_has_a_name_of_its_own(self) -> None:
        builder = TraceBuilder()
        replay = builder.call("cudaGraphLaunch", -20, 5)
        builder.kernel("a", 0, 100, correlation=replay)
        builder.kernel("b", 140, 50, correlation=replay)
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("SWITCH", 10), ("GRAPH_PAUSE", 30), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_a_driver_call_within_a_wait_does_not_cut_the_thread(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-50)
        builder.kernel("aside", 0, 30, stream=9, launch=-40)
        builder.call("cudaStreamSynchronize", 5, 103)
        builder.call("cuStreamSynchronize", 7, 96)
        builder.kernel("second", 130, 50, launch=120)
        # Both calls return after the kernel's end at 100: from there on it is the host's time.
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("HOST", 20), ("LAUNCH", 10), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_an_operation_that_begins_before_its_launch(self) -> None:
        """Clocks of host and GPU are some microseconds apart, at times."""
        builder = TraceBuilder().kernel("first", 0, 100, launch=3)
        builder.kernel("second", 104, 50, launch=20)
        assert path_of(build_trace(builder)) == [
            ("COMPUTE", 100), ("SWITCH", 4), ("COMPUTE", 50),
        ]  # fmt: skip

    def test_an_operation_that_overtakes_the_one_before_it(self) -> None:
        """Programmatic dependent launch: the second begins while the first ends."""
        builder = TraceBuilder().kernel("first", 0, 100, launch=-90)
        builder.kernel("second", 90, 60, stream=8, launch=-80)
        trace = build_trace(builder)
        assert sum(length for _, length in path_of(trace)) == 150

    def test_work_handed_to_another_thread(self) -> None:
        builder = TraceBuilder().kernel("first", 0, 100, launch=-10)
        builder.call("cudaStreamSynchronize", 5, 103)
        builder.kernel("forward", 130, 5, launch=120)
        builder.kernel("backward", 170, 50, launch=160, thread=77)
        trace = build_trace(builder)
        assert path_of(trace) == [
            ("COMPUTE", 100), ("HOST", 60), ("LAUNCH", 10), ("COMPUTE", 50),
        ]  # fmt: skip
        path = table_of(critical_path(trace))
        host = path["path_class"] == PathClass.HOST
        assert path["confidence"][host].tolist() == [Confidence.LOW]


def test_the_case_of_a_wait_in_every_layer(cases: Path) -> None:
    trace = read(cases / "rule-host-sync-per-layer" / "rank00000.trace.json")
    # Three times 12 us from the copy's end to the launch, then 35 us to the start.
    assert by_class(trace) == {
        "COMMUNICATION": 320, "COMPUTE": 480, "MEMORY": 12, "HOST": 36, "LAUNCH": 105,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_the_path_is_a_longest_chain(seed: int) -> None:
    """It has no gap and no overlap, and everything on it has no slack."""
    trace = random_trace(seed)
    path = table_of(critical_path(trace))
    start, end = int(trace.gpu_ops["start_ns"].min()), int(trace.gpu_ops["end_ns"].max())
    assert path["start_ns"][0] == start
    assert path["end_ns"][-1] == end
    assert path["start_ns"][1:].tolist() == path["end_ns"][:-1].tolist()
    assert path["length_ns"].sum() == end - start
    graph = build(trace)
    left = slack(graph, np.full(graph.num_ops, end))
    work = np.isin(path["path_class"], (PathClass.COMPUTE, PathClass.COMMUNICATION))
    assert left[path["gpu_op_row"][work]].tolist() == [0] * int(work.sum())


@pytest.mark.parametrize("seed", range(12))
def test_binding_edges_let_go_last(seed: int) -> None:
    graph = build(random_trace(seed))
    binding = binding_edges(graph)
    for node in range(graph.start_ns.size):
        edges = range(int(graph.first_edge[node]), int(graph.first_edge[node + 1]))
        if not edges:
            assert binding[node] == -1
            continue
        latest = max(int(graph.ready_ns[edge]) for edge in edges)
        assert int(graph.ready_ns[binding[node]]) == latest
        assert latest <= graph.begin_ns[node]


class TestRecordings:
    @pytest.mark.parametrize(
        "name", ["healthy", "straggler", "host_sync", "data_stall", "pageable_copy", "launch_bound"]
    )
    def test_the_path_is_as_long_as_the_step_and_explained(
        self, recordings: Path, name: str
    ) -> None:
        trace = read(recordings / name)
        path = table_of(critical_path(trace))
        for gpu in trace.gpus:
            times = step_times(trace, gpu)
            mine = path["source"] == gpu.source
            known = times.begin > 0
            assert known.any()
            assert path["length_ns"][mine].sum() == (times.end - times.begin)[known].sum()
        unexplained = path["length_ns"][path["path_class"] == PathClass.UNEXPLAINED].sum()
        assert unexplained < 0.05 * path["length_ns"].sum()

    def test_the_straggler_holds_the_path(self, recordings: Path) -> None:
        """Rank 1 does more work in every step: most of rank 0's path lies on it."""
        path = table_of(critical_path(read(recordings / "straggler")))
        first = path["source"] == 0
        share = path["length_ns"][first & (path["at_source"] == 1)].sum()
        assert share > 0.5 * path["length_ns"][first].sum()

    def test_waiting_for_the_straggler_is_no_blocking_communication(self, recordings: Path) -> None:
        cost = table_of(communication_cost(read(recordings / "straggler")))
        assert cost["blocking_ns"][0] < 0.2 * cost["exposed_ns"][0]
        # Bytes moved are the same on both ranks, whoever waited.
        assert cost["transfer_ns"][0] == cost["transfer_ns"][1]

    @pytest.mark.parametrize(
        ("name", "kind", "share"),
        [
            ("pageable_copy", "MEMORY", 0.5),
            ("data_stall", "HOST", 0.3),
            ("launch_bound", "HOST", 0.9),
        ],
    )
    def test_the_induced_behaviour_is_on_the_path(
        self, recordings: Path, name: str, kind: str, share: float
    ) -> None:
        path = table_of(critical_path(read(recordings / name)))
        on = path["length_ns"][path["path_class"] == PathClass[kind]].sum()
        assert on > share * path["length_ns"].sum()


def test_without_gpu_work_it_says_so() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mm", 0, 10)
    for analysis in (critical_path, collective_slack, communication_cost):
        answer = analysis(build_trace(builder))
        assert isinstance(answer, Unavailable)
