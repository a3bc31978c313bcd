"""A collective that nobody waits for yet delays one that is needed now."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, judged, trace_of, values
from tests.unit.rules.waiting_streams import wait

RULE = "critical-comm-behind-slack"


def job(
    *,
    gather_us: float = 100,
    optimizer: tuple[int, float] = (7, 1100),
    input_until: float | None = None,
    busy_until: float | None = None,
    second_wait_of: int | None = None,
    second_wait: bool = False,
    of: int | None = 20,
    recorded: bool = False,
) -> TraceBuilder:
    """A reduce-scatter [100, 600), then an all-gather that the next layer waits for.

    The optimizer, on a stream from a time on, is the first to use the reduce-scatter.
    """
    builder = TraceBuilder(rank=0, world_size=2)
    stream, begin = optimizer
    end = 600 + gather_us
    builder.kernel("backward", 0, 100, launch=-40)
    if busy_until is not None:
        builder.kernel("more", 100, busy_until - 100, launch=-36)
    wait(builder, -32, stream=20, of=7 if busy_until is None else 9)
    builder.collective("_reduce_scatter_base", 100, 500, launch=-30)
    if input_until is not None:
        builder.kernel("input", 50, input_until - 50, stream=8, launch=-27)
        wait(builder, -24, stream=20, of=8)
    builder.collective("_allgather_base", 600, gather_us, launch=-22)
    record = builder.call("cudaEventRecord", -19.5, 0.2) if recorded else None
    wait(builder, -19, stream=7, of=of, record=record)
    if second_wait:
        wait(builder, -18, stream=7, of=second_wait_of)
    builder.kernel("layer", end, 100, launch=-15)
    builder.kernel("layer", end + 100, 1100 - end - 100, launch=-12)
    wait(builder, -10, stream=stream, of=of)
    builder.kernel("optimizer", begin, 100, launch=-8, stream=stream)
    return builder


def test_fires_where_the_next_layer_waits():
    finding = found(trace_of(job()), RULE)
    # The all-gather was ready at 100 (launched at -20, nothing to wait for before that): at the
    # latest as the reduce-scatter began, and stood behind it for 500 us, its consumer with it.
    assert values(finding) == {
        "wait_ns": 500_000,
        "wait_pct": pytest.approx(100 * 500 / 1200),
        "num_collectives": 1,
        "slack_ns": 500_000,
    }


def test_fires_with_the_gain_of_another_order():
    builder = TraceBuilder(rank=0, world_size=2)
    for step in range(6):
        at, host = step * 1200, step * 100 - 600
        builder.step(step, host - 60, 100)
        builder.kernel("backward", at, 100, launch=host - 40)
        for number in range(2):
            wait(builder, host - 36 + 6 * number, stream=20, of=7)
            builder.collective(
                "_reduce_scatter_base", at + 100 + 250 * number, 250, launch=host - 34 + 6 * number
            )
        scattered = builder.call("cudaEventRecord", host - 25, 0.2)
        wait(builder, host - 24, stream=20, of=7)
        builder.collective("_allgather_base", at + 600, 100, launch=host - 22)
        gathered = builder.call("cudaEventRecord", host - 19.5, 0.2)
        wait(builder, host - 19, stream=7, of=20, record=gathered)
        builder.kernel("layer", at + 700, 100, launch=host - 15)
        builder.kernel("layer", at + 800, 300, launch=host - 12)
        wait(builder, host - 10, stream=7, of=20, record=scattered)
        builder.kernel("optimizer", at + 1100, 100, launch=host - 8)
    finding = found(trace_of(builder), RULE)
    assert values(finding)["wait_ns"] == 500_000
    # The first reduce-scatter has begun when the all-gather is ready. With that second and the
    # other last, the layers run from 450 to 850 and the optimizer, no longer held, until 950.
    assert finding.gain.changes == ("comm-priority",)
    assert finding.gain.low_ns == finding.gain.high_ns == 250_000
    assert finding.severity == "critical"


def test_fires_where_the_other_wait_is_for_another_stream():
    assert found(trace_of(job(second_wait=True, second_wait_of=9)), RULE)


def test_fires_where_events_are_told_apart():
    assert values(found(trace_of(job(recorded=True)), RULE))["wait_ns"] == 500_000


def test_fires_where_a_single_wait_is_for_an_unknown_stream():
    assert values(found(trace_of(job(of=None)), RULE))["wait_ns"] == 500_000


def test_fires_with_slack_of_just_enough():
    finding = found(trace_of(job(gather_us=50, optimizer=(8, 810))), RULE)
    assert values(finding)["slack_ns"] == 210_000


def test_silent_with_little_slack():
    assert is_clean(trace_of(job(gather_us=50, optimizer=(8, 790))), RULE)


def test_silent_where_both_are_needed_at_once():
    # Two waits, either of which may be for the reduce-scatter.
    assert is_clean(trace_of(job(second_wait=True, second_wait_of=20)), RULE)
    assert is_clean(trace_of(job(second_wait=True, of=None)), RULE)


def test_silent_where_one_consumer_needs_both():
    # The layer waits for the events of both, as the records tell: 300 us after the first ended.
    builder = TraceBuilder(rank=0, world_size=2)
    builder.kernel("backward", 0, 100, launch=-40)
    builder.collective("_reduce_scatter_base", 100, 500, launch=-30)
    scattered = builder.call("cudaEventRecord", -26, 0.2)
    builder.collective("_allgather_base", 600, 300, launch=-22)
    gathered = builder.call("cudaEventRecord", -19.5, 0.2)
    wait(builder, -19, stream=7, of=20, record=scattered)
    wait(builder, -18, stream=7, of=20, record=gathered)
    builder.kernel("layer", 900, 100, launch=-15)
    assert is_clean(trace_of(builder), RULE)


def test_fires_for_as_long_as_the_consumer_waited():
    # Its stream was busy until 400: of 500 us behind the reduce-scatter it waited 300.
    assert values(found(trace_of(job(busy_until=400)), RULE))["wait_ns"] == 300_000


def test_silent_where_the_other_would_be_late_after_it():
    # Used 15 us after the layer began; 20 us before it would not do.
    assert found(trace_of(job(gather_us=300, optimizer=(8, 915))), RULE)
    assert is_clean(trace_of(job(gather_us=300, optimizer=(8, 880))), RULE)


def test_silent_where_it_was_not_ready_earlier():
    # Ready at 590: 10 us of 1200 are 0.8 %.
    assert is_clean(trace_of(job(input_until=590)), RULE)


def test_silent_where_the_consumer_came_later_anyway():
    assert is_clean(trace_of(job(busy_until=700)), RULE)
    assert is_clean(trace_of(job(busy_until=700, recorded=True)), RULE)


def test_is_not_judged_without_waits():
    builder = TraceBuilder(rank=0, world_size=2)
    builder.collective("allreduce", 0, 100, launch=-5)
    _, checked = judged(trace_of(builder), RULE)
    assert [one.because for one in checked.not_checked] == ["no wait of a stream was recorded"]
