"""The measures on timelines small enough to work out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from diagnose.analysis import Unavailable
from diagnose.errors import UsageError
from diagnose.schema import Activity, Detail
from diagnose.timeline import (
    ANALYZERS,
    OBSERVER_EFFECT,
    OVERLAP,
    STEP_SUMMARY,
    observer_effect,
    overlap,
    per_step,
)
from diagnose.trace import Observer
from tests.property.hand_made import Mark, Op, Wait, make_trace, rows_of

COMPUTE, TALK, MEMORY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.MEMORY


def test_union_not_sum():
    # Compute [0,100) and [50,150) = 150; communication [120,220) and [140,260) = 140;
    # both at once [120,150) = 30; the copy [240,300) hides nothing.
    trace = make_trace(
        [
            Op(0, 100, stream=7),
            Op(50, 150, stream=21),
            Op(120, 220, TALK, stream=30, group="a"),
            Op(140, 260, TALK, stream=31, group="b"),
            Op(240, 300, MEMORY, certain=False),
        ]
    )
    (row,) = rows_of(overlap(trace))
    assert row == {
        "source": 0,
        "device": 0,
        "rank": 0,
        "step_row": None,
        "stream": None,
        "group": None,
        "collective": None,
        "num_ops": 5,
        "compute_ns": 150,
        "communication_ns": 140,
        "memory_ns": 60,
        "overlapped_ns": 30,
        "exposed_communication_ns": 110,
        "overlap_pct": pytest.approx(100 * 30 / 140),
        "overlap_of_compute_pct": pytest.approx(20.0),
        "uncertain_ns": 60,
        "kernel_time_ns": 480,
        "busy_ns": 300,
        "window_ns": 300,
        "idle_ns": 0,
        "step_ns": None,
    }
    a, b = rows_of(overlap(trace, by="group"))
    assert (a["group"], a["communication_ns"], a["overlapped_ns"]) == ("a", 100, 30)
    assert (b["group"], b["communication_ns"], b["overlapped_ns"]) == ("b", 120, 10)


def test_two_gpus_do_not_hide_each_other():
    ops = [Op(0, 100), Op(100, 200, TALK), Op(90, 210, device=1), Op(150, 200, TALK, device=1)]
    first, second = rows_of(overlap(make_trace(ops)))
    assert (first["device"], first["overlapped_ns"], first["overlap_pct"]) == (0, 0, 0.0)
    assert (second["device"], second["overlapped_ns"], second["overlap_pct"]) == (1, 50, 100.0)


def test_without_communication_overlap_is_absent():
    (row,) = rows_of(overlap(make_trace([Op(0, 10)])))
    assert row["communication_ns"] == 0
    assert row["overlap_pct"] is None
    assert math.isnan(overlap(make_trace([Op(0, 10)]))["overlap_pct"][0])


def test_no_gpu_work_gives_no_row_and_no_warning():
    for by in ("rank", "stream", "group", "collective"):
        assert len(overlap(make_trace([]), by=by)) == 0
    empty = make_trace([], [Mark(0, 10)])
    assert len(overlap(empty, by="step")) == 0
    assert len(per_step(empty)) == 0


def test_rows_follow_the_rank_and_unknown_comes_last():
    ops = [Op(0, 1, source=s, stream=st) for s in (0, 1, 2) for st in (None, 9, 7)]
    rows = rows_of(overlap(make_trace(ops, ranks=[None, 5, 2]), by="stream"))
    assert [(r["rank"], r["stream"]) for r in rows] == [
        (rank, stream) for rank in (2, 5, None) for stream in (7, 9, None)
    ]


def test_another_split_is_refused():
    with pytest.raises(UsageError, match="'kernel'") as raised:
        overlap(make_trace([]), by="kernel")  # type: ignore[arg-type]
    assert "collective" in raised.value.hint


def test_steps_need_launches_and_marks():
    for run in (lambda trace: overlap(trace, by="step"), per_step):
        missing = run(make_trace([Op(0, 1)], [Mark(0, 1)], detail=Detail.GPU))
        assert isinstance(missing, Unavailable)
        assert "--only gpu" in missing.remedy
        missing = run(make_trace([Op(0, 1)]))
        assert isinstance(missing, Unavailable)
        assert "step()" in missing.remedy
    assert len(overlap(make_trace([Op(0, 1)], detail=Detail.GPU))) == 1


RUNS_BEHIND = [
    # The GPU works behind the host: marks end at 30, the last work at 51.
    Op(0, 5),
    Op(5, 12, step=0),
    Op(13, 23, TALK, stream=20, step=0),
    Op(12, 26, step=1),
    Op(27, 37, TALK, stream=20, step=1),
    Op(26, 40, step=2),
    Op(41, 51, TALK, stream=20, step=2),
]
THREE = [Mark(0, 10, number=10), Mark(10, 20, number=11), Mark(20, 30, number=12)]


def test_three_marks_give_two_step_times():
    rows = rows_of(overlap(make_trace(RUNS_BEHIND, THREE), by="step"))
    assert [row["step_row"] for row in rows] == [0, 1, 2, None]
    assert [row["num_ops"] for row in rows] == [2, 2, 2, 1]
    # Ends 23, 37, 51. Step 1's time [23,37): all busy but [26,26) -> 0 idle; [40,41) in step 2's.
    assert [row["step_ns"] for row in rows] == [None, 14, 14, None]
    assert [row["idle_ns"] for row in rows] == [None, 0, 1, None]
    # Step 0's all-reduce [13,23) lies under step 1's kernel [12,26): hidden all the same.
    assert [row["overlapped_ns"] for row in rows] == [10, 10, 0, 0]
    assert [row["exposed_communication_ns"] for row in rows] == [0, 0, 10, 0]
    assert [row["window_ns"] for row in rows] == [None] * 4


def test_summary_divides_by_the_steps_it_covers():
    (row,) = rows_of(per_step(make_trace(RUNS_BEHIND, [*THREE, Mark(30, 40, number=13)])))
    assert row["num_steps"] == 4
    assert row["num_steps_covered"] == 3
    assert row["num_steps_timed"] == 2
    assert (row["mean_step_ns"], row["median_step_ns"]) == (14.0, 14.0)
    assert (row["min_step_ns"], row["max_step_ns"]) == (14, 14)
    assert row["mean_idle_ns"] == 0.5
    assert row["mean_communication_ns"] == 10.0
    assert row["mean_exposed_communication_ns"] == pytest.approx(10 / 3)
    assert (row["unassigned_ops"], row["unassigned_busy_ns"]) == (1, 5)


def test_summary_without_a_step_time():
    (row,) = rows_of(per_step(make_trace([Op(0, 1, step=0)], THREE[:1])))
    assert row["num_steps_timed"] == 0
    for name in ("mean_step_ns", "median_step_ns", "min_step_ns", "max_step_ns", "mean_idle_ns"):
        assert row[name] is None
    assert row["mean_compute_ns"] == 1.0


def times(ops, marks=THREE, waits=()):
    rows = rows_of(overlap(make_trace(ops, list(marks), list(waits)), by="step"))
    return [row["step_ns"] for row in rows if row["step_row"] is not None]


ENDS_10_20_30 = [Op(2, 10, step=0), Op(12, 20, step=1), Op(22, 30, step=2)]


@pytest.mark.parametrize(
    ("ops", "marks", "expected"),
    [
        (ENDS_10_20_30, THREE, [None, 10, 10]),
        # Step 1 ends inside step 0's last work: neither its time nor the next is one step's.
        ([Op(2, 18, step=0), Op(12, 15, step=1), Op(22, 30, step=2)], THREE, [None] * 3),
        # Both end at once.
        ([Op(2, 20, step=0), Op(12, 20, step=1), Op(22, 30, step=2)], THREE, [None] * 3),
        # Step 1 launched nothing.
        ([Op(2, 10, step=0), Op(22, 30, step=2)], THREE, [None] * 3),
        # A gap in the numbers: two windows.
        (ENDS_10_20_30, [Mark(0, 10, number=10), *THREE[1:]], [None, 10, 10]),
        (ENDS_10_20_30, [Mark(0, 10, number=4), *THREE[1:]], [None, None, 10]),
        # Without numbers, marks follow each other.
        (ENDS_10_20_30, [Mark(0, 10), Mark(10, 20), Mark(20, 30)], [None, 10, 10]),
    ],
)
def test_when_a_step_has_a_time(ops, marks, expected):
    assert times(ops, marks) == expected


LATER = [Mark(100, 110, number=1), Mark(110, 120, number=2)]
AFTER_WAIT = [Op(104, 109, step=0, launch=103), Op(113, 119, step=1, launch=112)]


@pytest.mark.parametrize(
    ("earlier", "waits", "first"),
    [
        ([], [], None),
        # The host waited before the mark: the step began with it.
        ([], [Wait(90, 95)], 9),
        # It waited within the step, before its first launch; up to the very instant.
        ([], [Wait(100, 103)], 9),
        # It came back only after the first launch.
        ([], [Wait(100, 104)], None),
        # Another thread waited, such as the watchdog of a process group.
        ([], [Wait(90, 95, thread=1)], None),
        # Work from before ended before the mark (9), or within the step (109 - 101 = 8) ...
        ([Op(80, 92)], [Wait(90, 95)], 9),
        ([Op(80, 101)], [Wait(90, 102)], 8),
        ([Op(80, 101, launch=70)], [Wait(90, 102)], 8),
        # ... or ran on when the wait was over.
        ([Op(80, 101)], [Wait(90, 95)], None),
        ([Op(97, 98, launch=96)], [Wait(90, 95)], None),
        # Work that was launched after the step is none of its past.
        ([Op(121, 125, launch=121)], [Wait(90, 95)], 9),
        # Another process waits for another GPU.
        ([], [Wait(90, 95, source=1)], None),
    ],
)
def test_first_step_has_a_time_only_after_a_wait(earlier, waits, first):
    ops = [*AFTER_WAIT, *earlier, Op(0, 1, source=1)]
    assert times(ops, LATER, waits) == [first, 10]


def test_first_step_of_a_second_window_after_a_wait():
    ops = [
        Op(1, 9, step=0, launch=1),
        Op(104, 109, step=1, launch=103),
        Op(113, 119, step=2, launch=112),
    ]
    marks = [Mark(0, 10, number=1), Mark(100, 110, number=8), Mark(110, 120, number=9)]
    assert times(ops, marks) == [None, None, 10]
    assert times(ops, marks, [Wait(20, 30)]) == [None, 9, 10]


def test_steps_of_each_process_stand_for_themselves():
    ops = [Op(s + o.start, s + o.end, step=o.step, source=s) for s in (0, 1) for o in ENDS_10_20_30]
    marks = [Mark(m.start, m.end, source=s, number=m.number) for s in (0, 1) for m in THREE]
    rows = rows_of(overlap(make_trace(ops, marks), by="step"))
    assert [(r["source"], r["step_row"], r["step_ns"]) for r in rows] == [
        (0, 0, None),
        (0, 1, 10),
        (0, 2, 10),
        (1, 3, None),
        (1, 4, 10),
        (1, 5, 10),
    ]


def test_analyzers_are_declared():
    assert [(a.name, a.schema, a.run) for a in ANALYZERS] == [
        ("overlap", OVERLAP, overlap),
        ("step_summary", STEP_SUMMARY, per_step),
        ("observer_effect", OBSERVER_EFFECT, observer_effect),
    ]
    trace = replace(make_trace(RUNS_BEHIND, THREE), observer=Observer())
    assert all(analyzer.run(trace).schema is analyzer.schema for analyzer in ANALYZERS)


@pytest.mark.parametrize("by", ["group", "collective"])
def test_text_keys_are_sorted_as_text_and_unknown_comes_last(by):
    ops = [Op(n, n + 1, TALK, **{by: text}) for n, text in enumerate(("b", None, "a", "b"))]
    rows = rows_of(overlap(make_trace([*ops, Op(0, 9)]), by=by))
    assert [(row[by], row["num_ops"]) for row in rows] == [("a", 1), ("b", 2), (None, 1)]
