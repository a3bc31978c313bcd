"""Two NCCL ranks, recorded by ``diagnose attach`` and ``diagnose run`` on a real GPU.

On one GPU the ranks share it, as ``benchmarks/gpu/two_ranks.py`` says.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diagnose
from benchmarks.gpu import two_ranks
from diagnose import manifest

pytestmark = pytest.mark.gpu

TRAINING = str(two_ranks.__file__).replace("two_ranks.py", "jobs/training.py")
NUM_STEPS = 3


@pytest.fixture(scope="module")
def attached(tmp_path_factory):
    """Three windows of one job that nobody prepared, and the job's exit status."""
    folder = tmp_path_factory.mktemp("attached")
    script = [TRAINING, "--out", str(folder), "--seconds", "35"]
    windows = [folder / f"window{number}" for number in range(3)]
    with two_ranks.job(script, {}, folder / "alive") as running:
        for window in windows:
            line = [sys.executable, "-m", "diagnose", "attach", "--no-report"]
            line += ["--steps", str(NUM_STEPS), "-o", str(window)]
            done = subprocess.run(line, capture_output=True, text=True, timeout=40, check=False)
            assert done.returncode == 0, done.stderr
        status = running.wait(60)
    assert status == 0
    return windows


def document(window: Path, rank: int):
    with gzip.open(window / f"rank{rank:05d}.trace.json.gz") as file:
        return json.load(file)


def check(window: Path, clock: str = "seq") -> None:
    """One recording: whole, aligned, with NCCL's metadata and telemetry on the trace's clock."""
    said = manifest.read(window / "recording.json")
    assert [rank.rank for rank in said.ranks] == [0, 1]
    assert said.window is not None
    assert said.window.clock == clock
    contents = [document(window, rank) for rank in range(2)]
    numbers = [[mark[1] for mark in content["diagnose_marks"]] for content in contents]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == NUM_STEPS + 1
    recording = diagnose.load(window)
    trace = recording.trace
    # Two ranks, three steps, more than one bucket a step.
    assert len(trace.collectives) >= 2 * NUM_STEPS
    # What was launched before the window has no metadata.
    launched = trace.gpu_ops["launch_row"][trace.collectives["gpu_op_row"]] >= 0
    assert launched.sum() >= 2 * NUM_STEPS
    assert set(trace.collectives["group_size"][launched].tolist()) == {2}
    assert (trace.collectives["bytes"][launched] > 0).all()
    assert len(trace.syncs) > 0
    for source in recording.sources:
        assert source.environment["nccl_loaded"]
        assert source.environment["gpu"]["uuid"]
    samples = trace.samples
    power = samples["power_instant_w"]
    assert np.nanmax(power) > 50
    for index, source in enumerate(recording.sources):
        operations = trace.gpu_ops["source"] == index
        begin = source.base_ns + trace.gpu_ops["start_ns"][operations].min()
        end = source.base_ns + trace.gpu_ops["end_ns"][operations].max()
        times = samples["unix_ns"][samples["source"] == index]
        assert times.min() < begin
        assert times.max() > end


def test_windows_of_a_job_that_nobody_prepared(attached):
    for window in attached:
        check(window)


def test_the_step_is_what_it_was_after_the_window(attached):
    for window in attached:
        observer = manifest.read(window / "recording.json").observer
        assert observer is not None
        assert observer.before_ns is not None
        assert observer.after_ns is not None
        # Host intervals of five steps beside two ranks on one GPU are noisy: 25 %.
        assert observer.after_ns < 1.25 * observer.before_ns


def test_kernels_begin_after_their_launch(attached):
    for window in attached:
        trace = diagnose.load(window).trace
        row = trace.gpu_ops["launch_row"]
        linked = row >= 0
        late = trace.gpu_ops["start_ns"][linked] < trace.launches["start_ns"][row[linked]]
        assert late.sum() <= 0.01 * linked.sum()


def test_a_window_at_a_step_of_a_job_started_by_run(tmp_path):
    folder = tmp_path / "windows"
    line = [sys.executable, "-m", "diagnose", "run", "--at-step", "150", "-o", str(folder), "--"]
    line += [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    line += [TRAINING, "--out", str(tmp_path), "--seconds", "20"]
    environment = {**os.environ, **two_ranks.environment()}
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (manifest_path,) = folder.rglob("recording.json")
    check(manifest_path.parent, clock="step")
