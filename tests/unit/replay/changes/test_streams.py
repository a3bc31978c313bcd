"""Collectives on their own stream, and in the order of need: worked out by hand."""

from __future__ import annotations

import numpy as np

from diagnose.replay.change import Assume
from diagnose.replay.changes._edit import with_further
from diagnose.replay.changes.priorities import CommPriority
from diagnose.replay.changes.streams import CONSUMERS, CommunicationStream
from diagnose.replay.model import Kind, Model
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of


def serial(*, optimizer: bool = True, kind: str = "allreduce") -> Job:
    """On one stream: backward 100, reduce 60, backward 100, reduce 60, optimizer 10."""
    job = Job()
    for step in range(2):
        job.kernel("gemm", 50, by=job.call())
        for _ in range(2):
            job.kernel("gemm", 100, by=job.call(thread="backward"))
            job.collective(60, kind=kind, stream="compute", by=job.call(thread="backward"))
        begin = job.now()
        job.kernel("adam", 10, by=job.call())
        if optimizer:
            mark = f"Optimizer.step#SGD.step{step}"
            job.builders[0].operator(
                mark, begin - 0.2, job.now() - begin, category="user_annotation"
            )
        job.next_step()
    return job


def test_the_optimizer_waits_for_gradients() -> None:
    """The first reduction hides beside the second kernel, the second does not: 50 + 200 + 60 + 10.

    The lag of a wait for an event is 4 us where the recording shows none: before each
    reduction that counts and before the optimizer.
    """
    model = serial().model()
    assert step_of(model) == 380
    found = changed(model, CommunicationStream())
    waits = found.dependencies.kind == Kind.EVENT_WAIT
    assert set(found.dependencies.lag_ns[waits].tolist()) == {4_000}
    lag = found.dependencies.lag_ns * 0
    assert step_of(found.with_dependencies(found.dependencies._replace(lag_ns=lag))) == 320
    assert CONSUMERS in found.remarks


def no_lag(model: Model, assume: Assume) -> float:
    found = changed(model, CommunicationStream(), assume)
    dependencies = found.dependencies
    return step_of(found.with_dependencies(dependencies._replace(lag_ns=dependencies.lag_ns * 0)))


def test_without_an_optimizer_the_next_kernel_waits() -> None:
    assert no_lag(serial(optimizer=False).model(), Assume.LIKELY) == 380


def test_at_most_the_end_of_the_step_waits() -> None:
    """Then nothing is exposed but what the next step's first kernel waits for.

    The second reduction, from 250 on to 310, is beside the optimizer's 10.
    """
    assert no_lag(serial().model(), Assume.MOST) == 310


def test_other_collectives_are_used_at_once() -> None:
    """All-gathers: the next kernel waits for each; only with most gain the end of the step."""
    model = serial(kind="_allgather_base").model()
    assert no_lag(model, Assume.LIKELY) == 380
    assert no_lag(model, Assume.MOST) == 310


def test_compute_beside_them_is_slowed_for_the_least_gain() -> None:
    """The second kernel gets 60 of the first reduction beside it: 18.9 % more of that."""
    model = serial().model()
    slowed = changed(with_waits_at_once(model), CommunicationStream(), Assume.LEAST)
    more = slowed.operations.duration_ns - model.operations.duration_ns
    assert more.tolist() == [0, 0, 0, 11, 0, 0, 0, 0, 0, 11, 0, 0]


def with_waits_at_once(model: Model) -> Model:
    """With a wait for an event, without lag, that changes nothing: it shows the usual lag."""
    return with_further(model, np.array([0]), np.array([1]), 0, Kind.EVENT_WAIT)


def test_collectives_that_have_their_stream() -> None:
    job = Job()
    job.kernel("gemm", 10)
    job.collective(10)
    assert because(job.model(), CommunicationStream()).startswith("no collective runs on a stream")


def deferrable(ranks: int = 1) -> Job:
    """Kernel of 10; ready then: a reduction of 100 needed at the end, and a gather of 30 for the
    next kernel of 50; the gather is queued behind."""
    job = Job(ranks)
    for rank in range(ranks):
        first = job.kernel("gemm", 10, rank=rank)
        late = job.collective(100, rank=rank, match=0 if ranks > 1 else -1)
        soon = job.collective(30, kind="_allgather_base", rank=rank, match=1 if ranks > 1 else -1)
        job.waits_for(first, late)
        job.waits_for(first, soon)
        job.waits_for(soon, job.kernel("gemm", 50, rank=rank))
        job.waits_for(late, job.kernel("adam", 5, rank=rank))
    job.next_step()
    return job


def test_what_is_needed_first_goes_first() -> None:
    """Before: 10 + 100 + 30 + 50 + 5. Then the gather ends at 40, the reduction at 140."""
    model = deferrable().model()
    assert step_of(model) == 195
    assert after(model, CommPriority()) == 145


def test_the_order_is_the_same_on_all_ranks() -> None:
    model = deferrable(2).model()
    assert step_of(model) == 195
    found = changed(model, CommPriority())
    assert step_of(found) == 145
    place = found.operations.place
    assert place[2] < place[1]
    assert place[7] < place[6]


def test_what_is_not_ready_does_not_go_first() -> None:
    """The gather's input comes 40 later: the stream is not kept waiting for it."""
    job = Job()
    first = job.kernel("gemm", 10)
    late = job.collective(100)
    other = job.kernel("gemm", 50)
    soon = job.collective(30, kind="_allgather_base")
    job.waits_for(first, late)
    job.waits_for(other, soon)
    job.waits_for(soon, job.kernel("gemm", 50))
    job.waits_for(late, job.kernel("adam", 5))
    job.next_step()
    assert because(job.model(), CommPriority()).endswith("order of need already")
