"""The tables of the benchmark: medians, ratios to the better of the others, targets."""

from __future__ import annotations

import pytest

from benchmarks.candidates import Candidate, Input
from benchmarks.measure import Cost
from benchmarks.results import rows, summary
from benchmarks.targets import beside

WHO = (
    Candidate("floor", "floor", ()),
    Candidate("overlap", "overlap", (), ours=True),
    Candidate("hta", "HTA", (), slow=True),
    Candidate("traceinsight", "traceinsight", (), slow=True),
)
# Of the two others one needs less CPU and the other less memory.
COSTS = {
    "floor": [Cost(1.0, 1.0, 20, "")],
    "overlap": [Cost(9.0, 9.0, 90, ""), Cost(4.0, 4.0, 200, ""), Cost(3.0, 3.0, 160, "")],
    "hta": [Cost(80.0, 90.0, 5000, "")],
    "traceinsight": [Cost(100.0, 99.0, 4800, "")],
}
LARGE = Input("tiled", "copies", (), num_events=1_000_000, num_bytes=10**9)


def test_ratios_are_of_medians_to_the_better_of_the_others_figure_by_figure() -> None:
    row = next(row for row in rows(LARGE, WHO, COSTS, {}) if row.candidate == "overlap")
    assert (row.cpu_s, row.peak_mib, row.num_runs) == (4.0, 160, 3)
    assert row.less_cpu == 80 / 4
    assert row.less_memory == 4800 / 160
    assert row.times_floor == 4
    assert row.events_per_cpu_s == 250_000


def test_what_was_not_run_has_no_ratio() -> None:
    alone = {"floor": [], "overlap": COSTS["overlap"], "hta": [], "traceinsight": []}
    [row] = rows(LARGE, WHO, alone, {})
    assert row.less_cpu is row.less_memory is row.times_floor is None


def test_summary_states_each_target_and_marks_those_missed() -> None:
    found = rows(LARGE, WHO, COSTS, {})
    compared = [
        {"num_intervals": 10_000_000, "order": "shuffled", "this_cpu_s": 0.5, "less_cpu": 12.0}
    ]
    lines = summary([(LARGE, found)], compared).splitlines()
    missed = "| overlap, 1,000 MB | 4.00 | **20.0x (25)** | **4.0x (3)** | 30.0x | **160 (150)** |"
    assert missed in lines
    assert "| HTA: load and overlap, 1,000 MB | 80.0 | - | - | - | 4,800 |" in lines
    assert (
        lines[-1] == "| 10,000,000 intervals in memory, shuffled | 0.50 | 12.0x (8) | - | - | - |"
    )


@pytest.mark.parametrize(
    ("value", "bound", "at_most", "expected"),
    [
        (3.0, 3.0, True, "x (3)"),
        (3.1, 3.0, True, "**x (3)**"),
        (25.0, 25.0, False, "x (25)"),
        (24.9, 25.0, False, "**x (25)**"),
        (9.0, None, False, "x"),
        (None, 5.0, False, "x"),
    ],
)
def test_a_bound_itself_meets_the_target(
    value: float | None, bound: float | None, at_most: bool, expected: str
) -> None:
    assert beside("x", value, bound, at_most=at_most) == expected
