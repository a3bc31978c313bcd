"""What figures hold: the table's values in the unit of the axis, with units in text."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose import engine
from diagnose.figures import (
    idle_causes,
    overlap_by_step,
    power_by_class,
    rank_waits,
    slowdown,
    staircase,
    step_time,
)
from diagnose.plotting.palette import DARK, LIGHT
from diagnose.plotting.style import Unit
from diagnose.schema import NULL
from diagnose.trace import Strings, Table
from tests.report_tables import stairs
from tests.text import jobs

US, MS = Unit("us", 1_000, 1), Unit("ms", 1_000_000, 2)
LABELS = {(0, 0): "rank 0", (1, 0): "rank <b>1"}


def table(name, **options):
    return engine.run(engine.analyzers()[name], jobs.two_ranks(), **options)


def made(name, rows):
    """A table of an analysis with some columns given, the others null."""
    described = engine.analyzers()[name].schema
    columns = {}
    for column in described.columns:
        null = np.nan if column.dtype.startswith("f") else -1 if column.is_reference else NULL
        null = 0 if column.dtype in ("int8", "int32", "bool") and not column.is_reference else null
        columns[column.name] = np.array([row.get(column.name, null) for row in rows], column.dtype)
    return Table(described, columns, Strings())


def test_a_step_is_a_stack_of_five_states():
    """Of a step of 100 us: rank 0 computes 40 alone, hides 20, exposes 30, copies 5, idles 5."""
    drawn = step_time.draw(table("step_shares"), LABELS, US)
    parts = {bar.name: list(bar.x) for bar in drawn.data}
    assert parts == {
        "compute alone": [40, 50],
        "compute and communication": [20, 20],
        "exposed communication": [30, 20],
        "copies only": [5, 5],
        "idle": [5, 5],
    }
    assert drawn.layout.barmode == "stack"
    assert drawn.layout.xaxis.title.text == "mean step (us)"
    assert list(drawn.layout.yaxis.ticktext) == ["rank 0", "rank &lt;b&gt;1"]
    assert [row[1] for row in drawn.data[2].customdata] == [30.0, 20.0]  # percent
    assert "us" in drawn.data[0].hovertemplate


def test_lines_of_overlap_have_a_point_a_step():
    """Each of the three steps of a rank hides 20 of its 50 and 40 us: 40 and 50 %."""
    steps = {0: "7", 1: "8", 2: "9", 3: "7", 4: "8", 5: "9"}
    drawn = overlap_by_step.draw(table("overlap", by="step"), LABELS, steps, US)
    assert [list(line.y) for line in drawn.data] == [[40, 40, 40], [50, 50, 50]]
    assert list(drawn.data[0].x) == ["7", "8", "9"]
    assert [tuple(row) for row in drawn.data[1].customdata] == [(20, 20)] * 3
    assert drawn.layout.yaxis.title.text == "communication hidden (%)"


def test_of_many_gpus_only_the_extremes_have_a_color():
    rows = [
        {"source": rank, "step_row": step, "overlap_pct": 10.0 * rank, "overlapped_ns": 1}
        for rank in range(10)
        for step in (0, 1)
    ]
    labels = {(rank, 0): f"rank {rank}" for rank in range(10)}
    drawn = overlap_by_step.draw(made("overlap", rows), labels, {0: "0", 1: "1"}, US)
    colors = [line.line.color for line in drawn.data]
    assert colors == [LIGHT.series[1], *[LIGHT.bound] * 8, LIGHT.series[0]]
    assert [line.showlegend for line in drawn.data] == [True, *[False] * 8, True]


def test_stairs_show_what_is_left_and_what_is_saved():
    titles = ["now", "one", "two", "three", "four"]
    left, saved = staircase.draw(stairs(), titles, MS).data
    assert list(left.x) == [42.4, 38.2, 37.5, 36.9, 34.8]
    assert list(saved.x) == pytest.approx([0, 4.2, 0.7, 0.6, 2.1])
    assert list(left.error_x.arrayminus) == pytest.approx([0.5, 0.6, 0.7, 0.7, 0.7])
    assert list(left.error_x.array) == pytest.approx([0.6, 0.7, 0.9, 0.8, 0.7])
    assert left.marker.color == (*[LIGHT.compute] * 3, *[LIGHT.bound] * 2)


def test_causes_are_ordered_by_time_over_all_gpus():
    rows = [
        {"source": 0, "cause": 1, "length_ns": 1_000, "num_intervals": 1},
        {"source": 0, "cause": 2, "length_ns": 2_000, "num_intervals": 2},
        {"source": 1, "cause": 1, "length_ns": 5_000, "num_intervals": 3},
    ]
    drawn = idle_causes.draw(made("stall_sites", rows), LABELS, {1: "a", 2: "b"}, US)
    assert list(drawn.layout.yaxis.ticktext) == ["a", "b"]  # 6 us, then 2 us
    assert [list(bar.x) for bar in drawn.data] == [[1, 2], [5, 0]]
    assert [row[2] for row in drawn.data[0].customdata] == [1, 2]


def test_of_many_gpus_causes_show_the_sum():
    rows = [{"source": s, "cause": 1, "length_ns": 1_000, "num_intervals": 1} for s in range(6)]
    labels = {(source, 0): "" for source in range(6)}
    drawn = idle_causes.draw(made("stall_sites", rows), labels, {1: "a"}, US)
    assert [(bar.name, list(bar.x)) for bar in drawn.data] == [("all 6 GPUs", [6])]


def test_the_late_rank_costs_and_the_other_waits():
    rows = [
        {"source": 0, "cost_ns": 0, "exposed_wait_ns": 30_000},
        {"source": 1, "cost_ns": 30_000, "exposed_wait_ns": 0},
    ]
    costs, waits = rank_waits.draw(made("ranks", rows), LABELS, US).data
    assert (list(costs.x), list(waits.x)) == ([0, 30], [30, 0])


def test_slowdown_has_intervals_and_nothing_is_drawn_without_one():
    known = {"slowdown": 1.6, "slowdown_low": 1.5, "slowdown_high": 1.8, "coverage_pct": 40.0}
    drawn = slowdown.draw(made("contention", [known, {}]), ["all_reduce", "unknown"])
    assert list(drawn.data[0].x) == [1.6]
    assert list(drawn.data[0].error_x.array) == pytest.approx([0.2])
    assert drawn.data[0].customdata[0][1] == "1.50 to 1.80 (95 %)"
    assert slowdown.draw(made("contention", [{}]), ["unknown"]) is None


def test_power_has_watts_and_nothing_is_drawn_without_them():
    known = {"doing": 0, "mean_w": 600.0, "mean_low_w": 580.0, "mean_high_w": 630.0}
    drawn = power_by_class.draw(made("power_classes", [known]), LABELS, {0: "compute"})
    assert list(drawn.data[0].x) == [600]
    assert list(drawn.data[0].error_x.arrayminus) == [20]
    assert drawn.layout.xaxis.title.text == "mean power (W)"
    assert power_by_class.draw(made("power_classes", [{}]), LABELS, {0: "compute"}) is None


def test_every_color_of_a_figure_is_one_of_the_palette():
    """Otherwise it would stay light when the page turns dark."""
    drawn = step_time.draw(table("step_shares"), LABELS, US, DARK)
    assert drawn.data[0].marker.color == DARK.compute
    text = step_time.draw(table("step_shares"), LABELS, US).to_json()
    from re import findall

    from diagnose.plotting.palette import properties

    assert set(findall("#[0-9a-f]{6}", text)) <= set(properties(LIGHT).values())
