"""The timeline's bars: how high, what a click on one means, and texts that stay texts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from diagnose.figures import timeline as figure
from diagnose.figures._timeline_states import stacked
from diagnose.lanes import Category, OpTable, Picture, Timeline
from diagnose.plotting.lane_layout import Layout, layout_of
from diagnose.schema import NO_ROW, Activity
from tests.lane_traces import Thing, lanes_trace

COMPUTE, EXPOSED = Category.COMPUTE, Category.EXPOSED


def states(*shapes: tuple[Category, int, int, int]) -> Picture:
    """A picture of one GPU's states: (category, start, end, busy) of each shape."""
    category, start, end, busy = (np.array(column) for column in zip(*shapes, strict=True))
    nothing = np.zeros(len(shapes), np.int32)
    return Picture(
        start_ns=0,
        end_ns=32,
        pixel_ns=16,
        lanes=("g0.0",),
        lane=nothing,
        depth=nothing,
        category=category.astype(np.int8),
        shape_start_ns=start.astype(np.int64),
        shape_end_ns=end.astype(np.int64),
        busy_ns=busy.astype(np.int64),
        num_ops=nothing.astype(np.int64),
        table=nothing.astype(np.int8),
        row=np.full(len(shapes), NO_ROW, np.int64),
        name=np.full(len(shapes), NO_ROW, np.int32),
    )


def layout(timeline: Timeline, *keys: str) -> Layout:
    rows = [timeline.rows_of(key) for key in keys]
    return layout_of([timeline.lane(key) for key in keys], rows)


def drawn(things: list[Thing], *keys: str, end: int = 1000, pixels: int = 1000) -> dict[str, Any]:
    timeline = Timeline(lanes_trace(things))
    picture = timeline.picture(0, end, pixels=pixels, lanes=keys)
    strings = timeline.trace.strings
    given = figure.sheet(picture, layout(timeline, *keys), lambda c: strings[c], pixels=pixels)
    return given.plain()


def bars(plain: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in plain["data"] if one["type"] == "bar"}


def test_states_stand_upon_each_other():
    # Of the first 16 ns exposed 2 and compute 6, of the next 16 all is compute.
    picture = states((COMPUTE, 0, 16, 6), (COMPUTE, 16, 32, 16), (EXPOSED, 0, 16, 2))
    made = stacked(picture, np.arange(3))
    # What is higher is drawn first.
    assert list(made) == [COMPUTE, EXPOSED]
    assert made[EXPOSED].share.tolist() == [2 / 16]
    assert made[COMPUTE].share.tolist() == [8 / 16, 1.0]
    assert made[COMPUTE].start_ns.tolist() == [0, 16]
    assert made[COMPUTE].end_ns.tolist() == [16, 32]
    # Each says how long it was itself, without what it stands on.
    assert made[COMPUTE].busy_ns.tolist() == [6, 16]
    assert made[EXPOSED].busy_ns.tolist() == [2]


def test_neighbours_of_one_height_are_one_bar_and_the_least_is_seen():
    picture = states((COMPUTE, 0, 16, 8), (COMPUTE, 16, 32, 8))
    made = stacked(picture, np.arange(2))[COMPUTE]
    assert (made.start_ns.tolist(), made.end_ns.tolist()) == ([0], [32])
    assert made.busy_ns.tolist() == [16]
    # 1 of 32 ns is less than the least height, a sixteenth.
    assert stacked(states((COMPUTE, 0, 32, 1)), np.arange(1))[COMPUTE].share.tolist() == [1 / 16]


