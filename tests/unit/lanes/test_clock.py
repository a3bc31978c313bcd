"""One clock for all sources: offsets, drift, and what is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diagnose.analysis import Unavailable
from diagnose.analyzers.clocks import CLOCK_OFFSETS, Alignment
from diagnose.lanes import OpTable, Timeline
from diagnose.lanes.clock import SourceClock
from diagnose.schema import NULL
from diagnose.trace import Strings
from tests.lane_traces import Thing, lanes_trace, table_of

BASE = 1_733_059_200_000_000_000


def offsets(monkeypatch: pytest.MonkeyPatch, **columns: Any) -> None:
    """Let the alignment of clocks answer this."""
    count = len(columns["alignment"])
    table = table_of(CLOCK_OFFSETS, Strings(), count, source=range(count), **columns)
    monkeypatch.setattr("diagnose.lanes.clock.clock_offsets", lambda trace: table)


def starts(timeline: Timeline, count: int) -> list[int]:
    return [timeline.locate("gpu_ops", row).start_ns for row in range(count)]


def test_offsets_are_added(monkeypatch):
    offsets(
        monkeypatch,
        alignment=[Alignment.REFERENCE, Alignment.ALIGNED, Alignment.DOUBTFUL],
        offset_ns=[0, 500, -70],
        residual_p95_ns=[100.0, 2000.0, 1500.0],
    )
    things = [Thing(1000, 1100), Thing(1000, 1100, source=1), Thing(1090, 1100, source=2)]
    timeline = Timeline(lanes_trace(things, [BASE, BASE, BASE + 10]))
    # 1000, 1000 + 500 and 1090 + 10 - 70, of which the first is 0.
    assert starts(timeline, 3) == [0, 500, 30]
    assert timeline.end_ns == 600
    assert timeline.clock == (
        "Clocks were aligned by collectives that end together, to within 2.0 us in 95 of 100"
        " cases. Doubtful: rank 2."
    )
    assert timeline.from_common(1, np.array([500])).tolist() == [1000]
    picture = timeline.picture(0, 600, pixels=600, lanes=["g1.0s7", "g2.0s7"])
    assert picture.shape_start_ns.tolist() == [500, 30]


def test_drift_grows_from_its_origin(monkeypatch):
    offsets(
        monkeypatch,
        alignment=[Alignment.REFERENCE, Alignment.ALIGNED],
        offset_ns=[0, 500],
        drift=[0.0, 0.001],
        drift_origin_ns=[NULL, BASE + 10_000],
        residual_p95_ns=[0.0, 0.0],
    )
    things = [Thing(0, 10), Thing(10_000, 20_000, source=1), Thing(110_000, 110_007, source=1)]
    timeline = Timeline(lanes_trace(things, [BASE, BASE]))
    # 500 at the origin, 100 more after 100,000.
    assert starts(timeline, 3) == [0, 10_500, 110_600]
    picture = timeline.picture(0, 120_000, pixels=120, lanes=["g1.0s7"])
    # The lengths stay those of the source's own clock.
    assert picture.busy_ns.tolist() == [10_000, 7]
    assert picture.shape_end_ns[0] == 20_510


def test_back_is_the_inverse_of_forward():
    random = np.random.default_rng(1)
    times = np.sort(random.integers(-(10**12), 10**15, 1000))
    for drift in (0.0, 3e-6, -3e-6):
        clock = SourceClock(BASE, drift, 10**14)
        assert np.abs(clock.back(clock.forward(times)) - times).max() <= (1 if drift else 0)
        assert np.all(np.diff(clock.back(times)) >= 0)


def test_wall_clocks_where_nothing_else_ties():
    timeline = Timeline(lanes_trace([Thing(5, 9), Thing(5, 9, source=1)], [BASE, BASE + 100]))
    assert starts(timeline, 2) == [0, 100]
    assert timeline.clock.startswith("Times are each host's own wall clock: no collective")


def test_a_source_without_a_base_begins_with_the_others(monkeypatch):
    because = Unavailable("no collective was matched", "")
    monkeypatch.setattr("diagnose.lanes.clock.clock_offsets", lambda trace: because)
    things = [Thing(50, 90), Thing(3, 9, source=1), Thing(60, 99, source=2)]
    timeline = Timeline(lanes_trace(things, [BASE, None, BASE]))
    assert starts(timeline, 3) == [0, 0, 10]
    assert timeline.clock == (
        "Times are each host's own wall clock: no collective was matched."
        " Moved to begin with the others: rank 1."
    )
    two = Timeline(lanes_trace(things[:2], [BASE, None]))
    assert starts(two, 2) == [0, 0]
    assert two.clock == (
        "Nothing ties the clocks together: no collective was matched."
        " Moved to begin with the others: rank 1."
    )


def test_one_source_needs_no_sentence():
    timeline = Timeline(lanes_trace([Thing(7, 9, OpTable.HOST_OPS)], [BASE]))
    assert (timeline.clock, timeline.end_ns) == ("", 2)
