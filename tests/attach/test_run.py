"""``diagnose run`` around real jobs: windows when they are due, and a job that does not notice."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).resolve().parent / "jobs"
DIAGNOSE = [sys.executable, "-m", "diagnose"]
SLOW_AT = 700


class Started:
    """A ``diagnose run`` with its own folder, killed with all of its job at the end."""

    def __init__(self, folder: Path, arguments: list[str], **variables: str) -> None:
        self.folder = folder
        folder.mkdir()
        sockets = folder / "s"
        sockets.mkdir(mode=0o700)
        self.output = folder / "output"
        environ = {
            **os.environ,
            "JOB_DIR": str(folder),
            "DIAGNOSE_DIR": str(sockets),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [*DIAGNOSE, "run", *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 60) -> int:
        return self.process.wait(timeout_s)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def until(self, ready: Callable[[], object], timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Started]]:
    runs: list[Started] = []

    def start(*arguments: str, **variables: str) -> Started:
        folder = tmp_path_factory.mktemp("run") / "r"
        runs.append(Started(folder, list(arguments), **variables))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


@pytest.fixture(scope="module")
def recorded(started: Callable[..., Started], tmp_path_factory: Any) -> Started:
    """A torchrun job of two ranks that becomes slow, with a window on schedule and one for that."""
    pytest.importorskip("torch")
    windows = tmp_path_factory.mktemp("windows") / "out"
    run = started(
        *("--at-step", "500", "--on-slow", "100%", "--keep", "5", "-o", str(windows), "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        str(JOBS / "train.py"),
        STEPS="800",
        SLEEP="0.01",
        SLOW_AT=str(SLOW_AT),
        SLOW_SLEEP="0.06",
    )
    run.windows = windows
    assert run.wait(100) == 0, run.text()
    return run


def manifests(run: Any) -> list[dict[str, Any]]:
    return [
        json.loads((path / "recording.json").read_text())
        for path in sorted(run.windows.glob("window*"))
    ]


def test_windows_are_recorded_when_they_are_due(recorded: Any) -> None:
    scheduled, slow = manifests(recorded)
    assert scheduled["window"]["clock"] == "step"
    assert (scheduled["window"]["start"], scheduled["window"]["steps"]) == (500, 3)
    assert [rank["rank"] for rank in scheduled["ranks"]] == [0, 1]
    assert {rank["route"] for rank in scheduled["ranks"]} == {"cooperative"}
    assert [rank["rank"] for rank in slow["ranks"]] == [0, 1]
    # The step sleeps 60 ms from then on, 10 ms before.
    assert slow["observer"]["within_ns"] > 60_000_000 > scheduled["observer"]["within_ns"]
    assert "% more than the usual" in recorded.text()


def test_the_windows_can_be_read(recorded: Any) -> None:
    import diagnose

    for folder in sorted(recorded.windows.glob("window*")):
        recording = diagnose.load(folder)
        assert [source.rank for source in recording.sources] == [0, 1]


def test_step_times_are_always_written(recorded: Any) -> None:
    with open(recorded.windows / "steps.csv") as file:
        rows = list(csv.DictReader(file))
    steps = {rank: [int(r["step"]) for r in rows if r["rank"] == str(rank)] for rank in range(2)}
    assert steps[0] == list(range(steps[0][0], steps[0][-1] + 1))
    assert len(steps[0]) > 600
    slow = [
        int(r["interval_ns"]) for r in rows if int(r["step"]) > SLOW_AT + 2 and r["interval_ns"]
    ]
    assert min(slow) > 59_000_000


def test_the_job_computes_the_same(recorded: Any, untouched_losses: Any) -> None:
    for rank in range(2):
        lines = (recorded.folder / f"loss.{rank}").read_text().splitlines()
        assert [line.split()[1] for line in lines] == untouched_losses[rank][:800]


def test_nothing_is_left_behind(recorded: Any) -> None:
    assert list((recorded.folder / "s").iterdir()) == []
    assert not list(recorded.windows.rglob("*.part"))


def test_values_of_a_variable_are_tried_and_ranked(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "trials"
    run = started(
        *("--try", "OMP_NUM_THREADS=1,2", "--steps", "2", "-o", str(output), "--"),
        *(sys.executable, str(JOBS / "tuned.py")),
    )
    assert run.wait(100) == 0, run.text()
    # The job sleeps 10 ms a step for each thread it is given.
    title, _, first, second, *_ = run.text()[run.text().index("OMP_NUM_THREADS: step") :].split(
        "\n"
    )
    assert title.startswith("OMP_NUM_THREADS: step time by value")
    assert (first.split()[0], second.split()[0]) == ("1", "2")
    assert first.endswith("fastest")
    assert 10 < float(first.split()[1]) < 18 < float(second.split()[1]) < 35
    for value in "12":
        [window] = (output / value).glob("window*")
        assert (window / "recording.json").is_file()


# What follows needs no torch: the job is a script.


def script(text: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", text)


def test_the_exit_status_is_the_jobs(started: Callable[..., Started]) -> None:
    assert started(*script("import sys; sys.exit(7)")).wait() == 7


def test_a_job_that_dies_of_a_signal_says_so_as_a_shell_does(
    started: Callable[..., Started],
) -> None:
    run = started(*script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert run.wait() == 128 + signal.SIGKILL


def test_a_command_that_does_not_exist_is_a_usage_error(started: Callable[..., Started]) -> None:
    run = started("--", "no-such-command-here")
    assert run.wait() == 2
    assert "no-such-command-here cannot be started: No such file or directory" in run.text()


def test_the_output_is_the_jobs_alone(started: Callable[..., Started]) -> None:
    run = started(*script("print('hello')"))
    assert run.wait() == 0
    assert run.text() == "hello\n"


COUNTS = """
import signal, sys, time
got = []
for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"):
    signal.signal(getattr(signal, name), lambda number, _: got.append(number))
