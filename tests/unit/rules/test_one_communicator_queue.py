"""Collectives of a group queue for each other, not for the link."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values
from tests.unit.rules.waiting_streams import shape, wait

RULE = "one-communicator-queue"
LARGE, SMALL = 1_000_000, 10_000


def job(
    rank: int = 0,
    *,
    elements: int = SMALL,
    blocks: int = 16,
    stream: int = 20,
    hidden: bool = False,
    groups: tuple[str, ...] = ("0",),
    at_last: bool = False,
    late: float = 0,
    waits_for_peer: float = 0,
) -> TraceBuilder:
    """2 MB in 20 us (100 GB/s), then five all-reduces of 40 us in a row from 20 on."""
    builder = TraceBuilder(rank=rank, world_size=2)
    builder.collective(
        "allreduce", -100, 20, elements=LARGE, launch=-110, stream=stream, **shape(blocks)
    )
    if hidden:
        builder.kernel("gemm", -100, 320, launch=-110)
    for number in range(5):
        wait_for = waits_for_peer if number == 0 else 0
        launch = 18 + 40 * number if at_last else 3 * number
        builder.collective(
            "allreduce",
            20 + 40 * number + late - wait_for,
            40 + wait_for,
            elements=elements,
            launch=launch + late - wait_for,
            stream=stream,
            group=groups[number % len(groups)],
            **shape(blocks),
        )
    return builder


def test_fires_for_small_messages_in_a_row():
    finding = found(trace_of(job(), gpu={"sm_count": 66}), RULE)
    # From 20 to 180 one ran while the next was launched; 20 kB in 40 us are 0.5 % of the best.
    assert values(finding) == {
        "waiting_ns": 160_000,
        "saved_ns": pytest.approx(159_200),
        "waiting_pct": pytest.approx(100 * 159.2 / 320),
        "busbw_pct": pytest.approx(0.5),
        "num_ahead": 4,
    }
    # The other rank is not there: each may have waited for it.
    assert finding.severity == "hint"


def test_fires_with_both_ranks():
    finding = found(trace_of(job(0), job(1)), RULE)
    assert (finding.confidence, finding.gain.basis) == ("medium", "upper bound")
    assert values(finding)["waiting_ns"] == 160_000
    assert finding.gain.high_ns == pytest.approx(159_200)


def test_fires_without_the_time_that_one_waits_for_a_late_rank():
    # Rank 0 began 400 us before its peer: those do not count.
    trace = trace_of(job(0, late=400, waits_for_peer=400), job(1, late=400))
    assert values(found(trace, RULE))["waiting_ns"] == 160_000


def test_silent_where_the_link_is_full():
    # 4 MB in 40 us: 100 GB/s.
    assert is_clean(trace_of(job(elements=2 * LARGE)), RULE)


def test_silent_where_two_do_not_fit_on_the_gpu():
    assert is_clean(trace_of(job(blocks=40), gpu={"sm_count": 66}), RULE)


def test_silent_where_communication_is_hidden():
    assert is_clean(trace_of(job(hidden=True)), RULE)


def test_silent_on_a_stream_that_computes():
    builder = job(stream=7)
    builder.kernel("gemm", -75, 5, launch=-80)
    assert is_clean(trace_of(builder), RULE)


def test_silent_between_groups():
    assert is_clean(trace_of(job(groups=("0", "1"))), RULE)


def test_silent_where_each_is_launched_after_the_one_before():
    assert is_clean(trace_of(job(at_last=True)), RULE)


def test_silent_where_each_waits_for_its_input():
    builder = TraceBuilder(rank=0, world_size=2)
    builder.collective("allreduce", -100, 20, elements=LARGE, launch=-110)
    for number in range(5):
        # Its input is ready as the one before ends.
        builder.kernel("add", 40 * number, 20, launch=9 * number)
        wait(builder, 9 * number + 3, stream=20, of=7)
        at = 20 + 40 * number
        builder.collective("allreduce", at, 40, elements=SMALL, launch=9 * number + 5)
    assert is_clean(trace_of(builder), RULE)
