"""Search by name: all tables, by time, within lanes."""

from __future__ import annotations

from diagnose.lanes import Op, OpTable, Timeline
from tests.lane_traces import Thing, lanes_trace

GPU, HOST, CALL = OpTable.GPU_OPS, OpTable.HOST_OPS, OpTable.LAUNCHES
THINGS = [
    Thing(30, 40, name="ncclDevKernel_AllReduce"),
    Thing(10, 15, name="gemm"),
    Thing(50, 60, name="ncclDevKernel_AllReduce", stream=9),
    Thing(5, 20, HOST, name="nccl:all_reduce"),
    Thing(30, 31, CALL, thread=2, name="ncclLaunch"),
    Thing(20, 25, source=1, name="NCCLDEVKERNEL"),
]


def test_in_all_tables_by_time():
    hits = Timeline(lanes_trace(THINGS)).search("nccldev")
    assert [hits[n] for n in range(len(hits))] == [Op(GPU, 3), Op(GPU, 1), Op(GPU, 2)]
    assert hits.start_ns.tolist() == [15, 25, 45]
    every = Timeline(lanes_trace(THINGS)).search("NCCL")
    # Two begin at 30 (25 on the axis): the table that comes first in the schema is first.
    assert [every[n] for n in range(5)] == [
        Op(HOST, 0),
        Op(GPU, 3),
        Op(GPU, 1),
        Op(CALL, 0),
        Op(GPU, 2),
    ]


def test_next_and_previous():
    hits = Timeline(lanes_trace(THINGS)).search("nccldev")
    assert [hits.after(time) for time in (-1, 14, 15, 44, 45)] == [0, 0, 1, 2, None]
    assert [hits.before(time) for time in (15, 16, 45, 99)] == [None, 0, 1, 2]
    assert hits.place_of(Op(GPU, 1)) == 1
    assert hits.place_of(Op(HOST, 1)) is None


def test_within_lanes():
    timeline = Timeline(lanes_trace(THINGS))
    assert len(timeline.search("nccl", lanes=["g0.0s9"])) == 1
    assert len(timeline.search("nccl", lanes=["g0.0s7", "h0.1"])) == 2
    assert len(timeline.search("nccl", lanes=["g0.0"])) == 0
    assert len(timeline.search("nccl", lanes=[])) == 0


def test_nothing_found():
    timeline = Timeline(lanes_trace(THINGS))
    for text in ("", "no such kernel"):
        hits = timeline.search(text)
        assert (len(hits), hits.after(0), hits.before(99)) == (0, None, None)
