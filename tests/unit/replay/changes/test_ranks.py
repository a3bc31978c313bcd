"""Late ranks brought to the median: new step times worked out by hand."""

from __future__ import annotations

from diagnose.replay.change import Assume
from diagnose.replay.changes.ranks import NoStraggler
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of


def ranks(*work: list[tuple[str, int]], host: tuple[int, ...] = ()) -> Job:
    """Each rank does its kernels, then an all-reduce of 20 with all, then 10."""
    job = Job(len(work))
    for rank, kernels in enumerate(work):
        spent = host[rank] if host else 0
        for name, duration in kernels:
            last = job.kernel(name, duration, rank=rank, by=job.call(rank=rank, work=spent))
        sent = job.collective(20, rank=rank, match=0, by=job.call(rank=rank))
        job.waits_for(last, sent)
        job.waits_for(sent, job.kernel("adam", 10, rank=rank, by=job.call(rank=rank)))
    job.next_step()
    return job


def test_extra_kernels_of_a_rank_go() -> None:
    """Rank 1 does a third product of 50, with pauses for nobody else: 130 becomes 80 + 30."""
    model = ranks([("mm", 40), ("mm", 40)], [("mm", 40), ("mm", 40), ("mm", 50)]).model()
    assert step_of(model) == 130 + 20 + 10
    assert after(model, NoStraggler()) == 80 + 20 + 10
    found = changed(model, NoStraggler()).operations.duration_ns
    assert found.tolist() == [40, 40, 20, 10, 40, 40, 0, 20, 10]


def test_work_at_another_place_is_none_too_much() -> None:
    """Rank 1 launches its addition after the reduction, rank 0 before: both do one."""
    job = Job(2)
    for rank in range(2):
        names = ("add", "mm") if rank == 0 else ("mm",)
        for name in names:
            last = job.kernel(name, 40, rank=rank, by=job.call(rank=rank))
        job.waits_for(last, job.collective(20, rank=rank, match=0, by=job.call(rank=rank)))
        if rank == 1:
            job.kernel("add", 40, rank=rank, by=job.call(rank=rank))
    job.next_step()
    model = job.model()
    found = changed(model, NoStraggler()).operations.duration_ns
    assert found.tolist() == model.operations.duration_ns.tolist() == [40, 40, 20, 40, 20, 40]


def test_slower_kernels_of_a_rank_are_shortened() -> None:
    """Rank 1 takes 90 where rank 0 takes 60, adam 10 as well: factor 70 / 100."""
    model = ranks([("mm", 60)], [("mm", 90)]).model()
    assert step_of(model) == 90 + 20 + 10
    found = changed(model, NoStraggler())
    assert found.operations.duration_ns.tolist() == [60, 20, 10, 63, 20, 7]
    # Alike in sum: 60 + 20 + 10 and 63 + 20 + 7.
    assert step_of(found) == 90


def test_the_median_of_three_is_kept() -> None:
    """80, 60 and 40: the first comes down to 60 (with adam 70 of 90), the others stay."""
    found = changed(ranks([("mm", 80)], [("mm", 60)], [("mm", 40)]).model(), NoStraggler())
    assert found.operations.duration_ns.tolist() == [62, 20, 8, 60, 20, 10, 40, 20, 10]


def test_of_four_the_lower_median() -> None:
    model = ranks(*([("mm", one)] for one in (40, 50, 60, 70))).model()
    found = changed(model, NoStraggler()).operations.duration_ns
    # 60 of work is the second lowest sum (50 + 10): 70 and 80 come down to it.
    assert found[0::3].tolist() == [40, 50, round(60 * 60 / 70), round(70 * 60 / 80)]


def test_a_slow_host_is_levelled() -> None:
    """Rank 1's host works 90 before its kernel, rank 0's 30."""
    model = ranks([("mm", 10)], [("mm", 10)], host=(30, 90)).model()
    assert step_of(model) == 90
    assert changed(model, NoStraggler()).calls.work_ns.tolist() == [30, 0, 0, 30, 0, 0]
    # The host's 30 are shorter than the GPU's 10 + 20 + 10.
    assert after(model, NoStraggler()) == 40
    assert after(model, NoStraggler(), Assume.LEAST) == 90


def test_equal_ranks_stay_as_they_are() -> None:
    model = ranks([("mm", 60)], [("mm", 60)]).model()
    found = changed(model, NoStraggler())
    assert found.operations.duration_ns.tolist() == model.operations.duration_ns.tolist()
    assert step_of(found) == step_of(model) == 90


def test_nobody_to_compare_with() -> None:
    assert because(ranks([("mm", 60)]).model(), NoStraggler()).startswith("one GPU alone")
    job = Job(2)
    for rank in range(2):
        job.kernel("mm", 10, rank=rank)
    assert because(job.model(), NoStraggler()).startswith("no collective is matched")
