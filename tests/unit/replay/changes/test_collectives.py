"""Collectives faster, narrower, later or free: new step times worked out by hand."""

from __future__ import annotations

import pytest

from diagnose.replay.change import Assume
from diagnose.replay.changes._collective_cost import ASSUMED_NS, NOT_FITTED, latencies
from diagnose.replay.changes.bounds import HideCommunication
from diagnose.replay.changes.collectives import (
    DelayCollective,
    FasterCollectives,
    NarrowGradients,
)
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of

MEGA = 1_000_000


def exposed(*elements: int, dtype: str = "BFloat16", duration: int = 60_000) -> Job:
    """A kernel of 100 us, collectives after it that the next kernel (of 10 us) waits for."""
    job = Job()
    backward = job.kernel("gemm", 100_000, by=job.call())
    for number in elements:
        sent = job.collective(duration, elements=number, dtype=dtype, by=job.call())
        job.waits_for(backward, sent)
    optimizer = job.kernel("adam", 10_000, by=job.call())
    job.waits_for(sent, optimizer)
    return job


def test_collectives_twice_as_fast() -> None:
    model = exposed(MEGA).model()
    assert step_of(model) == 100_000 + 60_000 + 10_000
    assert after(model, FasterCollectives()) == 100_000 + 30_000 + 10_000
    assert after(model, FasterCollectives(factor=1.0)) == step_of(model)
    assert after(model, FasterCollectives(factor=0.5)) == 100_000 + 120_000 + 10_000


def test_only_some_kinds_and_groups() -> None:
    model = exposed(MEGA).model()
    assert after(model, FasterCollectives(kind="all_reduce", group="0")) == 140_000
    reason = because(model, FasterCollectives(kind="all_gather"))
    assert reason == "no communication is of kind all_gather and group any"
    assert because(model, FasterCollectives(group="7")).endswith("kind any and group 7")


def test_late_ranks_are_still_waited_for() -> None:
    """Rank 1 comes 50 later; the transfer of 20 halves, the waiting stays."""
    job = Job(2)
    for rank, late in enumerate((30, 80)):
        kernel = job.kernel("gemm", late, rank=rank)
        sent = job.collective(20, rank=rank, match=0)
        job.waits_for(kernel, sent)
        job.waits_for(sent, job.kernel("adam", 10, rank=rank))
    model = job.model()
    assert step_of(model) == 80 + 20 + 10
    assert after(model, FasterCollectives()) == 80 + 10 + 10


def test_a_given_bus_bandwidth() -> None:
    """2 x 10^6 bytes over 2 ranks, factor 1: at 100 GB/s 20 us; the latency is assumed."""
    model = exposed(MEGA).model()
    for assume, latency in zip((Assume.MOST, Assume.LIKELY, Assume.LEAST), ASSUMED_NS, strict=True):
        change = FasterCollectives(bus_gb_per_s=100.0)
        assert after(model, change, assume) == 100_000 + latency + 20_000 + 10_000
    assert NOT_FITTED in changed(model, FasterCollectives(bus_gb_per_s=100.0)).remarks


def test_a_bandwidth_needs_sizes() -> None:
    job = exposed(MEGA)
    model = job.model()
    unknown = model.with_operations(bytes=model.operations.bytes * 0 - 1)
    assert because(unknown, FasterCollectives(bus_gb_per_s=100.0)).startswith("the size or kind")


@pytest.mark.parametrize(
    "wrong", [{"factor": 0.0}, {"bus_gb_per_s": -1.0}, {"factor": 3.0, "bus_gb_per_s": 1.0}]
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="factor"):
        FasterCollectives(**wrong)


def sized() -> Job:
    """Durations of 10 us + 1 ns for 100 bytes: 2, 4 and 8 MB take 30, 50 and 90 us."""
    job = Job()
    for elements, duration in ((MEGA, 30_000), (2 * MEGA, 50_000), (4 * MEGA, 90_000)):
        job.collective(duration, elements=elements, by=job.call())
    return job


def test_latency_is_fitted_to_the_sizes() -> None:
    found = latencies(sized().model())
    assert found.fitted
    assert found.low.tolist() == found.likely.tolist() == found.high.tolist() == [10_000.0] * 3


def test_latency_is_at_most_the_shortest_collective() -> None:
    found = latencies(exposed(MEGA, duration=8_000).model())
    assert not found.fitted
    assert found.high.tolist() == [0.0, 8_000.0, 0.0]


def test_a_fitted_line_at_a_bandwidth() -> None:
    """At 50 GB/s 2 MB take 40 us, 4 MB 80, 8 MB 160, each with the fitted 10."""
    model = changed(sized().model(), FasterCollectives(bus_gb_per_s=50.0))
    assert model.operations.duration_ns.tolist() == [50_000, 90_000, 170_000]
    assert model.remarks == ()


def test_gradients_in_half_the_bytes() -> None:
    """60 us of which 15 are latency: 15 + 22.5."""
    model = exposed(MEGA, dtype="Float").model()
    assert after(model, NarrowGradients()) == 100_000 + 37_500 + 10_000
    assert changed(model, NarrowGradients()).operations.bytes[1] == 2 * MEGA
    assert after(model, NarrowGradients(), Assume.LEAST) == 100_000 + 40_000 + 10_000 + 10_000
    assert because(exposed(MEGA).model(), NarrowGradients()).endswith("2 bytes or less already")


def test_a_delay_shows_how_much_room_there_is() -> None:
    """Exposed, each us counts; hidden beside a kernel of 100 us, 30 do not."""
    assert after(exposed(MEGA).model(), DelayCollective(us=30)) == 200_000
    job = Job()
    first = job.kernel("gemm", 50_000, by=job.call())
    sent = job.collective(60_000, by=job.call())
    job.waits_for(first, sent)
    job.kernel("gemm", 100_000, by=job.call())
    job.waits_for(sent, job.kernel("adam", 10_000, by=job.call()))
    model = job.model()
    assert step_of(model) == 160_000
    assert after(model, DelayCollective(us=40)) == 160_000
    assert after(model, DelayCollective(us=41)) == 161_000


def test_hidden_communication_costs_nothing() -> None:
    assert after(exposed(MEGA).model(), HideCommunication()) == 110_000


def test_hidden_communication_on_the_compute_stream() -> None:
    job = Job()
    job.kernel("gemm", 100, by=job.call())
    job.collective(60, by=job.call(), stream="compute", pause=5)
    job.kernel("adam", 10, by=job.call(), pause=3)
    model = job.model()
    assert step_of(model) == 178
    assert after(model, HideCommunication()) == 113


def test_hidden_communication_ties_no_ranks() -> None:
    """Rank 1 is slower by 50: nobody waits for it, the job's step is still its."""
    job = Job(2)
    for rank, late in enumerate((30, 80)):
        job.waits_for(job.kernel("gemm", late, rank=rank), job.collective(20, rank=rank, match=0))
    found = changed(job.model(), HideCommunication())
    assert step_of(found) == 80
    assert found.operations.match.tolist() == [-1] * 4


def test_no_communication() -> None:
    job = Job()
    job.kernel("gemm", 100)
    for change in (HideCommunication(), FasterCollectives(), DelayCollective()):
        assert because(job.model(), change) == "the replayed steps contain no communication"
