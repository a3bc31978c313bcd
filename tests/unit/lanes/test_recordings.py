"""Shipped recordings: pictures sum to ``breakdown`` and ``overlap``, marks lie where they are."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from diagnose import load
from diagnose.analyzers.breakdown import breakdown
from diagnose.lanes import Category, LaneKind, Timeline
from diagnose.timeline import overlap
from diagnose.timeline.step_times import step_times

RECORDINGS = Path(__file__).parents[3] / "examples" / "recordings"
NAMES = ("healthy", "host_sync", "launch_bound", "pageable_copy", "straggler")


@functools.lru_cache(maxsize=1)
def timeline_of(name: str) -> Timeline:
    return Timeline(load(RECORDINGS / name).trace)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_the_breakdown(name):
    timeline = timeline_of(name)
    table = breakdown(timeline.trace)
    for row in range(len(table)):
        source, device = int(table["source"][row]), int(table["device"][row])
        ends = np.array([table["start_ns"][row], table["end_ns"][row]])
        low, high = timeline.to_common(source, ends).tolist()
        picture = timeline.picture(low, high, pixels=700, lanes=[f"g{source}.{device}"])
        busy = np.bincount(picture.category, picture.busy_ns, 4).astype(np.int64)
        for category, column in (
            (Category.COMPUTE, "compute_only_ns"),
            (Category.OVERLAPPED, "overlapped_ns"),
            (Category.EXPOSED, "exposed_communication_ns"),
            (Category.COPIES, "memory_only_ns"),
        ):
            assert busy[category] == table[column][row]


@pytest.mark.parametrize("name", NAMES)
def test_tiled_streams_and_threads_lose_nothing(name):
    timeline = timeline_of(name)
    trace, lanes = timeline.trace, timeline.lanes
    keys = [lane.key for lane in lanes]
    whole = timeline.picture(0, timeline.end_ns, pixels=1500, lanes=keys)
    counted = np.bincount(whole.lane, whole.num_ops, len(keys))
    assert counted.tolist() == [lane.num_ops for lane in lanes]
    edges = np.linspace(0, timeline.end_ns, 8).astype(np.int64).tolist()
    busy = np.zeros((len(keys), len(Category)), np.int64)
    for low, high in itertools.pairwise(edges):
        picture = timeline.picture(low, high, pixels=333, lanes=keys)
        np.add.at(busy, (picture.lane, picture.category), picture.busy_ns)
    assert busy.sum() == whole.busy_ns.sum()
    measures = overlap(trace, by="stream")
    streams = [n for n, lane in enumerate(lanes) if lane.kind == LaneKind.STREAM]
    assert len(measures) == len(streams)
    for number in streams:
        lane = lanes[number]
        (row,) = np.flatnonzero(
            (measures["source"] == lane.source)
            & (measures["device"] == lane.device)
            & (measures["stream"] == lane.stream)
        )
        assert timeline.rows_of(lane.key) == 1
        compute, talk, exposed, copies = busy[number, :4].tolist()
        assert compute == measures["compute_ns"][row]
        assert talk == measures["communication_ns"][row]
        assert exposed == measures["exposed_communication_ns"][row]
        assert copies == measures["memory_ns"][row]


def test_step_marks_and_step_times():
    timeline = timeline_of("healthy")
    trace = timeline.trace
    marks = timeline.steps()
    assert len(marks) == len(trace.steps)
    assert [m.label for m in timeline.steps(1)] == [m.label for m in marks if m.source == 1]
    for gpu in trace.gpus:
        times = step_times(trace, gpu)
        found = [m.on_gpu for m in timeline.steps(gpu.source)]
        for begin, end, on_gpu in zip(times.begin, times.end, found, strict=True):
            if begin < 0:
                assert on_gpu == ()
                continue
            (one,) = on_gpu
            assert one.lane == f"g{gpu.source}.{gpu.device}"
            assert one.end_ns - one.start_ns == end - begin
            back = timeline.from_common(gpu.source, np.array([one.end_ns]))
            assert back.tolist() == [end]


def test_clocks_bring_the_ends_of_collectives_together():
    """All-reduces of the two ranks: their ends lie apart by what the sentence says, or less."""
    timeline = timeline_of("healthy")
    trace = timeline.trace
    assert "aligned by collectives" in timeline.clock
    ends = []
    for source in (0, 1):
        rows = trace.collectives["gpu_op_row"]
        rows = rows[trace.gpu_ops["source"][rows] == source]
        ends.append(timeline.to_common(source, trace.gpu_ops["end_ns"][rows]))
    # Ranks begin to record at different collectives; the last ones are the same.
    count = min(len(e) for e in ends)
    apart = np.abs(ends[0][-count:] - ends[1][-count:])
    assert np.median(apart) < 10_000


def test_counters_of_both_ranks():
    timeline = timeline_of("healthy")
    counters = timeline.counters(0, timeline.end_ns, pixels=1000)
    assert {c.gpu for c in counters} == {"g0.0", "g1.0"}
    assert [c.label for c in counters[:3]] == ["power", "SM clock", "memory bandwidth in use"]
    for counter in counters:
        assert len(counter.x_ns) == len(counter.mean) > 0
        assert np.all(np.diff(counter.x_ns) > 0)
