"""``diagnose.record``: a recording that the training code makes itself."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose import manifest
from diagnose.collect import companion
from diagnose.errors import RecordingError, UsageError
from diagnose.manifest import Manifest, RankFiles, Window

ROOT = str(Path(__file__).resolve().parents[2])

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def run_job(start_job: Any) -> Callable[..., Any]:
    def run(**variables: str) -> Any:
        job = start_job("record.py", env={"PYTHONPATH": ROOT, **variables})
        job.status = job.wait(60)
        return job

    return run


@pytest.fixture(scope="module")
def untouched(run_job: Any) -> Any:
    job = run_job()
    assert job.status == 0, job.output()
    return job


@pytest.fixture(scope="module", params=["hook", "explicit"])
def recorded(run_job: Any, request: Any, tmp_path_factory: Any) -> Any:
    output = tmp_path_factory.mktemp("record") / "deep" / "out"
    explicit = {"EXPLICIT": "1"} if request.param == "explicit" else {}
    job = run_job(OUTPUT=str(output), **explicit)
    assert job.status == 0, job.output()
    job.recording = output
    return job


def test_the_folder_is_a_whole_recording(recorded: Any) -> None:
    names = sorted(path.name for path in recorded.recording.iterdir())
    assert names == [
        *("rank00000.env.json", "rank00000.trace.json.gz"),
        *("rank00001.env.json", "rank00001.trace.json.gz"),
        "recording.json",
    ]
    content = manifest.read(recorded.recording / "recording.json")
    assert [(r.rank, r.route) for r in content.ranks] == [(0, "in-code"), (1, "in-code")]
    assert (content.world_size, content.missing_ranks) == (2, ())
    # 20 steps are passed over, the boundary after them prepares, the next one begins.
    assert content.window == Window(steps=3, clock="step", start=22)
    assert content.observer is not None
    assert content.observer.num_within == 6
    assert not [note for note in content.notes if note.code == "ranks-missing"]


def test_it_holds_the_steps_asked_for(recorded: Any) -> None:
    for rank in range(2):
        path = recorded.recording / f"rank{rank:05d}.trace.json.gz"
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        marks = {e["name"] for e in events if str(e.get("name", "")).startswith("ProfilerStep#")}
        assert len(marks) == 3
        assert any(event.get("cat") == "cpu_op" for event in events)


def test_it_can_be_read(recorded: Any) -> None:
    recording = diagnose.load(recorded.recording)
    assert [source.rank for source in recording.sources] == [0, 1]


def test_the_job_computes_the_same_and_says_nothing(recorded: Any, untouched: Any) -> None:
    for rank in range(2):
        assert recorded.losses(rank) == untouched.losses(rank)
        assert len(recorded.losses(rank)) == 60
    assert "no recording" not in recorded.output()
    assert "Traceback" not in recorded.output()


def test_no_process_is_left(recorded: Any) -> None:
    for rank in range(2):
        assert (recorded.folder / f"children.{rank}").read_text() == ""


def companions(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"diagnose.collect.companion" in path.read_bytes():
                environ = (path.parent / "environ").read_bytes()
                if f"JOB_DIR={folder}".encode() in environ:
                    found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_job_that_is_killed_leaves_no_companion(run_job: Any, tmp_path: Path) -> None:
    job = run_job(OUTPUT=str(tmp_path / "out"), DIE_AT="30")
    assert job.status != 0
    deadline = time.monotonic() + 15
    while companions(job.folder):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not (tmp_path / "out" / "recording.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": True}, "steps=True"),
        ({"skip": -1}, "skip=-1"),
        ({"output": ""}, "output=''"),
        ({"output": None}, "output=None"),
        ({"stacks": 1}, "stacks=1"),
        ({"check_sync": "yes"}, "check_sync='yes'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        diagnose.record(**{"output": "out", **arguments})


def test_a_folder_that_cannot_be_used_is_said_once_and_the_code_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other.txt").touch()
    with caplog.at_level(logging.WARNING, logger="diagnose"):
        with diagnose.record(tmp_path, steps=1) as recorder:
            recorder.step()
            recorder.step(1, loss=2)
        assert recorder.done
    [warning] = caplog.records
    assert "other.txt" in warning.getMessage()
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_too_few_steps_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "out"
    with (
        caplog.at_level(logging.WARNING, logger="diagnose"),
        diagnose.record(folder, steps=3, skip=5, telemetry=False) as recorder,
    ):
        for _ in range(4):
            recorder.step()
    [warning] = caplog.records
    assert "4 steps" in warning.getMessage()
    assert not folder.exists()


def test_a_hook_of_the_optimizer_may_call_it_and_holds_nothing_up(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path / "out"
    begun = time.monotonic()
    with diagnose.record(folder, steps=2, skip=3, telemetry=False) as recorder:
        optimizer.register_step_post_hook(recorder.step)
        for _ in range(10):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert time.monotonic() - begun < 4
    content = manifest.read(folder / "recording.json")
    assert content.num_steps == 2
    assert len(content.ranks[0].step_times.within) == 2


def test_what_the_block_raises_comes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), diagnose.record(tmp_path / "out", telemetry=False):
        raise ZeroDivisionError


def test_import_of_diagnose_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import diagnose, sys; diagnose.record;"
        "print([m for m in ('torch', 'numpy', 'pandas', 'pynvml') if m in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": ROOT}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert said.stdout == "[]\n"


def test_ranks_that_finish_together_all_get_into_the_manifest(tmp_path: Path) -> None:
    job = Manifest(ranks=(), world_size=16, window=Window(steps=3))

    def add(rank: int) -> None:
        companion.enter(tmp_path, RankFiles(rank, f"rank{rank:05d}.trace.json.gz"), job, [])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(15)))
    content = manifest.read(tmp_path / "recording.json")
    assert [rank.rank for rank in content.ranks] == list(range(15))
    assert content.missing_ranks == (15,)
    assert [note.code for note in content.notes] == ["ranks-missing"]
    add(15)
    content = manifest.read(tmp_path / "recording.json")
    assert (content.missing_ranks, content.notes) == ((), ())
    assert [path.name for path in tmp_path.iterdir()] == ["recording.json"]


def test_another_job_or_the_same_rank_again_is_refused(tmp_path: Path) -> None:
    job = Manifest(ranks=(), world_size=4)
    companion.enter(tmp_path, RankFiles(0, "rank00000.trace.json.gz"), job, [])
    with pytest.raises(RecordingError, match="a job of 4 processes"):
        companion.enter(tmp_path, RankFiles(1, "x.json.gz"), Manifest(ranks=(), world_size=2), [])
    with pytest.raises(RecordingError, match="holds a rank 0 already"):
        companion.enter(tmp_path, RankFiles(0, "rank00000.trace.json.gz"), job, [])
