"""Matching against jobs whose truth is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers._lanes import Unmatched
from diagnose.analyzers._shifts import Basis
from diagnose.analyzers.matching import matched_collectives, unmatched_collectives
from diagnose.schema import NULL
from diagnose.trace import Table, Trace
from tests.synthetic_job import Job

MB = 1 << 20


def _matched(trace: Trace) -> Table:
    table = matched_collectives(trace)
    assert not isinstance(table, Unavailable)
    return table


def _found(job: Job, table: Table, ranks: Iterable[int] | None = None) -> set[frozenset[tuple]]:
    """The matches, each as the set of (rank, true number) of its members."""
    truth, members = job.truth(ranks), defaultdict(set)
    assert len(truth) == len(table)
    for place, match in enumerate(table["match"].tolist()):
        if match != NULL:
            members[match].add(truth[place])
    return {frozenset(found) for found in members.values()}


def _true(job: Job, ranks: Iterable[int] | None = None) -> set[frozenset[tuple]]:
    """What is right: operations of one number, where two ranks or more recorded them."""
    members = defaultdict(set)
    for rank, number in job.truth(ranks):
        members[number].add((rank, number))
    return {frozenset(found) for found in members.values() if len(found) > 1}


def _data_parallel(
    num_ranks: int = 4, num_steps: int = 4, per_step: int = 5, jitter_ns: int = 40_000, **options
) -> Job:
    """Steps alike but for jitter; sizes repeat every step."""
    job = Job(num_ranks, **options)
    for step in range(num_steps):
        job.begin_step(step)
        for place in range(per_step):
            for rank in range(num_ranks):
                job.compute(rank, 400_000 + int(job.random.integers(0, jitter_ns + 1)))
            job.collective("allreduce", range(num_ranks), (place + 1) * MB, 90_000)
    return job


def _reasons(table: Table) -> set[Unmatched]:
    return {Unmatched(code) for code in table["reason"].tolist()}


@pytest.mark.parametrize("dropped", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("host", ["one", "each its own"])
def test_recordings_that_begin_later(dropped: int, host: str) -> None:
    job = _data_parallel(host_of=lambda rank: "node" if host == "one" else f"node{rank}")
    for rank in range(4):
        job.clock(f"node{rank}", offset_ns=rank * 700_000)
        job.forget_metadata(rank, 6 + rank)
    job.drop_leading(2, dropped)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert _reasons(table) == {Unmatched.MATCHED}
    assert table["inferred"].sum() == 6 + 7 + (8 - dropped) + 9


@pytest.mark.parametrize("dropped", [1, 5, 7])
def test_two_ranks_first_collectives_on_one_only(dropped: int) -> None:
    job = _data_parallel(2)
    job.drop_leading(1, dropped)
    job.forget_metadata(0, 9)
    trace = job.trace()
    table = _matched(trace)
    assert _found(job, table) == _true(job)
    assert np.count_nonzero(table["reason"] == Unmatched.OUTSIDE_WINDOW) == dropped
    left = unmatched_collectives(trace)
    assert not isinstance(left, Unavailable)
    assert left["num_ops"].tolist() == [dropped]
    assert left["rank"].tolist() == [0]
    kernels = [op for op in job.operations[0] if op.collective is not None]
    assert left["kernel_time_ns"].tolist() == [sum(op.end - op.start for op in kernels[:dropped])]


def test_windows_of_different_steps() -> None:
    job = _data_parallel(3, num_steps=8)
    job.operations[1] = [op for op in job.operations[1] if op.step >= 3]
    job.steps[1] = job.steps[1][3:]
    job.operations[2] = [op for op in job.operations[2] if op.step < 6]
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)


def test_a_lost_rank_leaves_matches_of_the_rest() -> None:
    job = _data_parallel(4)
    table = _matched(job.trace([0, 1, 3]))
    assert _found(job, table, [0, 1, 3]) == _true(job, [0, 1, 3])
    assert set(table["num_matched"].tolist()) == {3}
    assert set(table["group_size"].tolist()) == {4}


def test_all_peers_lost() -> None:
    table = _matched(_data_parallel(4).trace([2]))
    assert _reasons(table) == {Unmatched.PEERS_MISSING}


def test_unknown_ranks_are_matched_by_group_and_order() -> None:
    job = _data_parallel(3)
    job.drop_leading(0, 2)
    table = _matched(job.trace(known_ranks=False))
    assert _found(job, table) == _true(job)
    assert set(table["rank"].tolist()) == {NULL}


def test_shortened_lists_of_two_groups_with_one_name() -> None:
    job = Job(8)
    for step in range(5):
        job.begin_step(step)
        for first in (0, 4):
            for rank in range(first, first + 4):
                job.compute(rank, 300_000 + int(job.random.integers(0, 30_000)))
            job.collective("allreduce", range(first, first + 4), MB, 50_000, shorten=True)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert set(table["num_matched"].tolist()) == {4}


def test_tensor_and_data_parallel_groups() -> None:
    job = Job(8, host_of=lambda rank: f"node{rank // 4}")
    job.clock("node1", offset_ns=-4_000_000)
    for step in range(4):
        job.begin_step(step)
        for layer in range(3):
            for first in (0, 2, 4, 6):
                pair = (first, first + 1)
                for rank in pair:
                    job.compute(rank, 200_000 + int(job.random.integers(0, 20_000)))
                job.collective("allreduce", pair, 4 * MB, 30_000, group="tp", stream=21)
            for first in (0, 1):
                members = range(first, 8, 2)
                job.collective(
                    "_reduce_scatter_base",
                    members,
                    (layer + 1) * MB,
                    80_000,
                    group="dp",
                    stream=22,
                    blocking=False,
                )
        for rank in range(8):
            job.join(rank, 22)
    for rank in (1, 5):
        job.forget_metadata(rank, 4)
        job.drop_leading(rank, 3)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)


def _pipeline(num_stages: int = 4, num_steps: int = 3, micro: int = 6) -> Job:
    job = Job(num_stages)
    for step in range(num_steps):
        job.begin_step(step)
        for place in range(micro):
            for stage in range(num_stages):
                if stage:
                    job.send(stage - 1, stage, (1 + place % 2) * MB, 20_000)
                job.compute(stage, 300_000 + int(job.random.integers(0, 30_000)))
        for _ in range(micro):
            for stage in reversed(range(num_stages)):
                if stage < num_stages - 1:
                    job.send(stage + 1, stage, MB, 20_000)
                job.compute(stage, 600_000 + int(job.random.integers(0, 30_000)))
    return job


def test_sends_pair_with_the_receives_of_their_pair() -> None:
    job = _pipeline()
    job.drop_leading(2, 3)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert set(table["num_matched"].tolist()) == {0, 2}


def test_sends_without_known_rank_are_not_guessed() -> None:
    table = _matched(_pipeline().trace(known_ranks=False))
    assert _reasons(table) == {Unmatched.PEER_UNKNOWN}


@pytest.mark.parametrize("forgotten", [0, 4])
def test_all_to_all_runs_the_kernel_of_sends(forgotten: int) -> None:
    job = Job(4)
    for step in range(4):
        job.begin_step(step)
        for _ in range(2):
            for rank in range(4):
                job.compute(rank, 250_000 + int(job.random.integers(0, 50_000)))
            job.collective("all_to_all", range(4), 2 * MB, 60_000)
            job.collective("allreduce", range(4), MB, 60_000)
    # Unequal on purpose: what is known of an operation differs between ranks.
    job.forget_metadata(1, forgotten)
    job.forget_metadata(2, forgotten // 2)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    spelled = {table.strings[code] for code in table["collective"].tolist()}
    assert spelled == {"all_to_all", "all_reduce"}


def test_exchanges_without_metadata_are_matched_by_their_ends() -> None:
    job = _data_parallel(4)
    for rank in range(4):
        for op in job.operations[rank]:
            if op.collective is not None and op.num_bytes == 2 * MB:
                op.name, op.told = "ncclDevKernel_SendRecv(x)", False
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)


def test_sequence_numbers_with_coalesced_sets_and_losses() -> None:
    job = _data_parallel(3, sequences=True, marks=False, host_of=lambda rank: f"node{rank}")
    for rank in range(3):
        job.clock(f"node{rank}", offset_ns=rank * 10**9)
        for op in job.operations[rank]:
            if op.sequence is not None:
                # Two operations share a number, as coalesced ones do.
                op.sequence //= 2
    # Kernels lost in the middle of rank 1: no single shift holds there.
    numbered = [op for op in job.operations[1] if op.collective is not None]
    lost = numbered[6:8] + numbered[12:14]
    job.operations[1] = [op for op in job.operations[1] if op not in lost]
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert set(table["basis"].tolist()) <= {Basis.REFERENCE, Basis.SEQUENCE}


def test_losses_without_numbers_cost_nothing_else() -> None:
    job = _data_parallel(2, num_steps=6, per_step=4)
    job.operations[1] = [
        op for op in job.operations[1] if not (op.step == 2 and op.num_bytes == 2 * MB)
    ]
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert len(_true(job)) == 6 * 4 - 1


def _periodic(**options) -> Job:
    return _data_parallel(2, num_steps=5, per_step=1, jitter_ns=0, end_jitter_ns=0, **options)


def test_periodic_trace_without_marks_or_clock_is_ambiguous() -> None:
    job = _periodic(marks=False, host_of=lambda rank: f"node{rank}")
    job.drop_leading(1, 1)
    trace = job.trace()
    # The base of one is unknown: nothing relates the clocks.
    sources = (trace.sources[0], replace(trace.sources[1], base_ns=None))
    table = _matched(replace(trace, sources=sources))
    assert Unmatched.AMBIGUOUS in _reasons(table)
    assert set(table["match"].tolist()) == {NULL}


@pytest.mark.parametrize(
    ("options", "basis"),
    [
        ({"host_of": lambda rank: "node"}, Basis.SHARED_CLOCK),
        ({"host_of": lambda rank: f"node{rank}"}, Basis.STEP_MARKS),
        ({"host_of": lambda rank: f"node{rank}", "marks": False}, Basis.HOST_CLOCKS),
    ],
)
def test_what_decides_a_periodic_trace(options: dict, basis: Basis) -> None:
    job = _periodic(**options)
    job.clock("node1", offset_ns=60_000)
    job.drop_leading(1, 2)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert basis in table["basis"].tolist()


def test_ends_win_over_step_marks_that_disagree() -> None:
    job = _data_parallel(2, jitter_ns=300_000, host_of=lambda rank: f"node{rank}")
    # Rank 1 counted its steps from another start.
    job.steps[1] = [(number + 1, start) for number, start in job.steps[1]]
    for op in job.operations[1]:
        op.step += 1
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert Basis.ENDS in table["basis"].tolist()


def test_different_sizes_are_no_match() -> None:
    job = _data_parallel(3, num_steps=60)
    odd = [op for op in job.operations[1] if op.collective is not None][7]
    odd.num_bytes = 77
    table = _matched(job.trace())
    place = job.truth().index((1, odd.truth))
    assert table["reason"][place] == Unmatched.CONTENT_DIFFERS
    assert table["num_matched"][job.truth().index((0, odd.truth))] == 2


def test_an_end_that_no_clock_explains_is_no_match() -> None:
    job = _data_parallel(3, num_steps=10)
    odd = [op for op in job.operations[2] if op.collective is not None][11]
    odd.end -= 250_000
    odd.start -= 250_000
    table = _matched(job.trace())
    assert table["reason"][job.truth().index((2, odd.truth))] == Unmatched.ENDS_DIFFER
    assert table["num_matched"][job.truth().index((0, odd.truth))] == 2


def test_no_metadata_on_a_stream_of_two_groups() -> None:
    job = Job(2)
    for step in range(4):
        job.begin_step(step)
        for group in ("a", "b"):
            for rank in range(2):
                job.compute(rank, 100_000 + int(job.random.integers(0, 9_000)))
            job.collective("allreduce", range(2), MB, 40_000, group=group)
    job.forget_metadata(0, 3)
    table = _matched(job.trace())
    assert np.count_nonzero(table["reason"] == Unmatched.NO_GROUP) == 3
    assert _found(job, table) < _true(job)


def test_nothing_says_groups_at_all() -> None:
    job = _data_parallel(2)
    for rank in range(2):
        job.forget_metadata(rank, 10**6)
    job.drop_leading(0, 2)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)


def test_group_of_one() -> None:
    job = Job(2)
    for rank in range(2):
        job.collective("allreduce", [rank], MB, 1_000, group=f"self{rank}")
    assert _reasons(_matched(job.trace())) == {Unmatched.GROUP_OF_ONE}


def test_without_communication_it_says_so() -> None:
    job = Job(1)
    job.compute(0, 10)
    assert isinstance(matched_collectives(job.trace()), Unavailable)
    assert isinstance(unmatched_collectives(job.trace()), Unavailable)


def test_one_group_on_two_streams_counts_in_order_of_issue() -> None:
    job = Job(2)
    for step in range(6):
        job.begin_step(step)
        for rank in range(2):
            job.compute(rank, 300_000 + int(job.random.integers(0, 40_000)))
        for stream in (21, 25):
            # Alike in kind and size, so that only the order tells them apart.
            job.collective("allreduce", [0, 1], MB, 60_000, stream=stream, blocking=False)
        for rank in range(2):
            job.join(rank, 21)
            job.join(rank, 25)
    for op in job.operations[1]:
        if op.stream == 21:
            # Issued first on both, it starts second on rank 1: its stream was busy.
            op.start = op.end - 10_000
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)


def test_two_collectives_are_matched_in_order_for_want_of_a_test() -> None:
    job = Job(2, host_of=lambda rank: f"node{rank}", marks=False)
    for size in (MB, 2 * MB):
        for rank in range(2):
            job.compute(rank, 300_000)
        job.collective("allreduce", [0, 1], size, 50_000)
    job.clock("node1", offset_ns=10**12)
    table = _matched(job.trace())
    assert _found(job, table) == _true(job)
    assert set(table["basis"].tolist()) == {Basis.REFERENCE, Basis.ORDER}


def test_two_devices_of_one_process_are_two_members() -> None:
    trace = _data_parallel(2).trace()
    one = {"source": np.zeros(len(trace.gpu_ops), np.int32)}
    device = {"device": trace.gpu_ops["source"].astype(np.int32)}
    columns = dict(trace.gpu_ops.columns) | one | device
    ops = Table(trace.gpu_ops.schema, columns, trace.strings)
    table = _matched(replace(trace, sources=trace.sources[:1], gpu_ops=ops))
    assert set(table["num_matched"].tolist()) == {2}
