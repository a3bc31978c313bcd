"""``overlap`` on the shipped recordings equals the independent count, to the nanosecond."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.readers import read
from diagnose.timeline import overlap
from tests.oracle import brute_force
from tests.property.hand_made import rows_of

RECORDINGS = Path(__file__).parents[2] / "examples" / "recordings"
NAMES = ["data_stall", "healthy", "host_sync", "launch_bound", "pageable_copy", "straggler"]


def test_all_shipped_recordings_are_counted():
    assert sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_and_step(name):
    trace = read(RECORDINGS / name)
    ranks, steps = rows_of(overlap(trace)), rows_of(overlap(trace, by="step"))
    names = trace.steps.texts("name")
    assert [row["rank"] for row in ranks] == [0, 1]
    for rank, row in enumerate(ranks):
        file = RECORDINGS / name / f"rank{rank:05d}.trace.json.gz"
        ops, marks = brute_force.read(file)
        counted = brute_force.by_rank(ops)
        assert {key: row[key] for key in counted} == counted
        own = [step for step in steps if step["rank"] == rank]
        counted_steps = brute_force.by_step(ops, marks)
        assert len(own) == len(counted_steps) >= 3
        for step, expected in zip(own, counted_steps, strict=True):
            found = dict(step, step=None if step["step_row"] is None else names[step["step_row"]])
            wanted = {"step_ns": None, "idle_ns": None, **expected}
            assert {key: found[key] for key in wanted} == wanted


def test_the_script_stands_alone():
    """It runs without this package and its dependencies, and knows what it counts."""
    script = Path(brute_force.__file__)
    file = RECORDINGS / "healthy" / "rank00000.trace.json.gz"
    answer = subprocess.run(
        [sys.executable, "-I", "-S", str(script), str(file)], capture_output=True, check=True
    )
    assert json.loads(answer.stdout)["rank"]["num_ops"] == 2319


def test_the_sweep_on_a_timeline_worked_out_by_hand():
    # Compute [0,250) and [300,360), all-reduce [80,280), copy [290,300): 170 of 200 hidden.
    ops = [
        brute_force.Op("compute", 0, 100, "a"),
        brute_force.Op("compute", 100, 250, "b"),
        brute_force.Op("communication", 80, 280, "a"),
        brute_force.Op("memory", 290, 300, None),
        brute_force.Op("compute", 300, 360, "b"),
    ]
    assert brute_force.by_rank(ops) == {
        "compute_ns": 310,
        "communication_ns": 200,
        "memory_ns": 10,
        "num_ops": 5,
        "overlapped_ns": 170,
        "exposed_communication_ns": 30,
        "busy_ns": 350,
        "kernel_time_ns": 520,
        "window_ns": 360,
        "idle_ns": 10,
    }
    a, b, none = brute_force.by_step(
        ops, [brute_force.Mark("a", 0, 1), brute_force.Mark("b", 1, 2)]
    )
    assert (a["overlapped_ns"], "step_ns" in a) == (170, False)
    assert (b["step_ns"], b["idle_ns"], b["communication_ns"]) == (80, 10, 0)
    assert (none["num_ops"], none["memory_ns"]) == (1, 10)