print("ready", flush=True)
end = time.monotonic() + 20
while len(got) < 4 and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)
print(sorted(got), flush=True)
sys.exit(3)
"""


def test_signals_reach_the_job_once_and_do_not_end_us(started: Callable[..., Started]) -> None:
    run = started(*script(COUNTS))
    run.until(lambda: "ready" in run.text())
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]
    for number in numbers:
        run.process.send_signal(number)
        time.sleep(0.1)
    assert run.wait() == 3
    assert run.text().splitlines()[-1] == str(sorted(map(int, numbers)))


class Terminal:
    """A ``diagnose run`` on a terminal of its own, as a shell would start it."""

    def __init__(self, code: str) -> None:
        pid, self.master = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [*DIAGNOSE, "run", "--", sys.executable, "-c", code])
        self.pid = pid
        self.seen = b""

    def until(self, text: bytes, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        os.set_blocking(self.master, False)
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            with suppress(BlockingIOError, OSError):
                self.seen += os.read(self.master, 65536)
            time.sleep(0.01)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def end(self) -> int:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.master)
                return os.waitstatus_to_exitcode(status)
            with suppress(BlockingIOError, OSError):
                self.seen += os.read(self.master, 65536)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(self.seen)


def test_ctrl_c_reaches_the_job_once() -> None:
    terminal = Terminal(
        "import signal, time\n"
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.3); print('got', len(got), flush=True); raise SystemExit(9)\n"
    )
    terminal.until(b"ready")
    terminal.type(b"\x03")
    terminal.until(b"got 1")
    assert terminal.end() == 9


def test_the_job_may_read_from_the_terminal() -> None:
    terminal = Terminal("print('said', input('ready? '), flush=True)")
    terminal.until(b"ready? ")
    terminal.type(b"yes\n")
    terminal.until(b"said yes")
    assert terminal.end() == 0


def test_ctrl_z_stops_both_and_both_go_on() -> None:
    # A shell of its own would stop and continue us; here the test is the shell.
    terminal = Terminal(
        "import time\n"
        "print('ready', flush=True)\n"
        "for n in range(400): time.sleep(0.01)\n"
        "print('done', flush=True)\n"
    )
    terminal.until(b"ready")
    os.kill(terminal.pid, signal.SIGCONT)
    [child] = (
        int(pid)
        for pid in Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children").read_text().split()
    )
    os.kill(child, signal.SIGTSTP)
    deadline = time.monotonic() + 10
    while state(terminal.pid) != "T" or state(child) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until(b"done")
    assert terminal.end() == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_folder_that_is_not_empty_is_refused_before_the_job_starts(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    (tmp_path / "other").touch()
    run = started("--every", "5", "-o", str(tmp_path), *script("print('started')"))
    assert run.wait() == 2
    assert "not empty" in run.text()
    assert "started" not in run.text()


def test_what_is_asked_for_wrongly_is_refused(started: Callable[..., Started]) -> None:
    for arguments, message in (
        (["--on-slow", "x"], "is no percentage"),
        (["--max-disk", "2 potatoes"], "is no size"),
        (["--try", "LD_PRELOAD=a,b"], "variables that tune NCCL"),
        (["--try", "NCCL_ALGO=Ring"], "at least two values"),
        (["--try", "NCCL_ALGO=Ring,Tree", "--every", "5"], "a window of its own"),
        (["--shared-folder", "x"], "serves --all-hosts"),
        (["--check-sync"], "says what windows hold"),
        (["--check-sync", "--try", "A=1,2"], "says what windows hold"),
    ):
        run = started(*arguments, *script("print('started')"))
        assert run.wait() == 2, arguments
        assert message in run.text()
        assert "started\n" not in run.text()
