"""Which lanes a trace has, in which order and under which keys."""

from __future__ import annotations

import dataclasses

import pytest

from diagnose.errors import UsageError
from diagnose.lanes import LaneKind, OpTable, Timeline
from tests.lane_traces import Thing, lanes_trace, with_steps

HOST, CALL = OpTable.HOST_OPS, OpTable.LAUNCHES


def test_gpu_then_streams_then_threads_by_rank():
    trace = lanes_trace(
        [
            Thing(0, 5, stream=20),
            Thing(1, 5, stream=None),
            Thing(2, 5, stream=7),
            Thing(2, 5, device=1, stream=3),
            Thing(3, 5, HOST, thread=2),
            Thing(3, 4, CALL, thread=2),
            Thing(3, 4, CALL, thread=1),
            Thing(0, 9, HOST, source=1),
        ]
    )
    first, second = trace.sources
    swapped = (dataclasses.replace(first, rank=4), dataclasses.replace(second, rank=3))
    timeline = Timeline(dataclasses.replace(trace, sources=swapped))
    shown = [(lane.key, lane.label, lane.parent, lane.num_ops) for lane in timeline.lanes]
    assert shown == [
        ("h1.0", "thread 1", None, 1),
        ("g0.0", "rank 4, GPU 0", None, 0),
        ("g0.0s7", "stream 7", "g0.0", 1),
        ("g0.0s20", "stream 20", "g0.0", 1),
        ("g0.0s-", "unknown stream", "g0.0", 1),
        ("g0.1", "rank 4, GPU 1", None, 0),
        ("g0.1s3", "stream 3", "g0.1", 1),
        ("h0.0", "thread 1", "g0.0", 1),
        ("h0.1", "thread 2", "g0.0", 2),
    ]
    kinds = {lane.key: lane.kind for lane in timeline.lanes}
    assert kinds["g0.1"] == LaneKind.STATES
    assert kinds["g0.0s-"] == LaneKind.STREAM
    assert kinds["h0.1"] == LaneKind.THREAD


def test_the_thread_that_marks_steps_is_told():
    trace = lanes_trace([Thing(0, 9, HOST), Thing(0, 9, HOST, thread=2)])
    trace = with_steps(trace, start_ns=[0], end_ns=[9])
    labels = [lane.label for lane in Timeline(trace).lanes]
    assert labels == ["thread 1 (marks the steps)", "thread 2"]


def test_unknown_lanes_and_rows_are_refused():
    timeline = Timeline(lanes_trace([Thing(0, 5)]))
    with pytest.raises(UsageError, match=r"no lane 'g9\.9'"):
        timeline.picture(0, 5, pixels=10, lanes=["g9.9"])
    with pytest.raises(UsageError, match="no row 1 in gpu_ops"):
        timeline.locate("gpu_ops", 1)
    with pytest.raises(UsageError, match="no row -1"):
        timeline.locate(OpTable.GPU_OPS, -1)
    for table in ("samples", "none", OpTable.NONE, 17):
        with pytest.raises(UsageError, match="no table of operations"):
            timeline.locate(table, 0)  # type: ignore[arg-type]


def test_nothing_at_all():
    timeline = Timeline(lanes_trace([]))
    assert timeline.lanes == ()
    assert (timeline.start_ns, timeline.end_ns, timeline.clock) == (0, 1, "")
    assert len(timeline.picture(0, 1, pixels=100, lanes=[])) == 0
    assert timeline.steps() == timeline.counters(0, 1, pixels=9) == ()
    assert len(timeline.search("a")) == 0
