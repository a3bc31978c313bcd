"""The host issues collectives long after they could have begun."""

from __future__ import annotations

import pytest

from tests.builder import TraceBuilder
from tests.unit.rules.judging import found, is_clean, trace_of, values
from tests.unit.rules.waiting_streams import wait

RULE = "late-collective-launch"


def job(
    *, producer_us: float = 100, start: float = 505, hidden: bool = False, length: float = 300
) -> TraceBuilder:
    """A kernel from 0 on; an all-gather that waits for it, launched at 500; its consumer."""
    builder = TraceBuilder(rank=0, world_size=2)
    builder.kernel("layer", 0, producer_us, launch=-5)
    if hidden:
        builder.kernel("other", 450, 450, launch=440, stream=8)
    wait(builder, 495, stream=20, of=7)
    builder.collective("_allgather_base", start, length, launch=500)
    wait(builder, 503, stream=7, of=20)
    builder.kernel("next", start + length, 100, launch=506)
    return builder


def test_fires_where_the_host_is_late():
    finding = found(trace_of(job()), RULE)
    # Ready at 100, launched at 500; 300 us of transfer, and the window is 905 us long.
    assert values(finding) == {
        "lost_ns": 300_000,
        "late_pct": pytest.approx(100 * 300 / 905),
        "median_late_ns": 400_000,
        "num_collectives": 1,
    }
    assert finding.gain.basis == "upper bound"
    assert finding.gain.high_ns == 300_000


def test_fires_for_at_most_the_lateness():
    # Ready at 380: no more than 120 us could have been saved.
    finding = found(trace_of(job(producer_us=380)), RULE)
    assert values(finding)["lost_ns"] == 120_000


def test_fires_where_the_event_was_recorded_before_other_work():
    builder = TraceBuilder(rank=0, world_size=2)
    builder.kernel("layer", 0, 100, launch=-5)
    record = builder.call("cudaEventRecord", 5, 1)
    builder.kernel("unrelated", 100, 350, launch=8)
    wait(builder, 495, stream=20, of=7, record=record)
    builder.collective("_allgather_base", 505, 300, launch=500)
    # Ready at 100: what was launched after the event is not waited for.
    assert values(found(trace_of(builder), RULE))["median_late_ns"] == 400_000


def test_silent_where_the_host_is_ahead():
    # It begins 30 us after its launch: something held it.
    assert is_clean(trace_of(job(start=530)), RULE)


def test_silent_where_its_input_came_late():
    assert is_clean(trace_of(job(producer_us=450)), RULE)


def test_silent_where_compute_hides_it():
    assert is_clean(trace_of(job(hidden=True)), RULE)


def test_silent_where_its_stream_was_busy():
    builder = job()
    builder.collective("_allgather_base", 100, 390, launch=50)
    assert is_clean(trace_of(builder), RULE)


def test_silent_for_small_losses():
    # 15 us of 620.
    assert is_clean(trace_of(job(length=15)), RULE)
