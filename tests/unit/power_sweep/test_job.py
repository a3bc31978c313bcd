"""What the verb does for each run: real commands, and figures of a shipped recording."""

from __future__ import annotations

import statistics
import sys

import numpy as np
import pytest

import diagnose
from diagnose.cli._power_sweep import job_under_caps, measure, measures
from diagnose.errors import UsageError
from diagnose.schema import NULL


def test_a_command_that_takes_no_step_is_timed_by_its_wall_time(tmp_path):
    outcome = job_under_caps([sys.executable, "-c", "pass"], tmp_path, 5, 10)(None)
    assert (outcome.status, outcome.window) == (0, None)
    assert "ended before step 10" in outcome.problem
    assert (tmp_path / "as-found").is_dir()


def test_a_command_that_fails_says_its_status(tmp_path):
    outcome = job_under_caps([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, 5, 10)(550.5)
    assert (outcome.status, outcome.window) == (3, None)
    assert "status 3" in outcome.problem
    assert (tmp_path / "cap-550.5W").is_dir()


def test_a_command_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match="cannot be started"):
        job_under_caps([str(tmp_path / "nothing")], tmp_path / "out", 5, 10)(None)


def test_figures_of_a_recording(recordings):
    trace = diagnose.load(recordings / "healthy").trace
    found = measures(trace)
    # Two step times on each of two ranks (docs/steps.md): 38.95, 39.41, 38.97 and 39.37 ms.
    assert found.num_steps == 4
    assert found.step_ns / 1e6 == pytest.approx((38.970 + 39.370) / 2, abs=0.01)
    table = diagnose.load(recordings / "healthy").overlap("step")
    values = np.asarray(table["step_ns"].dropna(), np.int64)
    assert found.step_ns == statistics.median(values[values != NULL].tolist())
    # Too short for an energy, which is said; the peak and the clock are those recorded.
    assert found.step_energy_j is None
    assert any("less than 10 refreshes" in why for why in found.why)
    assert found.peak_w == 707.872
    assert 1815 <= found.clock_mhz <= 1845


def test_a_window_that_cannot_be_read_is_a_reason(tmp_path):
    found = measure(tmp_path / "gone")
    assert found.step_ns is None
    assert found.why[0].startswith("the window cannot be read")
