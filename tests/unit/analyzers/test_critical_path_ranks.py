"""The critical path across ranks: through a collective to the rank that came last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose.analyzers.critical_path import (
    collective_slack,
    communication_cost,
    critical_path,
    critical_path_classes,
    critical_path_ops,
)
from diagnose.analyzers.critical_path.graph import build
from diagnose.analyzers.critical_path.peers import find_peers
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.analyzers.critical_path.slack import slack
from diagnose.readers import read
from tests.builder import build_trace
from tests.unit.analyzers.path_traces import disordered_jobs, jobs, path_of, table_of


class TestAcrossRanks:
    def test_the_path_goes_to_the_rank_that_came_last(self) -> None:
        trace = build_trace(*jobs())
        path = table_of(critical_path(trace))
        first = path["source"] == 0
        length, kind = path["length_ns"][first], path["path_class"][first]
        assert length.sum() == (8 * 352 + 30) * 1000
        elsewhere = path["at_source"][first] == 1
        # All the compute of the way is rank 1's (but the optimizer), the transfers are its own.
        assert length[elsewhere & (kind == PathClass.COMPUTE)].sum() == 8 * 300_000
        assert length[kind == PathClass.COMMUNICATION].sum() == 8 * 50_000
        assert length[~elsewhere & (kind == PathClass.COMPUTE)].sum() == 30_000

    def test_kept_on_its_rank_the_path_shows_the_wait(self) -> None:
        path = path_of(build_trace(*jobs()), across_ranks=False)
        assert sum(length for kind, length in path if kind == "PEER_WAIT") == 8 * 200
        assert sum(length for kind, length in path if kind == "COMMUNICATION") == 8 * 50

    def test_wait_and_transfer_and_what_blocks(self) -> None:
        trace = build_trace(*jobs())
        table = table_of(collective_slack(trace))
        first = table["source"] == 0
        assert table["wait_ns"][first].tolist() == [200_000] * 8
        assert table["wait_ns"][~first].tolist() == [0] * 8
        assert table["transfer_ns"].tolist() == [50_000] * 16
        assert table["exposed_ns"][first].tolist() == [250_000] * 8
        assert table["blocking_ns"][first].tolist() == [50_000] * 8
        cost = table_of(communication_cost(trace))
        assert cost["exposed_ns"].tolist() == [2_000_000, 400_000]
        assert cost["blocking_ns"].tolist() == [400_000, 400_000]
        assert cost["transfer_ns"].tolist() == [400_000, 400_000]
        assert cost["num_matched"].tolist() == [8, 8]

    def test_overlap_of_the_transfer_alone(self) -> None:
        """On rank 0 compute runs beside the wait, on rank 1 beside half of the transfer."""
        builders = jobs()
        for number in range(8):
            builders[0].kernel("aside", number * 352 + 101, 200, stream=9, launch=-50)
            builders[1].kernel("aside", number * 352 + 301, 25, stream=9, launch=-50)
        cost = table_of(communication_cost(build_trace(*builders)))
        assert cost["overlapped_transfer_ns"].tolist() == [0, 200_000]
        assert cost["overlap_of_transfer_pct"].tolist() == [0, 50]

    def test_the_early_rank_has_the_slack_of_the_wait(self) -> None:
        trace = build_trace(*jobs())
        joined = build(trace, find_peers(trace))
        limit = np.full(joined.num_ops, joined.end_ns[: joined.num_ops].max())
        gemm = np.array(trace.gpu_ops.texts("name")) == "gemm"
        source = trace.gpu_ops["source"]
        left = slack(joined, limit)
        # A GEMM of rank 0 may end 200 us later: its collective waits for rank 1 anyway.
        assert left[gemm & (source == 0)].tolist() == [200_000] * 8
        assert left[gemm & (source == 1)].tolist() == [0] * 8


def test_clocks_apart_do_not_move_the_path() -> None:
    builders = jobs(host="")
    builders[0].top["host_name"], builders[1].top["host_name"] = "node-a", "node-b"
    base = builders[1].top["baseTimeNanoseconds"]
    builders[1].top["baseTimeNanoseconds"] = base + 5_000_000
    path = table_of(critical_path(build_trace(*builders)))
    first = path["source"] == 0
    length, kind = path["length_ns"][first], path["path_class"][first]
    assert length.sum() == (8 * 352 + 30) * 1000
    assert length[kind == PathClass.COMMUNICATION].sum() == 8 * 50_000
    assert length[(path["at_source"][first] == 1) & (kind == PathClass.COMPUTE)].sum() == 2_400_000


@pytest.mark.parametrize("across_ranks", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_clocks_that_contradict_each_other_end_no_path(seed: int, across_ranks: bool) -> None:
    """Every path ends, without gap, at the length of the window."""
    trace = disordered_jobs(seed)
    path = table_of(critical_path(trace, across_ranks))
    for gpu in trace.gpus:
        ops, mine = trace.gpu_ops.take(trace.on(gpu)), path["source"] == gpu.source
        start, end = path["start_ns"][mine], path["end_ns"][mine]
        assert (start[0], end[-1]) == (ops["start_ns"].min(), ops["end_ns"].max())
        assert start[1:].tolist() == end[:-1].tolist()


def test_the_case_of_a_straggler_that_hides_in_nccl(cases: Path) -> None:
    """Rank 2 computes for 1800 us, the others for 1000; the transfer takes 200 of 2000."""
    trace = read(cases / "rule-straggler-hides-in-nccl")
    table = table_of(critical_path_classes(trace))
    rank = np.array([source.rank for source in trace.sources])[table["source"]]
    compute = table["path_class"] == PathClass.COMPUTE
    assert (table["elsewhere_ns"] == np.where(compute & (rank != 2), table["length_ns"], 0)).all()
    assert table["of_step_pct"].tolist() == [90, 10] * (len(table) // 2)


def test_the_path_summed_by_class_and_by_operation() -> None:
    trace = build_trace(*jobs())
    classes = table_of(critical_path_classes(trace))
    first = classes["source"] == 0
    # Eight times 300 us GEMM of rank 1 and 50 us transfer, 1 us before and after, then 30 us.
    # Only the last transfer, the pause after it and the optimizer are met on rank 0 itself.
    assert dict(
        zip(
            (PathClass(kind).name for kind in classes["path_class"][first].tolist()),
            zip(
                classes["num_stretches"][first].tolist(),
                (classes["length_ns"][first] // 1000).tolist(),
                (classes["elsewhere_ns"][first] // 1000).tolist(),
                strict=True,
            ),
            strict=True,
        )
    ) == {
        "COMPUTE": (9, 2430, 2400),
        "COMMUNICATION": (8, 400, 350),
        "SWITCH": (16, 16, 15),
    }
    assert classes["of_step_pct"][first].sum() == pytest.approx(100)
    ops = table_of(critical_path_ops(trace))
    first = ops["source"] == 0
    names = np.array(ops.texts("name"))[first].tolist()
    assert [names[0], names[2]] == ["gemm", "optimizer"]
    assert ops["num_ops"][first].tolist() == [8, 8, 1]
    assert ops["length_ns"][first].tolist() == [2_400_000, 400_000, 30_000]
    assert ops["elsewhere_ns"][first].tolist() == [2_400_000, 350_000, 0]
    assert ops["of_path_pct"][first].tolist() == pytest.approx(
        [100 * part / 2846 for part in (2400, 400, 30)]
    )
