"""Data loading removed or overlapped: new step times worked out by hand."""

from __future__ import annotations

import pytest

from diagnose.replay.changes.loading import ABSENT, DataReady, PrefetchData
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of


def loading(span: str | None) -> Job:
    """Steps of 5 ms on the host: 4 ms before the first call, of which 3 ms are loading, then 1 ms.

    The GPU works 2 ms a step. ``span``: what the 3 ms are recorded as; None: not at all.
    """
    job = Job()
    for step in range(2):
        t = 5_000 * step
        first = job.call(work=3_998_000, takes=2_000, at=(t + 3_998, 2))
        job.kernel("gemm", 1_000_000, by=first, at=(t + 4_100, 1_000))
        # The thread is busy from 3.2 ms on: the time before is what it was away.
        job.builders[0].operator("aten::mm", t + 3_000, 950)
        second = job.call(work=998_000, takes=2_000, at=(t + 4_998, 2))
        job.builders[0].operator("aten::mm", t + 4_000, 990)
        job.kernel("gemm", 1_000_000, by=second, at=(t + 5_100, 900))
        if span is not None:
            job.builders[0].operator(span, t + 500, 2_000, category="user_annotation")
        job.next_step()
    return job


def test_spans_of_a_data_loader_are_taken_out() -> None:
    """Known only from the second step on: before the first call nothing was recorded."""
    model = loading("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__").model()
    assert step_of(model) == 5_000_000
    ready = changed(model, DataReady())
    assert ready.calls.work_ns.tolist() == [3_998_000, 998_000, 1_998_000, 998_000]
    assert ABSENT not in ready.remarks


def test_without_spans_a_host_that_runs_nothing_is_taken_to_load() -> None:
    """From the call before, at 5 ms, to the operator at 8 ms: 3 ms of the second step."""
    ready = changed(loading(None).model(), DataReady())
    assert ready.calls.work_ns.tolist() == [3_998_000, 998_000, 998_000, 998_000]
    assert ABSENT in ready.remarks


def test_a_host_that_was_given_much_works_on_that() -> None:
    """1 MiB copied to the host right before it is away: a checkpoint, not input."""
    for size, left in ((1 << 20, 3_998_000), (4, 998_000)):
        job = Job()
        for step in range(2):
            t = 5_000 * step
            first = job.call(work=3_998_000, takes=2_000, at=(t + 3_998, 2))
            job.kernel("gemm", 900_000, by=first, at=(t + 4_050, 900))
            job.builders[0].operator("aten::mm", t + 3_000, 950)
            second = job.call(work=998_000, takes=2_000, at=(t + 4_998, 2))
            job.builders[0].operator("aten::mm", t + 4_000, 990)
            job.copy("DtoH", 1_000, size=size, by=second, at=(t + 5_000, 1))
            job.next_step()
        ready = DataReady()
        if size == 4:
            assert changed(job.model(), ready).calls.work_ns.tolist()[2] == left
        else:
            assert because(job.model(), ready).startswith("no data loading was recorded")


def test_a_host_that_is_away_shortly_does_not_load() -> None:
    job = Job()
    for step in range(2):
        launch = job.call(work=900_000, at=(1_000 * step, 2))
        job.kernel("gemm", 100, by=launch, at=(1_000 * step + 10, 1))
        job.builders[0].operator("aten::mm", 1_000 * step + 100, 100)
        job.next_step()
    assert because(job.model(), DataReady()).startswith("no data loading was recorded")


@pytest.mark.parametrize(
    ("workers", "step"),
    [
        (1, 3_000_000),  # one process loads 3 ms a step: longer than all else
        (2, 2_000_000),  # 1.5 ms a step: the host's other 2 ms are the limit, as is the GPU
        (4, 2_000_000),
    ],
)
def test_workers_load_beside_the_step(workers: int, step: int) -> None:
    """Steps of 5 ms: 3 ms of loading, then 2 ms of host work; the GPU works 1.9 ms."""
    job = Job()
    job.earlier_call(8)
    for number in range(3):
        t = 10 + 5_000 * number
        launch = job.call(work=4_998_000, takes=2_000, at=(t + 4_998, 2))
        job.kernel("gemm", 1_900_000, by=launch, at=(t + 5_010, 1_900))
        span = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        job.builders[0].operator(span, t, 3_000, category="user_annotation")
        job.next_step()
    model = job.model()
    assert step_of(model) == 5_000_000
    assert after(model, DataReady()) == 2_000_000
    assert after(model, PrefetchData(workers=workers)) == step


def test_calls_that_the_model_leaves_out_do_not_end_loading() -> None:
    """A loader without workers pins its batch: it asks for an event at 2.5 ms and at 4 ms."""
    job = Job()
    job.earlier_call(8)
    for number in range(3):
        t = 10 + 5_000 * number
        launch = job.call(work=4_998_000, takes=2_000, at=(t + 4_998, 2))
        job.kernel("gemm", 1_900_000, by=launch, at=(t + 5_010, 1_900))
        span = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        job.builders[0].operator(span, t, 3_000, category="user_annotation")
        job.builders[0].operator("aten::pin_memory", t + 2_400, 300)
        job.query(t + 2_500)
        job.query(t + 4_000)
        job.next_step()
    model = job.model()
    assert changed(model, DataReady()).calls.work_ns.tolist() == [1_998_000] * 3
    assert after(model, PrefetchData(workers=4)) == 2_000_000


def test_any_call_shows_that_the_host_is_not_away() -> None:
    """1.7 ms between launches, but a query in the middle: 0.85 ms at a time."""
    job = Job()
    for step in range(3):
        t = 1_700 * step
        launch = job.call(work=1_698_000, takes=2_000, at=(t, 2))
        job.kernel("gemm", 100, by=launch, at=(t + 10, 1))
        job.query(t + 850)
        job.next_step()
    assert because(job.model(), DataReady()).startswith("no data loading was recorded")


def test_workers_are_a_number() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        PrefetchData(workers=0)
