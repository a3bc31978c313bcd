"""``diagnose attach`` on a job that was started with nothing prepared, as a person uses it.

One job of two ranks serves all tests here; the last one checks that it computed, bit by
bit, what an untouched run computes.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose import manifest
from diagnose.attach.injection import refusals

torch = pytest.importorskip("torch")

STEP_S = 0.03
WHOLE = ["rank00000.env.json", "rank00000.trace.json.gz"]
WHOLE += ["rank00001.env.json", "rank00001.trace.json.gz", "recording.json"]


@pytest.fixture(scope="module")
def job(start_job: Any) -> Iterator[Any]:
    job = start_job("train.py", env={"SLEEP": str(STEP_S), "LIFETIME": "170"})
    refusal = refusals.explain(job.pids[0])
    if refusal is not None and os.environ.get("CI") != "true":
        pytest.skip(f"a process cannot be entered here: {refusal.message}")
    job.wait_for_steps(20)
    return job


def command(job: Any, folder: Path, *options: str) -> list[str]:
    pids = [str(pid) for pid in job.pids]
    return [sys.executable, "-m", "diagnose", "attach", *pids, "-o", str(folder), *options]


def attach(job: Any, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(job, folder, *options), capture_output=True, text=True, timeout=60, check=False
    )


def begin(job: Any, folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(job, folder, "--no-report", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read what it says on stderr until a line has these words."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"it never said {words!r}: {said}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def trace(folder: Path, rank: int) -> dict[str, Any]:
    with gzip.open(folder / f"rank{rank:05d}.trace.json.gz") as file:
        content: dict[str, Any] = json.load(file)
    return content


def threads(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted((task / "comm").read_text().strip() for task in tasks)


def num_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def agents_gone(job: Any) -> bool:
    return not list(job.sockets.iterdir())


def test_five_windows_of_a_job_that_nobody_prepared(job: Any, tmp_path: Path) -> None:
    files_before = [num_files(pid) for pid in job.pids]
    threads_before = [len(threads(pid)) for pid in job.pids]
    for number in range(5):
        folder = tmp_path / f"window{number}"
        done = attach(job, folder, "--no-report")
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert names(folder) == WHOLE
        check_window(job, folder)
        job.wait_until(lambda: agents_gone(job), 5, "the agents to leave")
    job.more_steps(5)
    assert [num_files(pid) for pid in job.pids] == files_before
    # The one more is libkineto's own thread, which never ends.
    after = [len(threads(pid)) for pid in job.pids]
    assert all(0 <= now - then <= 1 for now, then in zip(after, threads_before, strict=True))


def check_window(job: Any, folder: Path) -> None:
    said = manifest.read(folder / "recording.json")
    assert (said.world_size, said.num_steps, said.missing_ranks) == (2, 3, ())
    assert [rank.pid for rank in said.ranks] == job.pids
    assert {rank.route for rank in said.ranks} == {"injected"}
    assert said.tool_version == diagnose.__version__
    assert said.window is not None
    assert said.window.clock == "seq"
    # The steps sleep 30 ms each; the window has 3 of them on 2 ranks.
    assert said.observer is not None
    assert said.observer.num_within == 6
    for time_ns in (said.observer.before_ns, said.observer.within_ns, said.observer.after_ns):
        assert time_ns is not None
        assert 0.03e9 < time_ns < 1e9
    contents = [trace(folder, rank) for rank in range(2)]
    numbers = [[mark[1] for mark in content["diagnose_marks"]] for content in contents]
    assert numbers[0] == numbers[1]
    assert numbers[0][0] == said.window.start
    assert len(numbers[0]) == 4
    for rank, content in enumerate(contents):
        assert content["distributedInfo"]["rank"] == rank
        assert content["distributedInfo"]["world_size"] == 2
        events = content["traceEvents"]
        marks = [e for e in events if str(e.get("name")).startswith("ProfilerStep#")]
        assert len([e for e in marks if e.get("ph") == "X"]) == 3
        main_thread = {e["tid"] for e in marks}
        ops = [e for e in events if e.get("cat") == "cpu_op" and e["tid"] in main_thread]
        assert len(ops) > 100
    recording = diagnose.load(folder)
    assert [source.rank for source in recording.sources] == [0, 1]
    assert [source.world_size for source in recording.sources] == [2, 2]
    assert len(recording.trace.steps) == 6
    assert recording.trace.observer is not None
    environment = recording.sources[1].environment
    assert (environment["rank"], environment["torch"]) == (1, torch.__version__)


def test_an_injected_agent_knows_the_check_of_synchronisation(job: Any, tmp_path: Path) -> None:
    done = attach(job, tmp_path / "out", "--check-sync", "--no-report")
    assert done.returncode == 0, done.stderr
    beside = [f"rank{rank:05d}.execution_trace.json.gz" for rank in range(2)]
    assert names(tmp_path / "out") == sorted(WHOLE + beside)
    check_window(job, tmp_path / "out")
    job.wait_until(lambda: agents_gone(job), 5, "the agents to leave")
    accesses = diagnose.load(tmp_path / "out").trace.accesses
    assert set(accesses["source"].tolist()) == {0, 1}


def test_the_report_begins_with_what_recording_cost(job: Any, tmp_path: Path) -> None:
    done = attach(job, tmp_path / "out", "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    assert "ranks 0-1 of 2" in done.stdout
    # Which of the three depends on how busy the machine is; each says all three step times.
    head = " ".join(" ".join(done.stdout.splitlines()[:6]).split())
    told = re.search(
        r"(The window|Steps in the window|What recording cost) .*: (steps took )?"
        r"[\d.,]+ ms before, [\d.,]+ in it \(on the host\), [\d.,]+ after",
        head,
    )
    assert told, done.stdout
    said = manifest.read(tmp_path / "out" / "recording.json")
    assert said.window is not None
    assert said.window.seconds == 0.2
    assert said.num_steps is not None
    assert 1 <= said.num_steps <= 7  # of 30 ms and more


def test_without_a_driver_the_recording_says_that_there_is_no_telemetry(
    job: Any, tmp_path: Path
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver here")
    assert attach(job, tmp_path / "out", "--no-report").returncode == 0
    notes = {note.code: note for note in manifest.read(tmp_path / "out" / "recording.json").notes}
    assert notes["telemetry-missing"].severity == "info"
    assert diagnose.load(tmp_path / "out").notes[0].code == "telemetry-missing"


def test_a_folder_with_something_in_it_is_left_alone(job: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = attach(job, tmp_path)
    assert done.returncode == 2
    assert f"error: {tmp_path}: not empty" in done.stderr
    assert names(tmp_path) == ["mine"]
    assert agents_gone(job)


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_asked(
    job: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = attach(job, tmp_path / "file" / "out")
    assert done.returncode == 2
    assert "cannot be used for the recording" in done.stderr
    assert "hint: give --output a folder" in done.stderr
    assert "entering" not in done.stderr


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("looking for", signal.SIGINT),
        ("entering rank 1", signal.SIGTERM),
        ("waiting for a step", signal.SIGINT),
        ("recording 200 steps", signal.SIGHUP),
        ("recording 200 steps", signal.SIGINT),
    ],
)
def test_stopping_at_any_moment_leaves_the_job_and_the_disk_as_they_were(
    job: Any, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    process = begin(job, tmp_path / "out", "--steps", "200")
    read_until(process, moment)
    if moment.startswith("recording"):
        time.sleep(1.2)  # into the window
    process.send_signal(number)
    _, said = process.communicate(timeout=15)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    job.wait_until(lambda: agents_gone(job), 5, "the agents to leave")
    job.more_steps(3)


def test_what_is_whole_is_kept_when_it_is_stopped_late(job: Any, tmp_path: Path) -> None:
    process = begin(job, tmp_path / "out")
    read_until(process, "watching the steps after")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "2 whole traces are kept" in said
    files = ["rank00000.trace.json", "rank00001.trace.json", "recording.json"]
    assert names(tmp_path / "out") == files
    content = manifest.read(tmp_path / "out" / "recording.json")
    assert [rank.pid for rank in content.ranks] == job.pids
    assert content.notes[-1].code == "recording-stopped"
    assert [source.rank for source in diagnose.load(tmp_path / "out").sources] == [0, 1]


def test_a_recorder_that_is_killed_in_the_window_leaves_a_working_job(
    job: Any, tmp_path: Path
) -> None:
    process = begin(job, tmp_path / "out", "--steps", "200")
    read_until(process, "recording 200 steps")
    time.sleep(1.0)
    process.kill()
    process.communicate(timeout=15)
    job.more_steps(5)
    # The agents ended their windows, and took away what they had begun to write.
    job.wait_until(
        lambda: not list((tmp_path / "out").glob("*.trace*")), 5, "the agents to clear up"
    )
    # They would leave 60 s later; a recorder that comes earlier finds them at its service.
    assert attach(job, tmp_path / "next", "--no-report").returncode == 0
    assert names(tmp_path / "next") == WHOLE
    job.wait_until(lambda: agents_gone(job), 5, "the agents to leave")


def test_a_stopped_rank_is_named_in_time_and_the_job_goes_on_after_it(
    job: Any, tmp_path: Path
) -> None:
    stopped = job.pids[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = attach(job, tmp_path / "out", "--timeout", "2")
        took = time.monotonic() - began
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert done.returncode == 2
    assert f"process {stopped} is stopped" in done.stderr
    assert f"hint: let it go on with `kill -CONT {stopped}`" in done.stderr
    assert took < 20
    assert not (tmp_path / "out").exists()
    job.more_steps(5)
    assert attach(job, tmp_path / "again", "--no-report").returncode == 0


def test_a_rank_that_stops_inside_the_window_ends_it_in_time(job: Any, tmp_path: Path) -> None:
    stopped = job.pids[1]
    process = begin(job, tmp_path / "out", "--steps", "40", "--timeout", "1")
    read_until(process, "recording 40 steps")
    time.sleep(0.9)
    os.kill(stopped, signal.SIGSTOP)
    try:
        _, said = process.communicate(timeout=45)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert process.returncode == 2, said
    assert f"rank 1 (pid {stopped}): the process is stopped" in said
    assert not (tmp_path / "out").exists()
    job.more_steps(5)


def test_the_job_computed_what_an_untouched_run_computes(
    job: Any, untouched_losses: dict[int, list[str]]
) -> None:
    job.finish()
    for rank in range(2):
        losses, expected = job.losses(rank), untouched_losses[rank]
        length = min(len(losses), len(expected))
        assert length > 200
        assert losses[:length] == expected[:length]
