"""Pictures worked out by hand. A shape is shown as a tuple, see ``shown``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.lanes import Category, OpTable, Picture, Timeline
from diagnose.schema import NO_ROW, Activity
from tests.lane_traces import Thing, lanes_trace

HOST, CALL = OpTable.HOST_OPS, OpTable.LAUNCHES


def shown(picture: Picture) -> list[tuple[Any, ...]]:
    """(depth, category, start, end, busy, num_ops, row) of each shape."""
    columns = (
        picture.depth,
        picture.category,
        picture.shape_start_ns,
        picture.shape_end_ns,
        picture.busy_ns,
        picture.num_ops,
        picture.row,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_wide_ones_alone_narrow_ones_added_up():
    ops = [(0, 30), (31, 33), (35, 38), (41, 43), (45, 48), (60, 64), (64, 64)]
    timeline = Timeline(lanes_trace([Thing(*op) for op in ops]))
    assert timeline.end_ns == 65
    picture = timeline.picture(0, 70, pixels=7, lanes=["g0.0s7"])
    assert picture.pixel_ns == 10
    assert shown(picture) == [
        (0, Category.COMPUTE, 0, 30, 30, 1, 0),
        # Two pixels with 5 of 10 covered are one shape.
        (0, Category.COMPUTE, 30, 50, 10, 4, NO_ROW),
        (0, Category.COMPUTE, 60, 70, 4, 2, NO_ROW),
    ]
    assert picture.table.tolist() == [OpTable.GPU_OPS, OpTable.NONE, OpTable.NONE]
    assert [timeline.trace.strings[c] if c >= 0 else None for c in picture.name.tolist()] == [
        "kernel",
        None,
        None,
    ]


def test_cut_at_the_window_and_pixels_at_multiples():
    ops = [(0, 30), (38, 41), (44, 60)]
    timeline = Timeline(lanes_trace([Thing(*op) for op in ops]))
    picture = timeline.picture(13, 53, pixels=4, lanes=["g0.0s7"])
    # Pixels: 13-20, 20-30, 30-40, 40-50, 50-53. What began at 38 reaches into the next.
    assert shown(picture) == [
        (0, Category.COMPUTE, 13, 30, 17, 1, 0),
        (0, Category.COMPUTE, 30, 50, 3, 1, NO_ROW),
        (0, Category.COMPUTE, 44, 53, 9, 1, 2),
    ]


def test_one_that_began_before_the_window_counts_once():
    timeline = Timeline(lanes_trace([Thing(0, 4), Thing(8, 14), Thing(20, 100)]))
    picture = timeline.picture(10, 50, pixels=4, lanes=["g0.0s7"])
    assert shown(picture) == [
        (0, Category.COMPUTE, 10, 20, 4, 1, NO_ROW),
        (0, Category.COMPUTE, 20, 50, 30, 1, 2),
    ]


def test_states_and_exposed_communication():
    compute, talk, copy = Activity.COMPUTE, Activity.COMMUNICATION, Activity.MEMORY
    timeline = Timeline(
        lanes_trace(
            [
                Thing(0, 40, activity=compute),
                Thing(50, 90, activity=compute),
                Thing(30, 60, activity=talk, stream=16),
                Thing(80, 120, activity=copy, stream=20),
            ]
        )
    )
    states = timeline.picture(0, 120, pixels=120, lanes=["g0.0"])
    assert shown(states) == [
        (0, Category.COMPUTE, 0, 30, 30, 0, NO_ROW),
        (0, Category.COMPUTE, 60, 90, 30, 0, NO_ROW),
        (0, Category.OVERLAPPED, 30, 40, 10, 0, NO_ROW),
        (0, Category.OVERLAPPED, 50, 60, 10, 0, NO_ROW),
        (0, Category.EXPOSED, 40, 50, 10, 0, NO_ROW),
        (0, Category.COPIES, 90, 120, 30, 0, NO_ROW),
    ]
    stream = timeline.picture(0, 120, pixels=120, lanes=["g0.0s16"])
    assert shown(stream) == [
        (0, Category.OVERLAPPED, 30, 60, 30, 1, 1),
        (0, Category.EXPOSED, 40, 50, 10, 0, NO_ROW),
    ]
    assert stream.table.tolist() == [OpTable.GPU_OPS, OpTable.NONE]


def test_calls_lie_in_their_operators():
    timeline = Timeline(lanes_trace([Thing(0, 50, HOST), Thing(5, 30, HOST), Thing(10, 20, CALL)]))
    assert timeline.rows_of("h0.0") == 3
    picture = timeline.picture(0, 50, pixels=50, lanes=["h0.0"])
    assert shown(picture) == [
        (0, Category.HOST, 0, 50, 50, 1, 0),
        (1, Category.HOST, 5, 30, 25, 1, 1),
        (2, Category.CALL, 10, 20, 10, 1, 0),
    ]
    assert picture.table.tolist() == [OpTable.HOST_OPS, OpTable.HOST_OPS, OpTable.LAUNCHES]
    assert timeline.locate("launches", 0) == ("h0.0", 2, 10, 20)


def test_pixels_widen_until_the_shapes_fit():
    # Every other pixel of 10 is covered: 50 shapes at pixels of 10.
    timeline = Timeline(lanes_trace([Thing(20 * n, 20 * n + 9) for n in range(50)]))
    fine = timeline.picture(0, 1000, pixels=100, lanes=["g0.0s7"])
    assert (len(fine), fine.pixel_ns) == (50, 10)
    # Pixels of 15 (the next step) still fall into different shapes; those of 20 are alike.
    coarse = timeline.picture(0, 1000, pixels=100, lanes=["g0.0s7"], most_shapes=9)
    assert coarse.pixel_ns == 20
    assert shown(coarse) == [(0, Category.COMPUTE, 0, 1000, 450, 50, NO_ROW)]


def test_lanes_in_the_order_asked_and_shapes_for_json():
    timeline = Timeline(lanes_trace([Thing(0, 5), Thing(2, 9, stream=9), Thing(3, 4, HOST)]))
    keys = ["h0.0", "g0.0s9", "g0.0s7"]
    picture = timeline.picture(0, 9, pixels=9, lanes=keys)
    assert picture.lanes == tuple(keys)
    assert picture.lane.tolist() == [0, 1, 2]
    assert picture.shape_start_ns.tolist() == [3, 2, 0]
    columns = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(picture).items()
    }
    assert json.loads(json.dumps(columns))["busy_ns"] == [1, 7, 5]


def test_times_too_far_apart_for_one_line():
    """A stray event decades away: as where one has no time and the others have unix times."""
    far = 1_733_059_200_000_000_000
    nested = [Thing(far, far + 100 - n, HOST) for n in range(8)]
    timeline = Timeline(lanes_trace([Thing(0, 5, HOST), *nested]))
    assert len(timeline.index("h0.0").blocks) > 1
    assert timeline.rows_of("h0.0") == 8
    picture = timeline.picture(far, far + 100, pixels=100, lanes=["h0.0"])
    assert picture.busy_ns.tolist() == [100, 99, 98, 97, 96, 95, 94, 93]
    whole = timeline.picture(0, timeline.end_ns, pixels=1500, lanes=["h0.0"])
    assert int(whole.num_ops.sum()) == 9
    assert timeline.locate("host_ops", 8).depth == 7


def test_what_cannot_be_drawn_is_refused():
    timeline = Timeline(lanes_trace([Thing(0, 5, HOST), Thing(1, 4, HOST)]))
    asked: list[tuple[int, int, int, int, str]] = [
        (5, 5, 10, 9, "is empty"),
        (0, 2**63, 10, 9, "beyond any recording"),
        (0, 5, 0, 9, "pixels wide, not 0"),
        (0, 5, 10, 0, "at least one shape"),
        (0, 5, 10, 1, "rows and colours for 2 shapes, and 1 were allowed"),
    ]
    for start, end, pixels, most, message in asked:
        with pytest.raises(UsageError, match=message):
            timeline.picture(start, end, pixels=pixels, lanes=["h0.0"], most_shapes=most)


def test_a_window_beside_the_recording_is_empty():
    timeline = Timeline(lanes_trace([Thing(0, 5)]))
    for start, end in ((-50, 0), (5, 90)):
        assert len(timeline.picture(start, end, pixels=9, lanes=["g0.0", "g0.0s7"])) == 0


def test_states_of_different_height_stay_apart():
    """For a state every pixel counts no operations; that does not make it the rest of one."""
    timeline = Timeline(lanes_trace([Thing(0, 8), Thing(10, 12), Thing(20, 21)]))
    picture = timeline.picture(0, 30, pixels=3, lanes=["g0.0"])
    assert shown(picture) == [
        (0, Category.COMPUTE, 0, 10, 8, 0, NO_ROW),
        (0, Category.COMPUTE, 10, 20, 2, 0, NO_ROW),
        (0, Category.COMPUTE, 20, 30, 1, 0, NO_ROW),
    ]
