"""Pictures of short made-up traces against counting every nanosecond."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.analyzers.breakdown import breakdown
from diagnose.lanes import Category, LaneKind, OpTable, Timeline
from diagnose.schema import NO_ROW, Activity
from diagnose.timeline import overlap
from tests.lane_traces import Thing, in_table, lanes_trace

LENGTH = 70
BASES = (1_000_000_000_000_000_000, 1_000_000_000_000_000_013)
FEWER = settings(max_examples=60, deadline=None)


@st.composite
def thing(draw: Any) -> Thing:
    start = draw(st.integers(0, LENGTH))
    longest = draw(st.sampled_from([0, 2, 6, 40]))
    return Thing(
        start,
        draw(st.integers(start, min(start + longest, LENGTH))),
        draw(st.sampled_from([OpTable.GPU_OPS, OpTable.GPU_OPS, *list(OpTable)[2:]])),
        draw(st.sampled_from(Activity)),
        source=draw(st.integers(0, 1)),
        device=draw(st.integers(0, 1)),
        stream=draw(st.sampled_from([None, 0, 7])),
        thread=draw(st.integers(1, 2)),
    )


THINGS = st.lists(thing(), min_size=1, max_size=40)
NESTED = st.lists(st.integers(0, 30), min_size=1, max_size=8)


class Counted:
    """What a trace should be drawn as: for each sub-row, which operations; in plain loops."""

    def __init__(self, things: list[Thing], bases: list[int | None]) -> None:
        self.trace = lanes_trace(things, bases)
        self.timeline = Timeline(self.trace)
        times = [(bases[t.source] or 0) + t.start for t in things]
        self.zero = min(times)
        self.shift = [(base or 0) - self.zero for base in bases]
        self.ops: dict[tuple[str, int, int], list[tuple[int, int, int, int]]] = defaultdict(list)
        for table in (OpTable.GPU_OPS, OpTable.HOST_OPS, OpTable.LAUNCHES):
            for row, one in enumerate(in_table(things, table)):
                place = self.timeline.locate(table, row)
                start, end = self.on_axis(one)
                assert (place.start_ns, place.end_ns) == (start, end)
                self.ops[place.lane, place.depth, one.category].append((start, end, table, row))
        self.states: dict[tuple[str, int, int], np.ndarray] = {}
        for source, device in {(t.source, t.device) for t in things if t.table == 1}:
            self.add_states(things, source, device)

    def on_axis(self, one: Thing) -> tuple[int, int]:
        return one.start + self.shift[one.source], one.end + self.shift[one.source]

    def bitmap(self, spans: list[tuple[int, int]]) -> np.ndarray:
        covered = np.zeros(LENGTH + 40, bool)
        for start, end in spans:
            covered[start:end] = True
        return covered

    def add_states(self, things: list[Thing], source: int, device: int) -> None:
        own = [t for t in things if (t.table, t.source, t.device) == (1, source, device)]
        compute, talk, copy = (
            self.bitmap([self.on_axis(t) for t in own if t.activity == activity])
            for activity in (Activity.COMPUTE, Activity.COMMUNICATION, Activity.MEMORY)
        )
        key = f"g{source}.{device}"
        self.states[key, 0, Category.COMPUTE] = compute & ~talk
        self.states[key, 0, Category.OVERLAPPED] = compute & talk
        self.states[key, 0, Category.EXPOSED] = talk & ~compute
        self.states[key, 0, Category.COPIES] = copy & ~compute & ~talk
        for (lane, depth, category), ops in list(self.ops.items()):
            if lane.startswith(f"{key}s") and category == Category.OVERLAPPED:
                drawn = self.bitmap([(start, end) for start, end, *_ in ops])
                self.states[lane, depth, Category.EXPOSED] = drawn & talk & ~compute


def counted(things: list[Thing], bases: bool) -> Counted:
    sources = 1 + max(t.source for t in things)
    return Counted(things, list(BASES[:sources]) if bases else [None] * sources)


def touches(start: int, end: int, low: int, high: int) -> bool:
    return low <= start < high if start == end else end > low and start < high


def check(truth: Counted, low: int, high: int, pixels: int, most_shapes: int = 10_000) -> None:
    lanes = [lane.key for lane in truth.timeline.lanes]
    picture = truth.timeline.picture(low, high, pixels=pixels, lanes=lanes, most_shapes=most_shapes)
    assert len(picture) <= most_shapes
    shapes: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for number in range(len(picture)):
        lane = lanes[int(picture.lane[number])]
        key = (lane, int(picture.depth[number]), int(picture.category[number]))
        shapes[key].append(number)
        start, end = int(picture.shape_start_ns[number]), int(picture.shape_end_ns[number])
        assert low <= start <= end <= high
        assert 0 <= picture.busy_ns[number] <= end - start
    assert set(shapes) <= set(truth.ops) | set(truth.states)
    for key in set(truth.ops) | set(truth.states):
        assert key[1] < truth.timeline.rows_of(key[0])
        if key in truth.ops:
            check_ops(picture, shapes[key], truth.ops[key], low, high)
        else:
            states = truth.states[key]
            drawn = sum(int(picture.busy_ns[n]) for n in shapes[key])
            assert drawn == int(states[max(low, 0) : max(high, 0)].sum())
            for n in shapes[key]:
                inside = states[int(picture.shape_start_ns[n]) : int(picture.shape_end_ns[n])]
                assert int(picture.busy_ns[n]) <= int(inside.sum())
                assert (picture.num_ops[n], picture.row[n], picture.table[n]) == (0, NO_ROW, 0)


def check_ops(
    picture: Any, shapes: list[int], ops: list[tuple[int, int, int, int]], low: int, high: int
) -> None:
    for start, end, *_ in ops:
        others = [o for o in ops if max(o[0], start) < min(o[1], end)]
        assert len(others) == (end > start), "operations of a row overlap"
    seen = [op for op in ops if touches(*op[:2], low, high)]
    wide = {op[2:]: op for op in seen if op[1] - op[0] >= picture.pixel_ns}
    single = {
        (int(picture.table[n]), int(picture.row[n])): n for n in shapes if picture.row[n] >= 0
    }
    assert single.keys() == wide.keys()
    for key, n in single.items():
        start, end = max(wide[key][0], low), min(wide[key][1], high)
        found = (picture.shape_start_ns[n], picture.shape_end_ns[n], picture.busy_ns[n])
        assert found == (start, end, end - start)
        assert picture.num_ops[n] == 1
    narrow = [op for op in seen if op[2:] not in wide]
    added = [n for n in shapes if n not in single.values()]
    for n in added:
        start, end = int(picture.shape_start_ns[n]), int(picture.shape_end_ns[n])
        assert picture.num_ops[n] == sum(start <= max(op[0], low) < end for op in narrow)
        covered = sum(max(0, min(op[1], end) - max(op[0], start)) for op in narrow)
        assert picture.busy_ns[n] == covered
    assert sum(int(picture.num_ops[n]) for n in shapes) == len(seen)
    covered = sum(min(op[1], high) - max(op[0], low) for op in seen)
    assert sum(int(picture.busy_ns[n]) for n in shapes) == covered


@FEWER
@given(THINGS, st.booleans(), st.integers(-5, LENGTH), st.integers(1, LENGTH), st.integers(1, 90))
def test_equals_counting(things, bases, low, width, pixels):
    check(counted(things, bases), low, low + width, pixels)


@FEWER
@given(THINGS, st.booleans(), st.sampled_from([7, 20, 300]))
def test_the_whole_with_few_shapes(things, bases, pixels):
    truth = counted(things, bases)
    lanes = [lane.key for lane in truth.timeline.lanes]
    end = truth.timeline.end_ns
    least = len(truth.timeline.picture(0, end, pixels=1, lanes=lanes))
    check(truth, 0, end, pixels, max(least, 12))


@FEWER
@given(THINGS, st.lists(st.integers(1, LENGTH), max_size=4), st.integers(1, 40))
def test_tiles_sum_to_the_measures(things, cuts, pixels):
    """Over any tiling, the states of a GPU are those of ``breakdown`` and ``overlap``."""
    timeline = Timeline(lanes_trace(things))
    edges = sorted({0, timeline.end_ns, *(c for c in cuts if c < timeline.end_ns)})
    gpus = [lane for lane in timeline.lanes if lane.kind == LaneKind.STATES]
    streams = [lane for lane in timeline.lanes if lane.kind == LaneKind.STREAM]
    keys = [lane.key for lane in gpus]
    busy = np.zeros((len(gpus), len(Category)), np.int64)
    for low, high in itertools.pairwise(edges):
        picture = timeline.picture(low, high, pixels=pixels, lanes=keys)
        np.add.at(busy, (picture.lane, picture.category), picture.busy_ns)
    measures, whole = overlap(timeline.trace), breakdown(timeline.trace)
    whole = whole.take(whole["step_row"] < 0)
    for place, lane in enumerate(gpus):
        (row,) = np.flatnonzero(
            (measures["source"] == lane.source) & (measures["device"] == lane.device)
        )
        compute, hidden, exposed, copies = busy[place, :4].tolist()
        assert compute + hidden == measures["compute_ns"][row]
        assert hidden + exposed == measures["communication_ns"][row]
        assert hidden == measures["overlapped_ns"][row]
        assert exposed == measures["exposed_communication_ns"][row]
        assert compute + hidden + exposed + copies == measures["busy_ns"][row]
        assert copies == whole["memory_only_ns"][row]
    # Nothing is lost: a window of all of it counts each operation once.
    picture = timeline.picture(0, timeline.end_ns, pixels=pixels, lanes=[s.key for s in streams])
    assert int(picture.num_ops.sum()) == len(timeline.trace.gpu_ops)


@FEWER
@given(NESTED, st.integers(1, 60), st.integers(1, 30))
def test_nested_calls_lie_below_each_other(widths, pixels, width):
    """Each call within the one before, to any depth: a row for each."""
    things, low, high = [], 0, LENGTH
    for number, cut in enumerate(widths):
        low, high = low + cut % 5, high - cut // 5
        if high < low:
            break
        table = OpTable.LAUNCHES if number % 2 else OpTable.HOST_OPS
        things.append(Thing(low, high, table))
    truth = counted(things, False)
    lasting = [t for t in things if t.end > t.start]
    same = len({(t.start, t.end) for t in lasting})
    assert truth.timeline.rows_of("h0.0") >= max(same, 1)
    for row, one in enumerate(in_table(things, OpTable.HOST_OPS)):
        around = sum(
            o.start <= one.start and o.end >= one.end and (o.start, o.end) != (one.start, one.end)
            for o in things
        )
        if one.end > one.start and same == len(lasting):
            assert truth.timeline.locate("host_ops", row).depth == around
    check(truth, 0, width, pixels)


@pytest.mark.parametrize("most_shapes", [40, 100, 400])
@pytest.mark.parametrize("zoom", [1, 10, 100, 10_000, 1_000_000])
def test_shapes_are_bounded_whatever_the_zoom(most_shapes, zoom):
    random = np.random.default_rng(3)
    start = np.cumsum(random.integers(1, 400, 20_000))
    length = random.choice([0, 1, 30, 150, 390], 20_000)
    things = [
        Thing(int(s), int(s + n), OpTable(table), Activity(int(s) % 3), stream=int(s) % 2)
        for s, n, table in zip(start, length, random.integers(1, 4, 20_000), strict=True)
    ]
    timeline = Timeline(lanes_trace(things))
    lanes = [lane.key for lane in timeline.lanes]
    for place in (0, timeline.end_ns // 3, timeline.end_ns // 2):
        width = max(timeline.end_ns // zoom, 1)
        picture = timeline.picture(
            place, place + width, pixels=1500, lanes=lanes, most_shapes=most_shapes
        )
        assert len(picture) <= most_shapes
