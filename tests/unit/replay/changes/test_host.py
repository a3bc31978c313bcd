"""Host waits, allocations, garbage collection: new step times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.replay.change import Assume
from diagnose.replay.changes._host_spans import spans_around, without_spans
from diagnose.replay.changes.bounds import NoHostLimit
from diagnose.replay.changes.host import (
    BRINGS_VALUES,
    NoAllocatorCalls,
    NoGarbageCollection,
    NoHostSync,
)
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of


def waiting() -> Job:
    """Steps of 137: launch 5 + 2, kernel after 3 for 100; the host waits, returns 12 later.

    The call that launches starts at 5 (after the return before), its kernel ends at 108, the
    wait returns at 120; then 15 of work and 2 more of the second wait's call.
    """
    job = Job()
    for _ in range(2):
        launch = job.call(work=5, takes=2)
        kernel = job.kernel("gemm", 100, by=launch, lag=3)
        wait = job.call("cudaStreamSynchronize", work=1, takes=3, waits=True)
        job.waits_for(kernel, wait, lag=12)
        last = job.call("cudaDeviceSynchronize", work=15, takes=2, waits=True)
        job.waits_for(kernel, last, lag=0)
        job.next_step()
    return job


def test_a_host_that_does_not_wait_lets_the_gpu_run() -> None:
    model = waiting().model()
    assert step_of(model) == 5 + 3 + 100 + 12 + 15 + 2
    # Then the kernels follow each other; the host needs 5 + 2 + 1 + 3 + 15 + 2 a step.
    assert after(model, NoHostSync()) == 100


def test_the_last_wait_of_a_step_can_stay() -> None:
    """It returns at 108; the 5 of the next step follow: the 12 and the 17 are hidden."""
    assert after(waiting().model(), NoHostSync(keep_last=True)) == 5 + 3 + 100


def reading(name: str, *, around: tuple[int, int] = (8_000, 2_000)) -> Job:
    """Steps of 62 us: a launch, an operator of 40 us with a copy and a wait, a launch.

    In us from the step's begin: launch 10 to 12, operator 15 to 55, copy 20 to 23, wait 25 to
    50, launch 60 to 62. ``around``: work before copy and wait; as recorded 8 and 2 us.
    """
    job = Job()
    for step in range(2):
        t = 62 * step
        first = job.call(work=10_000, takes=2_000, at=(t + 10, 2))
        job.kernel("gemm", 5_000, by=first)
        copying = job.call("cudaMemcpyAsync", work=around[0], takes=3_000, at=(t + 20, 3))
        copy = job.copy("DtoH (Device -> Pageable)", 1_000, by=copying)
        wait = job.call(
            "cudaStreamSynchronize", work=around[1], takes=1_000, waits=True, at=(t + 25, 25)
        )
        job.waits_for(copy, wait)
        last = job.call(work=10_000, takes=2_000, at=(t + 60, 2))
        job.kernel("gemm", 5_000, by=last)
        job.builders[0].operator(name, t + 15, 40)
        job.next_step()
    return job


def test_operators_that_only_bring_a_value_go_with_their_wait() -> None:
    """Of the operator's time 5 are before the copy, 2 before the wait, 5 before the launch.

    Before: 10 + 2, 8 + 3, 2 + 1, 10 + 2. After: 10 + 2, 3, 0, 5 + 2; the copy is gone.
    """
    model = reading("aten::item").model()
    assert step_of(model) == 38_000
    assert after(model, NoHostSync()) == 22_000
    assert after(model, NoHostSync(), Assume.LEAST) == 38_000
    found = changed(model, NoHostSync())
    assert found.calls.call_ns.tolist() == 2 * [2_000, 0, 0, 2_000]
    assert found.operations.duration_ns.tolist() == 2 * [5_000, 0, 5_000]


def test_other_operators_that_wait_stay() -> None:
    found = changed(reading("aten::to").model(), NoHostSync())
    assert found.calls.work_ns.tolist() == 2 * [10_000, 8_000, 2_000, 10_000]
    assert found.operations.duration_ns.tolist() == 2 * [5_000, 1_000, 5_000]
    assert not found.calls.waits.any()


def test_what_the_average_cost_of_an_event_took_too_much_is_taken_elsewhere() -> None:
    """As above, but nothing is left of the 8 and 2 around the copy and the wait.

    Left of the recorded host time, the waits and the first call (nothing is known of the time
    before it) apart: 2 x (0 + 3) + 2 x (10 + 2) + 12 of 2 x (8 + 3) + 2 x 12 + 12: 42 of 58.
    So the 12 of the operator were 12 x 42 / 58 = 8.69: 5 x 42 / 58 = 3.62 before the last launch,
    the rest is taken from what is left of both launches' work; least gain: the 3.62 only.
    """
    model = reading("aten::item", around=(0, 0)).model()
    work = changed(model, NoHostSync()).calls.work_ns.reshape(2, 4)
    assert work.sum(axis=1) == pytest.approx([20_000 - 12_000 * 42 / 58] * 2, abs=2)
    assert work[:, 1:3].tolist() == [[0, 0], [0, 0]]
    rows, _ = spans_around(model, BRINGS_VALUES, model.calls.waits, ~model.calls.waits)
    assert not rows.size  # the copy's call is within, and was said to stay
    rows, inside = spans_around(model, BRINGS_VALUES, model.calls.waits, np.zeros(8, bool))
    assert inside.tolist() == 2 * [False, True, True, False]
    least = without_spans(model, rows, Assume.LEAST).calls.work_ns.reshape(2, 4)
    assert least.sum(axis=1) == pytest.approx([20_000 - 5_000 * 42 / 58] * 2, abs=2)


def test_nothing_waits() -> None:
    job = Job()
    job.kernel("gemm", 100, by=job.call())
    assert because(job.model(), NoHostSync()) == (
        "no host call of the replayed steps waits for the GPU"
    )


def test_copies_from_pageable_memory_go_on_waiting() -> None:
    job = Job()
    copying = job.call("cudaMemcpyAsync", takes=1, waits=True)
    copy = job.copy("HtoD (Pageable -> Device)", 50, by=copying)
    job.waits_for(copy, copying)
    behind = job.call("cudaStreamSynchronize", takes=1, waits=True)
    job.waits_for(copy, behind)
    job.call("cudaEventSynchronize", takes=1, waits=True)
    model = changed(job.model(), NoHostSync())
    assert model.calls.waits.tolist() == [True, True, False]


def test_launches_that_block_no_longer_do() -> None:
    """CUDA_LAUNCH_BLOCKING=1: every launch returns when its kernel is done."""
    job = Job()
    for number in range(2):
        launch = job.call(work=1_000, takes=40_000, at=(100 * number, 40))
        job.kernel("gemm", 30_000, by=launch, lag=5_000, at=(100 * number + 5, 30))
    model = job.model()
    assert step_of(model) == 2 * 41_000
    # A launch of 5 us (2 to 10) and 1 of work: the GPU is the limit then.
    assert after(model, NoHostSync()) == 2 * 30_000
    assert changed(model, NoHostSync(), Assume.LEAST).calls.call_ns.tolist() == [10_000] * 2
    assert changed(model, NoHostSync(), Assume.MOST).calls.call_ns.tolist() == [2_000] * 2


def test_launches_that_return_early_stay() -> None:
    job = Job()
    job.kernel("gemm", 30_000, by=job.call(takes=9_000, at=(0, 9)), at=(8, 30))
    assert because(job.model(), NoHostSync()).startswith("no host call")


def allocating() -> Job:
    """Steps of 80: 10 of work, 30 of cudaMalloc, a synchronisation, 25 of cudaFree."""
    job = Job()
    job.call("cudaMalloc", work=4, takes=30)
    job.call("cudaStreamSynchronize", work=1, takes=5, waits=True)
    job.call("cudaFree", work=0, takes=25, waits=True)
    launch = job.call(work=5, takes=10)
    job.kernel("gemm", 8, by=launch)
    return job


def test_allocations_take_nothing_and_wait_for_nothing() -> None:
    model = allocating().model()
    assert step_of(model) == 80
    freed = changed(model, NoAllocatorCalls())
    assert step_of(freed) == 80 - 30 - 5 - 25
    assert not freed.calls.waits.any()


def test_no_allocations() -> None:
    assert because(waiting().model(), NoAllocatorCalls()).startswith("no call of the replayed")


def test_garbage_collection_is_taken_out_of_the_work_before_a_call() -> None:
    """A collection of 30 us between two calls whose gap is 40: 10 of work are left."""
    job = Job()
    job.kernel("gemm", 1_000, by=job.call(takes=2_000, at=(10, 2)))
    job.kernel("gemm", 1_000, by=job.call(work=40_000, takes=2_000, at=(52, 2)))
    job.builders[0].operator("gc.collect", 15, 30, category="python_function")
    model = job.model()
    assert step_of(model) == 44_000
    assert after(model, NoGarbageCollection()) == 14_000


def test_no_garbage_collection_was_recorded() -> None:
    assert because(waiting().model(), NoGarbageCollection()).startswith("no garbage collection")


def test_without_the_host_only_the_gpu_is_left() -> None:
    model = waiting().model()
    assert after(model, NoHostLimit()) == 100
