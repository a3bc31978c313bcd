"""Gradient buckets merged and split, reductions left out: worked out by hand. Times in ns."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.replay.change import Assume
from diagnose.replay.changes._collective_cost import NOT_FITTED
from diagnose.replay.changes._gradients import gradient_reductions
from diagnose.replay.changes.accumulation import AccumulateWithoutSync
from diagnose.replay.changes.buckets import MIB, BucketSize
from tests.unit.replay.changes.jobs import THREADS, Job, after, because, changed, step_of

IN_MIB = MIB // 2  # elements of bfloat16


def backward(*buckets: tuple[int, int], forward: int = 0) -> Job:
    """A bucket (MiB, ns of its transfer) after each backward kernel of 100 us.

    Kernels are launched by the backward thread, 1 us a launch; then an optimizer of 10 us
    that waits for all. ``forward``: elements reduced in the forward pass of 50 us.
    """
    job = Job()
    start = job.call(takes=1_000)
    job.kernel("gemm", 50_000, by=start)
    if forward:
        job.collective(5_000, elements=forward, by=job.call(takes=1_000))
    for size, duration in buckets:
        launch = job.call(takes=1_000, thread="backward")
        kernel = job.kernel("gemm", 100_000, by=launch)
        sent = job.collective(
            duration, elements=size * IN_MIB, by=job.call(takes=1_000, thread="backward")
        )
        job.waits_for(kernel, sent)
    optimizer = job.kernel("adam", 10_000, by=job.call(takes=1_000))
    job.waits_for(sent, optimizer)
    job.next_step()
    return job


def test_merged_buckets_save_a_latency_and_begin_later() -> None:
    """10 and 10 MiB of 50 us each: as one of 20 MiB 85 us (15 saved), after the second kernel.

    Before: 50 + 200 + 50 + 10. The first was hidden, so merging costs 35 us.
    """
    model = backward((10, 50_000), (10, 50_000)).model()
    assert step_of(model) == 310_000
    assert after(model, BucketSize(mb=20)) == 50_000 + 200_000 + 85_000 + 10_000
    found = changed(model, BucketSize(mb=20)).operations
    assert found.duration_ns.tolist() == [50_000, 100_000, 0, 100_000, 85_000, 10_000]
    assert found.bytes[4] == 20 * MIB
    assert NOT_FITTED in changed(model, BucketSize(mb=20)).remarks


@pytest.mark.parametrize("assume", list(Assume))
def test_merged_buckets_take_their_operators_with_them(assume: Assume) -> None:
    """A host of 82 us a step: 19 + 1 and 20 + 1, twice; the GPU has far less to do.

    The operator of the first message runs from 6 to 31 us: 15 before its launch at 21, 9 more
    before the next at 41. With its launch of 1 that leaves 82 - 25.
    """
    job = Job()
    for step in range(2):
        t = 82 * step
        for begin in (t, t + 41):
            launch = job.call(work=19_000, takes=1_000, thread="backward", at=(begin, 1))
            kernel = job.kernel("gemm", 1_000, by=launch)
            sending = job.call(work=20_000, takes=1_000, thread="backward", at=(begin + 21, 1))
            sent = job.collective(10_000, elements=10 * IN_MIB, by=sending)
            job.waits_for(kernel, sent)
            job.builders[0].operator("c10d::allreduce_", begin + 6, 25, thread=THREADS["backward"])
        job.next_step()
    model = job.model()
    assert step_of(model) == 82_000
    assert after(model, BucketSize(mb=20), assume) == 82_000 - 25_000


def test_latency_decides_the_range_of_merging() -> None:
    model = backward((10, 50_000), (10, 50_000)).model()
    found = [after(model, BucketSize(mb=20), one) - 260_000 for one in Assume]
    assert found == [100_000 - 5_000, 100_000 - 15_000, 100_000 - 40_000]


def test_buckets_are_full_as_soon_as_they_hold_that_much() -> None:
    """1, 1, 5, 1, 1 MiB at 2: the first two together, the 5 in two parts, the last two."""
    model = backward(*((size, 50_000) for size in (1, 1, 5, 1, 1))).model()
    found = changed(model, BucketSize(mb=2)).operations
    sizes = found.bytes[found.bytes > 0].tolist()
    assert sorted(sizes) == [2 * MIB, 2 * MIB, 5 * MIB // 2, 5 * MIB // 2]


def test_a_split_bucket_begins_with_its_share() -> None:
    """One bucket of 40 MiB and 215 us after two kernels of 100: latency 15 + 200 by bytes.

    As two of 20 MiB, 115 us each: the first after the first kernel (from 150 on), the second
    behind it, from 265 to 380. Before: 250 + 215 + 10 = 475.
    """
    job = Job()
    job.kernel("gemm", 50_000, by=job.call(takes=1_000))
    launch = job.call(takes=1_000, thread="backward")
    job.kernel("gemm", 100_000, by=launch)
    kernel = job.kernel("gemm", 100_000, by=job.call(takes=1_000, thread="backward"))
    sent = job.collective(
        215_000, elements=40 * IN_MIB, by=job.call(takes=1_000, thread="backward")
    )
    job.waits_for(kernel, sent)
    job.waits_for(sent, job.kernel("adam", 10_000, by=job.call(takes=1_000)))
    job.next_step()
    model = job.model()
    assert step_of(model) == 475_000
    assert after(model, BucketSize(mb=20)) == 380_000 + 10_000
    # Least gain: a latency of 40 each (40 + 87.5), and not before all is there.
    assert after(model, BucketSize(mb=20), Assume.LEAST) == 250_000 + 2 * 127_500 + 10_000
    found = changed(model, BucketSize(mb=20))
    assert found.num_ops == model.num_ops + 1
    assert found.operations.bytes[[3, 5]].tolist() == [20 * MIB, 20 * MIB]
    # The further launch takes the backward thread 1 us more, behind the first kernel's.
    assert found.calls.call_ns.tolist() == [1_000, 2_000, 1_000, 1_000, 1_000]


def test_parts_of_a_collective_match_over_ranks() -> None:
    """Rank 1 is late by 60: both parts wait for it."""
    job = Job(2)
    for rank, late in enumerate((40_000, 100_000)):
        kernel = job.kernel("gemm", late, rank=rank, by=job.call(rank=rank))
        sent = job.collective(
            115_000, elements=40 * IN_MIB, rank=rank, match=3, by=job.call(rank=rank)
        )
        job.waits_for(kernel, sent)
        job.waits_for(sent, job.kernel("adam", 10_000, rank=rank, by=job.call(rank=rank)))
    job.next_step()
    model = job.model()
    assert step_of(model) == 100_000 + 115_000 + 10_000
    found = changed(model, BucketSize(mb=20))
    assert found.operations.match[[1, 4]].tolist() == [3, 3]
    first, second = found.operations.match[[6, 7]].tolist()
    assert first == second > 3
    assert step_of(found) == 100_000 + 2 * 65_000 + 10_000


def test_buckets_that_have_the_size_already() -> None:
    model = backward((25, 50_000), (30, 60_000)).model()
    assert (
        because(model, BucketSize()) == "gradients are reduced in buckets of about 25 MiB already"
    )


def test_reductions_of_the_forward_pass_are_no_gradients() -> None:
    """As many bytes forward as backward: tensor parallel layers, not gradients."""
    model = backward((10, 50_000), forward=10 * IN_MIB).model()
    assert not gradient_reductions(model).any()
    assert because(model, BucketSize()).endswith("no reduction of gradients")
    # A loss that is reduced is far smaller.
    model = backward((10, 50_000), forward=4).model()
    assert gradient_reductions(model).sum() == 2


def test_sizes_that_are_not_known() -> None:
    model = backward((10, 50_000)).model()
    unknown = model.with_operations(bytes=np.full(model.num_ops, np.iinfo(np.int64).min))
    assert because(unknown, BucketSize()).startswith("the sizes of the gradient reductions")


def test_a_size_is_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        BucketSize(mb=0)


def micro_batches(*sizes: tuple[int, ...]) -> Job:
    """A step of backward passes of 100 us, each followed by reductions of 30 us per size."""
    job = Job()
    for reduced in sizes:
        forward = job.call(takes=1_000)
        job.kernel("gemm", 50_000, by=forward)
        launch = job.call(takes=1_000, thread="backward")
        job.waits_for(forward, launch)
        kernel = job.kernel("gemm", 100_000, by=launch)
        for size in reduced:
            sent = job.collective(
                30_000, elements=size, by=job.call(takes=1_000, thread="backward")
            )
            job.waits_for(kernel, sent)
        job.waits_for(sent, job.kernel("accumulate", 10_000, by=job.call(takes=1_000)))
    job.next_step()
    return job


def test_only_the_last_micro_batch_reduces() -> None:
    """Three of 150 + 2 x 30 + 10 become two of 160 and one of 220."""
    model = micro_batches((4, 6), (4, 6), (4, 6)).model()
    assert step_of(model) == 3 * 220_000
    assert after(model, AccumulateWithoutSync()) == 2 * 160_000 + 220_000


@pytest.mark.parametrize("assume", list(Assume))
def test_a_reduction_takes_its_operators_and_bucket_copies_with_it(assume: Assume) -> None:
    """Two micro-batches of 62 us of the host: 19 + 1, 20 + 1 and 20 + 1; the GPU has less to do.

    Of the first the copy into the bucket goes (11 before its call, 4 after, 1 itself) and the
    message (15 before its call and 1 itself): 32.
    """
    job = Job()
    for micro in range(4):
        t = 62 * micro
        forward = job.call(takes=1_000, at=(t, 0.5))
        launch = job.call(work=19_000, takes=1_000, thread="backward", at=(t, 1))
        job.waits_for(forward, launch)
        job.kernel("gemm", 1_000, by=launch)
        copying = job.call(work=20_000, takes=1_000, thread="backward", at=(t + 21, 1))
        copied = job.kernel("mul", 1_000, by=copying)
        sending = job.call(work=20_000, takes=1_000, thread="backward", at=(t + 42, 1))
        job.waits_for(copied, job.collective(10_000, elements=IN_MIB, by=sending))
        for name, begin, length in (
            ("torch::distributed::reducer::mul_out", t + 10, 16),
            ("c10d::allreduce_", t + 27, 16),
        ):
            job.builders[0].operator(name, begin, length, thread=THREADS["backward"])
        if micro % 2:
            job.next_step()
    model = job.model()
    assert step_of(model) == 2 * 62_000
    assert after(model, AccumulateWithoutSync(), assume) == 2 * 62_000 - 32_000
    durations = changed(model, AccumulateWithoutSync(), assume).operations.duration_ns.tolist()
    # Streams one after the other: of each step the first copy and the first message are gone.
    assert sorted(durations) == [0, 0, 0, 0, *[1_000] * 6, 10_000, 10_000]


def test_different_reductions_all_stay() -> None:
    reason = "no step reduces the same gradients several times"
    assert because(micro_batches((4, 6), (4,)).model(), AccumulateWithoutSync()) == reason
    assert because(micro_batches((4, 6)).model(), AccumulateWithoutSync()) == reason
