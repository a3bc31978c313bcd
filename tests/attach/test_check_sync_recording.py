"""Recordings with ``--check-sync`` of real jobs of two ranks, by each way to make one.

There is no GPU here: execution traces are recorded, and of events it is said why there are none.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import diagnose
from diagnose import manifest
from tests.attach.conftest import Job
from tests.unit.agent.controller import Controller

torch = pytest.importorskip("torch")

ROOT = str(Path(__file__).resolve().parents[2])
TRACES = [f"rank{rank:05d}.trace.json.gz" for rank in range(2)]
EXECUTION_TRACES = [f"rank{rank:05d}.execution_trace.json.gz" for rank in range(2)]


@pytest.fixture(scope="module")
def job(start_job, untouched_losses) -> Iterator[Job]:
    """In the end: all losses are those of an untouched run, and nothing was said."""
    job = start_job("train.py", env={"SLEEP": "0.01", "LIFETIME": "170"}, agent=True)
    job.pids  # noqa: B018 - waits
    job.wait_for_steps(20)
    yield job
    job.finish()
    for rank in range(2):
        losses = job.losses(rank)
        compared = min(len(losses), len(untouched_losses[rank]))
        assert compared >= 200
        assert losses[:compared] == untouched_losses[rank][:compared]
    assert "Traceback" not in job.output()
    assert list(job.sockets.iterdir()) == []


def attach(job: Job, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    pids = [str(pid) for pid in job.pids]
    command = [sys.executable, "-m", "diagnose", "attach", *pids, "-o", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


@pytest.fixture(scope="module")
def attached(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check") / "out"
    done = attach(job, folder, "--check-sync", "--steps", "2", "--no-report")
    assert done.returncode == 0, done.stderr
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_recording(folder: Path) -> None:
    """Both files of both ranks, of the same steps, joined operator by operator."""
    said = manifest.read(folder / "recording.json")
    assert [rank.trace for rank in said.ranks] == TRACES
    assert [rank.execution_trace for rank in said.ranks] == EXECUTION_TRACES
    assert not [name for name in names(folder) if name.endswith((".part", ".json.tmp"))]
    notes = {note.code: note for note in said.notes}
    assert "execution-trace-missing" not in notes
    assert notes["events-not-annotated"].severity == "info"
    assert "uses no CUDA" in notes["events-not-annotated"].sentence
    trace = diagnose.load(folder).trace
    for source in range(2):
        rows = trace.accesses["host_op_row"][trace.accesses["source"] == source]
        touching = {trace.strings[int(name)] for name in trace.host_ops["name"][np.unique(rows)]}
        assert touching >= {"aten::addmm", "aten::mm"}
    assert not [note for note in trace.notes if note.code == "execution-trace-partial"]


def operators(path: Path) -> int:
    content = json.loads(gzip.decompress(path.read_bytes()))
    return sum(1 for node in content["nodes"] if node["name"] == "aten::addmm")


def test_attach_records_an_execution_trace_of_the_same_steps(attached: Path) -> None:
    check_recording(attached)
    for name in EXECUTION_TRACES:
        assert operators(attached / name) == 2 * 4  # four layers, two steps


def test_stacks_are_recorded_without_asking(attached: Path) -> None:
    for name in TRACES:
        content = json.loads(gzip.decompress((attached / name).read_bytes()))
        assert any(event.get("cat") == "python_function" for event in content["traceEvents"])


def test_the_report_reads_it(attached: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "diagnose", "report", str(attached)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr


def test_windows_by_the_clock_have_one_too(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = attach(job, folder, "--check-sync", "--seconds", "0.2", "--no-report")
    assert done.returncode == 0, done.stderr
    check_recording(folder)


def test_the_next_recording_is_without(job: Job, attached: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = attach(job, folder, "--steps", "2", "--no-report")
    assert done.returncode == 0, done.stderr
    assert not [name for name in names(folder) if "execution_trace" in name]
    codes = {note.code for note in manifest.read(folder / "recording.json").notes}
    assert not codes & {"execution-trace-missing", "events-not-annotated"}


def begin(job: Job, folder: Path) -> list[Controller]:
    """Both ranks, recording a window that does not end by itself."""
    controllers = [Controller(job.sockets / f"{pid}.sock") for pid in job.pids]
    step = max(c.ask("arm")["marks"][-1][0] for c in controllers)
    for rank, controller in enumerate(controllers):
        beside = str(folder / f"et{rank}.json")
        trace = str(folder / f"trace{rank}.json")
        controller.send(
            "go", start={"step": step + 10}, steps=100_000, trace=trace, check_sync=beside
        )
    for rank in range(2):
        part = folder / f"et{rank}.json.part"
        job.wait_until(lambda p=part: p.exists() and p.stat().st_size > 0, 20, "the observer")
    return controllers


@pytest.mark.parametrize("how", ["gone", "cancelled"])
def test_a_window_that_is_ended_leaves_no_observer(job: Job, tmp_path: Path, how: str) -> None:
    controllers = begin(job, tmp_path)
    for controller in controllers:
        if how == "cancelled":
            controller.send("cancel")
            reply = controller.receive()
            assert (reply["ok"], reply["code"]) == (False, "aborted")
        controller.close()
    job.wait_until(lambda: not list(tmp_path.iterdir()), 10, "its files to go")
    job.more_steps(2)
    folder = tmp_path / "out"
    done = attach(job, folder, "--check-sync", "--steps", "2", "--no-report")
    assert done.returncode == 0, done.stderr
    check_recording(folder)


def test_a_file_elsewhere_is_refused(job: Job, tmp_path: Path) -> None:
    with Controller(job.sockets / f"{job.pids[0]}.sock") as controller:
        step = controller.ask("arm")["marks"][-1][0]
        for beside in (str(tmp_path / "deep" / "et.json"), 7, "et.json"):
            trace = str(tmp_path / "trace.json")
            reply = controller.ask(
                "go", start={"step": step + 30}, steps=1, trace=trace, check_sync=beside
            )
            assert (reply["ok"], reply["code"]) == (False, "bad-request")
            assert list(tmp_path.iterdir()) == []


def test_run_records_it_on_schedule(tmp_path: Path, untouched_losses: dict[int, list[str]]) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    variables = {"JOB_DIR": str(tmp_path), "DIAGNOSE_DIR": str(tmp_path / "s"), "STEPS": "400"}
    variables |= {"OMP_NUM_THREADS": "1", "SLEEP": "0.01"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "diagnose", "run", "--check-sync", "--at-step", "250"),
            *("-o", str(tmp_path / "out"), "--", sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node=2", str(Path(__file__).parent / "jobs/train.py")),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [window] = (tmp_path / "out").glob("window*")
    check_recording(window)
    for rank in range(2):
        lines = (tmp_path / f"loss.{rank}").read_text().splitlines()
        assert [line.split()[1] for line in lines] == untouched_losses[rank][:400]


def test_record_in_code(start_job: Callable[..., Job], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    variables = {"PYTHONPATH": ROOT, "CHECK_SYNC": "1", "OUTPUT": str(folder)}
    recorded = start_job("record.py", env=variables)
    untouched = start_job("record.py", env={"PYTHONPATH": ROOT})
    for each in (recorded, untouched):
        assert each.wait(60) == 0, each.output()
    check_recording(folder)
    for rank in range(2):
        assert recorded.losses(rank) == untouched.losses(rank)
    assert "no recording" not in recorded.output()


def steps(number: int) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_record_in_code_beside_an_observer_of_the_jobs_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = torch.profiler.ExecutionTraceObserver()
    own.register_callback(str(tmp_path / "own.json"))
    own.start()
    try:
        folder = tmp_path / "out"
        with (
            caplog.at_level(logging.WARNING, logger="diagnose"),
            diagnose.record(folder, steps=2, skip=1, telemetry=False, check_sync=True),
        ):
            steps(8)
    finally:
        own.unregister_callback()
    assert caplog.records == []
    said = manifest.read(folder / "recording.json")
    assert said.ranks[0].execution_trace is None
    [note] = [note for note in said.notes if note.code == "execution-trace-missing"]
    assert "the job has an execution trace observer of its own" in note.sentence
    assert not [name for name in names(folder) if "execution_trace" in name]
    nodes = json.loads((tmp_path / "own.json").read_text())["nodes"]
    assert sum(1 for node in nodes if node["name"] == "aten::addmm") == 8


def test_record_in_code_that_ends_too_early_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with diagnose.record(folder, steps=9, skip=1, telemetry=False, check_sync=True):
        steps(5)
    assert not folder.exists()
    own = torch.profiler.ExecutionTraceObserver()
    own.register_callback(str(tmp_path / "own.json"))
    own.start()
    steps(1)
    own.unregister_callback()
    assert "aten::addmm" in (tmp_path / "own.json").read_text()