def test_heights_of_states_in_pixels():
    picture = states((COMPUTE, 0, 16, 6), (COMPUTE, 16, 32, 16), (EXPOSED, 0, 16, 2))
    timeline = Timeline(lanes_trace([Thing(0, 32)]))
    plain = figure.sheet(picture, layout(timeline, "g0.0"), str, pixels=2).plain()
    found = bars(plain)
    # The row is 24 pixels high and begins at 10; a pixel above and below stays free.
    assert found["compute"]["width"] == [11, 22]
    assert found["compute"]["y"] == [33 - 5.5, 33 - 11]
    assert found["exposed communication"]["width"] == [3]
    assert found["exposed communication"]["hovertext"] == ["2 ns of 16 ns"]
    assert "customdata" not in found["compute"]


def test_bars_are_named_by_table_and_row():
    things = [
        Thing(0, 400),
        Thing(500, 900),
        Thing(0, 300, table=OpTable.HOST_OPS),
        Thing(100, 200, table=OpTable.LAUNCHES),
    ]
    found = bars(drawn(things, "g0.0s7", "h0.0"))
    assert found["compute"]["customdata"] == ["g0", "g1"]
    assert found["host operator"]["customdata"] == ["h0"]
    assert found["call into the runtime"]["customdata"] == ["l0"]
    assert figure.operation_of("g1") == ("gpu_ops", 1)
    assert figure.operation_of("h0") == ("host_ops", 0)
    assert figure.operation_of("l7") == ("launches", 7)


@pytest.mark.parametrize("said", [None, 3, "", "g", "x1", "g-1", "g1.5", ["g1"], "1g"])
def test_what_names_no_operation(said):
    assert figure.operation_of(said) is None


def test_what_was_added_up_names_no_operation_and_says_how_many():
    # Two of 3 ns in a pixel of 10 ns.
    found = bars(drawn([Thing(0, 3), Thing(5, 8)], "g0.0s7", end=100, pixels=10))
    assert found["compute"]["customdata"] == [None]
    assert found["compute"]["hovertext"] == ["2 x compute<br>6 ns, 60 %"]
    # 60 % of 20 pixels.
    assert found["compute"]["width"] == [12]


def test_exposed_parts_leave_clicks_to_the_collective_below():
    talk = Thing(0, 500, activity=Activity.COMMUNICATION, stream=16)
    found = bars(drawn([talk], "g0.0s16"))
    assert found["communication"]["customdata"] == ["g0"]
    assert found["exposed communication"]["hoverinfo"] == "skip"
    assert "customdata" not in found["exposed communication"]


HOSTILE = '<a href="javascript:alert(1)">x</a>'


def test_a_hostile_name_is_shown_as_it_is():
    plain = drawn([Thing(0, 900, name=HOSTILE)], "g0.0s7")
    [hover] = bars(plain)["compute"]["hovertext"]
    assert hover.startswith('&lt;a href="javascript:alert(1)"&gt;x&lt;/a&gt;<br>')
    [text] = [one["text"] for one in plain["data"] if one["type"] == "scatter"]
    assert text == ['&lt;a href="javascript:alert(1)"&gt;x&lt;/a&gt;']
    written = json.dumps(plain["data"])
    assert "<a" not in written
    assert "</a" not in written


def test_names_are_cut_before_they_are_made_inert():
    [hover] = bars(drawn([Thing(0, 900, name="<" * 100)], "g0.0s7"))["compute"]["hovertext"]
    assert hover == "&lt;" * 45 + "…<br>900 ns"
    [hover] = bars(drawn([Thing(0, 900, name="$x$\ny")], "g0.0s7"))["compute"]["hovertext"]
    assert hover == "&#36;x&#36; y<br>900 ns"


def test_names_stand_only_where_they_have_room():
    # 33 pixels are too few, 34 enough.
    plain = drawn([Thing(0, 33, name="a"), Thing(100, 134, name="b")], "g0.0s7")
    [text] = [one["text"] for one in plain["data"] if one["type"] == "scatter"]
    assert text == ["b"]


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.000 us"),
        (1_234_567, "1.235 ms"),
        (2_000_000_000, "2.000 s"),
    ],
)
def test_lengths_in_the_unit_that_suits(ns, said):
    assert figure.duration(ns) == said
