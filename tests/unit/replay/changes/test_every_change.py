"""What holds for every change: on one job that has something for all of them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume, Change
from diagnose.replay.change_text import known
from diagnose.replay.changes.buckets import MIB, BucketSize
from diagnose.replay.changes.collectives import DelayCollective, FasterCollectives
from diagnose.replay.changes.kernels import FasterKernels, HigherClocks
from diagnose.replay.model import Model
from tests.unit.replay.changes.jobs import Job, step_of

SLOWER_AT_TIMES = {"bucket-size", "delay-collective", "communication-stream", "comm-priority"}
"""What costs time where it does not fit the job."""


def busy() -> Model:
    """Two ranks, two steps: loading, copies, both passes, reductions, optimizer, waits."""
    job = Job(2)
    for rank in range(2):
        job.earlier_call(0.1, 0.2, rank)
    for step in range(2):
        for rank in range(2):
            t = 5_000.0 * step + 1
            loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            job.builders[rank].operator(loading, t, 1_500, category="user_annotation")
            job.call("cudaMalloc", rank=rank, work=2_000_000, takes=9_000, at=(t + 2_000, 9))
            sent = job.call("cudaMemcpyAsync", rank=rank, takes=9_000, waits=True)
            copy = job.copy("HtoD (Pageable -> Device)", 90_000, size=1 << 20, by=sent, rank=rank)
            job.waits_for(copy, sent, lag=2_000)
            for _ in range(3 + rank):
                job.kernel("nvjet_gemm", 40_000, by=job.call(rank=rank, takes=5_000), rank=rank)
            handed = job.call(rank=rank, takes=5_000, thread="backward")
            for number in range(2):
                by = handed if number == 0 else job.call(rank=rank, takes=5_000, thread="backward")
                last = job.kernel("nvjet_gemm", 60_000, by=by, rank=rank, pause=1_500)
                reduced = job.collective(
                    50_000,
                    elements=(5 * number + 1) * 10 * MIB // 4,
                    dtype="Float",
                    by=job.call(rank=rank, takes=5_000, thread="backward"),
                    rank=rank,
                    match=2 * step + number,
                    stream="compute" if number else "communication",
                )
                job.waits_for(last, reduced, lag=3_000)
            job.waits_for(sent, handed, lag=10_000)
            begin = job.now(rank)
            for _ in range(3):
                tuned = job.kernel("multi_tensor", 9_000, by=job.call(rank=rank), rank=rank)
            job.waits_for(reduced, tuned)
            mark = "Optimizer.step#SGD.step"
            job.builders[rank].operator(
                mark, begin - 0.1, job.now(rank) - begin, category="user_annotation"
            )
            wait = job.call("cudaDeviceSynchronize", rank=rank, takes=1_000, waits=True)
            job.waits_for(tuned, wait, lag=1_000)
        job.next_step()
    return job.model()


def every() -> list[Change]:
    return [
        kind(mhz=1980.0) if kind is HigherClocks else kind()  # type: ignore[call-arg]
        for kind in known().values()
    ]


def arrays(model: Model) -> list[np.ndarray]:
    parts = (model.operations, model.calls)
    found = [getattr(part, field.name) for part in parts for field in fields(part)]
    return found + list(model.dependencies)


APPLIED: set[str] = set()


@pytest.mark.parametrize("assume", list(Assume))
@pytest.mark.parametrize("change", every(), ids=lambda change: change.id)
def test_nothing_is_edited_in_place_and_the_result_runs(change: Change, assume: Assume) -> None:
    """The arrays refuse to be written to (``Job.model``); what they hold is compared too."""
    model = busy()
    before = [column.copy() for column in arrays(model)]
    found = change.apply(model, assume)
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(model), strict=True))
    if isinstance(found, Unavailable):
        assert found.because
        return
    assert found is not model
    assert step_of(found) > 0
    for part in (found.operations, found.calls):
        assert len({len(getattr(part, field.name)) for field in fields(part)} - {0}) == 1
    nodes = found.num_ops + len(found.calls.row)
    for node in (found.dependencies.from_node, found.dependencies.to_node):
        assert ((node >= 0) & (node < nodes)).all()


def test_nearly_every_change_finds_something_here() -> None:
    """What is not there: contention, garbage, a clock, a second backward pass, another order."""
    missing = {
        change.id
        for change in every()
        if isinstance(change.apply(busy(), Assume.LIKELY), Unavailable)
    }
    assert missing == {
        "no-contention",
        "no-garbage-collection",
        "higher-clocks",
        "accumulate-without-sync",
        "comm-priority",
    }


@pytest.mark.parametrize("change", every(), ids=lambda change: change.id)
def test_no_change_for_the_better_costs_time(change: Change) -> None:
    model = busy()
    if change.id in SLOWER_AT_TIMES:
        return
    for assume in Assume:
        found = change.apply(model, assume)
        if not isinstance(found, Unavailable):
            assert step_of(found) <= step_of(model)


@pytest.mark.parametrize("change", every(), ids=lambda change: change.id)
def test_more_is_assumed_more_is_gained(change: Change) -> None:
    steps = []
    for assume in Assume:
        found = change.apply(busy(), assume)
        if not isinstance(found, Unavailable):
            steps.append(step_of(found))
    assert steps == sorted(steps, reverse=True)


def test_bounds_lie_below_what_can_be_done() -> None:
    model = busy()
    bound = model
    for kind in known().values():
        if kind.is_bound:
            found = kind().apply(bound, Assume.LIKELY)
            assert not isinstance(found, Unavailable)
            bound = found
    for kind in known().values():
        if kind.searched and not kind.is_bound:
            found = kind().apply(model, Assume.LIKELY)
            below = kind().apply(bound, Assume.LIKELY)
            if not isinstance(found, Unavailable) and not isinstance(below, Unavailable):
                assert step_of(below) <= step_of(found)


@pytest.mark.parametrize(
    "change",
    [
        FasterCollectives(factor=1.0),
        FasterKernels(factor=1.0),
        DelayCollective(us=0.0),
    ],
)
def test_factors_of_one_change_nothing(change: Change) -> None:
    model = busy()
    found = change.apply(model, Assume.LIKELY)
    assert not isinstance(found, Unavailable)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(model), arrays(found), strict=True))


@pytest.mark.parametrize("order", [1, -1])
def test_changes_follow_each_other(order: int) -> None:
    """All of them, one on the other, both ways round."""
    model = busy()
    for change in [*every(), BucketSize(mb=1), BucketSize(mb=100)][::order]:
        found = change.apply(model, Assume.LIKELY)
        if not isinstance(found, Unavailable):
            assert step_of(found) >= 0
            model = found
