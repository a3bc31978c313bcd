"""Copies pinned or on their own stream: new step times worked out by hand."""

from __future__ import annotations

import pytest

from diagnose.analysis import Unavailable
from diagnose.replay.change import Assume
from diagnose.replay.changes.copies import CopyStream, PinnedCopies
from tests.builder import build_trace
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of, with_environment

SIZE = 52_000_000
HOPPER = {"gpu": {"compute_capability": "9.0"}}


def pageable(*, pinned: bool = False) -> Job:
    """A pageable copy of 52 MB takes 10 ms, the host waits for it, then a kernel of 4 ms."""
    job = Job()
    copying = job.call("cudaMemcpyAsync", takes=1_000, waits=True)
    copy = job.copy("HtoD (Pageable -> Device)", 10_000_000, size=SIZE, by=copying)
    job.waits_for(copy, copying)
    behind = job.call("cudaStreamSynchronize", takes=1_000, waits=True)
    job.waits_for(copy, behind)
    job.kernel("gemm", 4_000_000, by=job.call(takes=2_000))
    if pinned:
        sent = job.call("cudaMemcpyAsync", takes=2_000)
        job.copy("HtoD (Pinned -> Device)", 200_000, size=4_000_000, by=sent, stream="other")
    job.next_step()
    return job


@pytest.mark.parametrize(
    ("assume", "rate"), [(Assume.LEAST, 25.0), (Assume.LIKELY, 52.0), (Assume.MOST, 57.0)]
)
def test_as_fast_as_the_link_of_the_gpu(assume: Assume, rate: float) -> None:
    job = pageable()
    model = job.model(with_environment(build_trace(*job.builders), HOPPER))
    # The synchronisation behind the copy takes 1 us more, then the kernel is launched.
    assert step_of(model) == 10_000_000 + 1_000 + 4_000_000
    assert after(model, PinnedCopies(), assume) == round(SIZE / rate) + 4_000_000


def test_as_fast_as_pinned_copies_of_the_recording() -> None:
    """4 MB in 200 us are 20 GB/s: 52 MB take 2.6 ms."""
    found = changed(pageable(pinned=True).model(), PinnedCopies())
    assert found.operations.duration_ns[0] == 2_600_000
    assert not found.calls.waits.any()
    assert "20 GB/s" in found.remarks[0]


def test_no_slower_than_it_was() -> None:
    job = Job()
    job.copy("HtoD (Pageable -> Device)", 1_000, size=SIZE, by=job.call("cudaMemcpyAsync"))
    assert changed(job.model(), PinnedCopies()).operations.duration_ns.tolist() == [1_000]


def test_ranks_that_share_a_gpu_share_its_link() -> None:
    job = pageable()
    shared = HOPPER | {"env": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}}
    model = job.model(with_environment(build_trace(*job.builders), shared))
    found = changed(model, PinnedCopies())
    assert found.operations.duration_ns[0] == 2_000_000  # 52 MB at 52 / 2 GB/s
    assert "share" in found.remarks[0]
    most = changed(model, PinnedCopies(), Assume.MOST)
    assert most.operations.duration_ns[0] == round(SIZE / 57)


def test_an_unknown_gpu_has_a_wide_range() -> None:
    model = pageable().model()
    durations = [changed(model, PinnedCopies(), one).operations.duration_ns[0] for one in Assume]
    assert durations == [5_200_000, 2_080_000, round(SIZE / 55)]


def test_copies_a_step_ahead() -> None:
    """Copy 10, kernel 40 on one stream: side by side the step is the longer one."""
    job = Job()
    for _ in range(2):
        job.copy("HtoD (Pinned -> Device)", 10, by=job.call("cudaMemcpyAsync"))
        job.kernel("gemm", 40, by=job.call())
        job.next_step()
    model = job.model()
    assert step_of(model) == 50
    assert after(model, CopyStream()) == 40


def test_a_copy_longer_than_the_step_is_the_limit() -> None:
    job = Job()
    for _ in range(2):
        job.copy("HtoD (Pinned -> Device)", 70, by=job.call("cudaMemcpyAsync"))
        job.kernel("gemm", 40, by=job.call())
        job.next_step()
    assert after(job.model(), CopyStream()) == 70


def test_what_uses_a_copy_waits_for_the_one_of_the_step_before() -> None:
    job = Job()
    for _ in range(2):
        job.copy("HtoD (Pinned -> Device)", 10, by=job.call("cudaMemcpyAsync"))
        job.kernel("gemm", 40, by=job.call())
        job.next_step()
    found = changed(job.model(), CopyStream())
    added = found.dependencies.take(found.dependencies.kind == 1)
    rows = zip(
        added.from_node.tolist(), added.to_node.tolist(), added.steps_ahead.tolist(), strict=True
    )
    assert sorted(rows) == [(0, 3, 0), (2, 1, 1)]


def test_nothing_to_copy() -> None:
    job = Job()
    job.kernel("gemm", 40)
    assert because(job.model(), PinnedCopies()).startswith("no copy of the replayed steps")
    assert because(job.model(), CopyStream()).startswith("no copy from the host runs")
    assert isinstance(CopyStream().apply(job.model(), Assume.LIKELY), Unavailable)
