"""Slack: how much later communication could end, by hand and by running the graph forwards."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.analyzers.critical_path import collective_slack, communication_cost
from diagnose.analyzers.critical_path.graph import DependencyGraph, build
from diagnose.analyzers.critical_path.peers import find_peers
from diagnose.analyzers.critical_path.slack import slack
from tests.builder import TraceBuilder, build_trace
from tests.unit.analyzers.path_traces import (
    disordered_jobs,
    random_trace,
    stream_wait,
    table_of,
)


class TestSlack:
    def test_a_collective_nobody_waits_for_yet(self) -> None:
        builder = TraceBuilder().kernel("backward", 0, 100, launch=-95)
        builder.collective("allreduce", 10, 40, launch=-90)
        builder.kernel("more", 100, 100, launch=-85)
        stream_wait(builder, -82, stream=7)
        builder.kernel("optimizer", 200, 30, launch=-80)
        table = table_of(collective_slack(build_trace(builder)))
        # It ended at 50, the optimizer could not have begun before 200.
        assert table["slack_ns"].tolist() == [150_000]
        assert table["on_path_ns"].tolist() == [0]
        assert not table.known("wait_ns").any()

    def test_a_collective_at_the_end_of_a_step_has_the_rest_of_it(self) -> None:
        builder = TraceBuilder().kernel("backward", 0, 100, launch=-95)
        builder.collective("allreduce", 10, 40, launch=-90)
        assert table_of(collective_slack(build_trace(builder)))["slack_ns"].tolist() == [50_000]

    def test_blocking_is_exposed_and_on_the_path(self) -> None:
        builder = TraceBuilder().kernel("backward", 0, 100, launch=-95)
        stream_wait(builder, -94, stream=20)
        builder.collective("allreduce", 101, 199, launch=-90)
        builder.kernel("other", 150, 50, stream=9, launch=-84)
        stream_wait(builder, -82, stream=7)
        builder.kernel("optimizer", 301, 30, launch=-80)
        builder.collective("broadcast", 302, 10, stream=21, launch=-79)
        table = table_of(collective_slack(build_trace(builder)))
        assert table["slack_ns"].tolist() == [0, 19_000]
        assert table["on_path_ns"].tolist() == [199_000, 0]
        assert table["exposed_ns"].tolist() == [149_000, 0]
        assert table["blocking_ns"].tolist() == [149_000, 0]


def simulate(graph: DependencyGraph, longer: int = -1, by_ns: int = 0) -> list[int]:
    """Ends of all operations when one lasts longer, by running the graph forwards.

    A collective begins to move bytes when the last of its ranks has come; then
    all of its ranks are held back alike.
    """
    start, end, begin = graph.start_ns.tolist(), graph.end_ns.tolist(), graph.begin_ns.tolist()
    match = [*graph.match.tolist(), *[-1] * (len(start) - graph.num_ops)]
    moved = [0] * len(start)  # How much later each node begins; a collective: moves bytes.
    for node in np.argsort(graph.place).tolist():
        edges = range(int(graph.first_edge[node]), int(graph.first_edge[node + 1]))
        then, now = [], []
        for edge in edges:
            before = int(graph.from_node[edge])
            assert graph.place[before] < graph.place[node]
            later = by_ns if before == longer else 0
            then.append(int(graph.ready_ns[edge]))
            now.append(then[-1] + moved[before] + later)
        by = max(now) - max(then) if edges else 0
        assert by >= 0
        if match[node] < 0:
            moved[node] = by
            continue
        members = [op for op in range(graph.num_ops) if match[op] == match[node]]
        early = int(graph.join_ns[node]) - start[node]
        for member in members:
            moved[member] = max(moved[member], by - early)
    assert all(begin[node] + moved[node] >= begin[node] for node in range(len(begin)))
    return [end[op] + moved[op] + (by_ns if op == longer else 0) for op in range(graph.num_ops)]


@pytest.mark.parametrize("seed", range(12))
def test_slack_against_running_the_graph_forwards(seed: int) -> None:
    """An operation that lasts its slack longer moves nothing; one more nanosecond does."""
    graph = build(random_trace(seed))
    last = int(graph.end_ns[: graph.num_ops].max())
    assert simulate(graph) == graph.end_ns[: graph.num_ops].tolist()
    left = slack(graph, np.full(graph.num_ops, last))
    for op in range(graph.num_ops):
        assert max(simulate(graph, op, int(left[op]))) == last
        assert max(simulate(graph, op, int(left[op]) + 1)) > last


@pytest.mark.parametrize("seed", range(8))
def test_slack_across_ranks_whose_clocks_disagree(seed: int) -> None:
    trace = disordered_jobs(seed)
    graph = build(trace, find_peers(trace))
    assert (graph.match >= 0).any()
    last = int(graph.end_ns[: graph.num_ops].max())
    left = slack(graph, np.full(graph.num_ops, last))
    for op in range(0, graph.num_ops, 3):
        assert max(simulate(graph, op, int(left[op]))) == last
        assert max(simulate(graph, op, int(left[op]) + 1)) > last


def test_what_ends_before_a_blocking_copy_is_critical() -> None:
    """first -> wait -> blocking copy -> second: nothing here can end later."""
    builder = TraceBuilder().kernel("first", 0, 100, launch=-20)
    builder.call("cudaStreamSynchronize", -10, 112)
    correlation = builder.call("cudaMemcpyAsync", 110, 90)
    name = "Memcpy HtoD (Pageable -> Device)"
    builder.gpu("gpu_memcpy", name, 120, 79, correlation=correlation)
    builder.kernel("second", 225, 50, launch=215)
    graph = build(build_trace(builder))
    last = int(graph.end_ns[: graph.num_ops].max())
    assert slack(graph, np.full(graph.num_ops, last)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_blocking_is_never_more_than_exposed(seed: int) -> None:
    table = table_of(collective_slack(disordered_jobs(seed)))
    assert (table["slack_ns"] >= 0).all()
    assert (table["blocking_ns"] <= table["on_path_ns"]).all()
    assert (table["blocking_ns"] <= table["exposed_transfer_ns"]).all()
    assert (table["exposed_transfer_ns"] <= table["exposed_ns"]).all()
    cost = table_of(communication_cost(disordered_jobs(seed)))
    assert (cost["blocking_ns"] <= cost["exposed_ns"]).all()
