"""Missing synchronisation on a real GPU: recorded in code, attached to a job, and live."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import diagnose
from benchmarks.gpu import two_ranks
from benchmarks.gpu.hazards import jobs
from diagnose import manifest

pytestmark = pytest.mark.gpu

TRAINING = str(two_ranks.__file__).replace("two_ranks.py", "jobs/training.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Every job of ``benchmarks.gpu.hazards.jobs``, recorded in code."""
    folder = tmp_path_factory.mktemp("jobs")
    line = [sys.executable, "-m", "benchmarks.gpu.hazards.jobs", "--out", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.count("status 0") == len(jobs.JOBS), done.stdout + done.stderr
    return folder


def findings(recording, rule: str) -> list:
    return [one for one in recording.diagnosis().findings if one.rule == rule]


@pytest.mark.parametrize("name", sorted(jobs.JOBS))
def test_jobs_recorded_in_code(recorded, name):
    recording = diagnose.load(recorded / name)
    found = findings(recording, "missing-stream-sync")
    if jobs.JOBS[name].waits_too_little:
        assert {one.severity for one in found} == {"critical"}
    else:
        assert found == []
    assert {note.code for note in recording.notes} & {"execution-trace-apart"} == set()


def test_one_buffer_costs_what_two_buffers_save(recorded):
    (found,) = findings(diagnose.load(recorded / "one_buffer"), "single-buffered-transfer")
    assert findings(diagnose.load(recorded / "two_buffers"), "single-buffered-transfer") == []
    took = [
        json.loads((recorded / name / "measured.json").read_text())["step_ms"]
        for name in ("one_buffer", "two_buffers")
    ]
    most = found.gain.high_ns / 1e6
    assert 0.8 * most < took[0] - took[1] < 1.1 * most


def test_a_window_of_a_job_that_nobody_prepared(tmp_path):
    script = [TRAINING, "--out", str(tmp_path), "--seconds", "40"]
    window = tmp_path / "window"
    with two_ranks.job(script, {}, tmp_path / "alive") as running:
        line = [sys.executable, "-m", "diagnose", "attach", "--check-sync", "--no-report"]
        line += ["-o", str(window)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=80, check=False)
        assert done.returncode == 0, done.stderr
        assert running.wait(80) == 0
    said = manifest.read(window / "recording.json")
    assert [rank.execution_trace is not None for rank in said.ranks] == [True, True]
    assert {note.code for note in said.notes} & {"events-not-annotated"} == set()
    trace = diagnose.load(window).trace
    assert set(trace.accesses["source"].tolist()) == {0, 1}
    assert findings(diagnose.load(window), "missing-stream-sync") == []


@pytest.mark.parametrize(("name", "status"), [("batch_not_waited", 1), ("two_buffers", 0)])
def test_live(tmp_path, name, status):
    out = tmp_path / "found.json"
    line = [sys.executable, "-m", "diagnose", "check-sync", "--fail-on", "critical"]
    line += ["-o", str(out), "--", sys.executable, "-m", "benchmarks.gpu.hazards.jobs"]
    line += ["--out", str(tmp_path), "--one", name]
    done = subprocess.run(line, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    found = json.loads(out.read_text())["findings"]
    # The copy is read without a wait by the forward pass, and again by the backward pass.
    assert [one["severity"] for one in found] == ["critical"] * 2 * status
