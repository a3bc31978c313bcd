"""Real jobs for the attach tests: small, deterministic, bounded in time, always cleaned up.

``start_job`` starts one of ``jobs/*.py`` with some ranks. Starting two ranks takes about ten
seconds, so one job serves the tests of a module; whatever a test leaves behind is killed when
the module is done.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import pytest

JOBS = Path(__file__).resolve().parent / "jobs"
LAUNCH = Path(__file__).resolve().parents[2] / "diagnose" / "agent" / "launch"
REFERENCE_STEPS = 1500


class JobFailedError(AssertionError):
    """A job ended, or did not come up; the message has its output."""


@dataclass
class Job:
    """A started job. ``folder`` holds what it writes, ``sockets`` is its DIAGNOSE_DIR."""

    folder: Path
    sockets: Path
    ranks: int
    processes: list[subprocess.Popen[bytes]]
    started: float = field(default_factory=time.monotonic)

    @property
    def pids(self) -> list[int]:
        """The pid of each rank, by rank; waits until all of them train."""
        return self.wait_until(self._pids, 60, "all ranks to come up")

    def _pids(self) -> list[int] | None:
        files = [self.folder / f"pid.{rank}" for rank in range(self.ranks)]
        texts = [file.read_text() if file.exists() else "" for file in files]
        return [int(text) for text in texts] if all(texts) else None

    def losses(self, rank: int = 0) -> list[str]:
        """Each step's loss as a hex float, in order; complete lines only."""
        path = self.folder / f"loss.{rank}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
        return [line.split()[1] for line in lines]

    def wait_for_steps(self, steps: int, *, rank: int = 0, timeout_s: float = 60) -> None:
        """Wait until a rank has done so many steps."""
        self.wait_until(lambda: len(self.losses(rank)) >= steps, timeout_s, f"step {steps}")

    def more_steps(self, steps: int, *, timeout_s: float = 30) -> None:
        """Wait until every rank has done so many more steps than now: the job goes on."""
        for rank in range(self.ranks):
            self.wait_for_steps(len(self.losses(rank)) + steps, rank=rank, timeout_s=timeout_s)

    def wait_until(self, ready: Callable[[], object], timeout_s: float, what: str) -> object:
        """Poll until ``ready`` answers something true, which is returned."""
        end = time.monotonic() + timeout_s
        while not (answer := ready()):
            ended = [p.poll() for p in self.processes if p.poll() is not None]
            if ended or time.monotonic() > end:
                state = f"ended with {ended}" if ended else f"not within {timeout_s} s"
                raise JobFailedError(f"waited for {what}: {state}\n{self.output()}")
            time.sleep(0.02)
        return answer

    def output(self, characters: int = 6000) -> str:
        """The end of what the job printed."""
        return (self.folder / "output").read_text(errors="replace")[-characters:]

    def finish(self, timeout_s: float = 40) -> None:
        """Ask the job to end by itself and check that it ended well."""
        (self.folder / "stop").touch()
        assert self.wait(timeout_s) == 0, self.output()

    def wait(self, timeout_s: float = 60) -> int:
        """The exit status of the job: the first of its processes that is not 0."""
        end = time.monotonic() + timeout_s
        codes = [p.wait(max(0.1, end - time.monotonic())) for p in self.processes]
        return next((code for code in codes if code), 0)

    def kill(self) -> None:
        """End the job and every process below it; harmless when it ended already."""
        running = [p for p in self.processes if p.poll() is None]
        for process in running:
            # Workers of torchrun are in sessions of their own: a group is not enough.
            for pid in [*_descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in running:
            process.wait(20)


class StartJob(Protocol):
    """The type of the ``start_job`` fixture."""

    def __call__(
        self,
        script: str = "train.py",
        *,
        ranks: int = 2,
        env: Mapping[str, str | None] | None = None,
        agent: bool = False,
        launcher: str = "plain",
        python: str = sys.executable,
    ) -> Job: ...


@pytest.fixture(scope="module")
def start_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartJob]:
    """Start a job of ``jobs/``: see ``Job``. ``env`` None removes a variable.

    ``launcher`` is ``"plain"`` (one process a rank with torchrun's variables: pids at once, a
    second less to start) or ``"torchrun"``. ``agent`` starts the cooperative agent in it.
    """
    with _running(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def untouched_losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What ``train.py`` with its default model computes when nobody touches it, by rank.

    ``REFERENCE_STEPS`` steps of two ranks; any run must have a prefix of it (or reach beyond).
    """
    with _running(tmp_path_factory) as start:
        job = start("train.py", env={"STEPS": str(REFERENCE_STEPS)})
        assert job.wait(100) == 0, job.output()
        return {rank: job.losses(rank) for rank in range(2)}


class _running:  # noqa: N801 - used like a function
    """Starts jobs, and kills on leaving what still runs."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders = folders
        self.jobs: list[Job] = []

    def __enter__(self) -> StartJob:
        return self.start

    def __exit__(self, *error: object) -> None:
        for job in self.jobs:
            job.kill()

    def start(
        self,
        script: str = "train.py",
        *,
        ranks: int = 2,
        env: Mapping[str, str | None] | None = None,
        agent: bool = False,
        launcher: str = "plain",
        python: str = sys.executable,
    ) -> Job:
        folder = self.folders.mktemp("job")
        sockets = folder / "s"
        sockets.mkdir(mode=0o700)
        own: dict[str, str | None] = {
            "JOB_DIR": str(folder),
            "DIAGNOSE_DIR": str(sockets),
            "OMP_NUM_THREADS": "1",
            "STEPS": "1000000",
            "DIAGNOSE_AGENT": "1" if agent else None,
            "PYTHONPATH": str(LAUNCH) if agent else None,
            **(env or {}),
        }
        variables = {**os.environ, **own}
        environment = {name: value for name, value in variables.items() if value is not None}
        job = Job(folder, sockets, ranks, [])
        self.jobs.append(job)
        with open(folder / "output", "wb") as output:
            if launcher == "torchrun":
                command = [python, "-m", "torch.distributed.run", "--standalone"]
                command += [f"--nproc-per-node={ranks}", str(JOBS / script)]
                job.processes.append(_popen(command, environment, output))
            else:
                port = free_port()
                for rank in range(ranks):
                    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
                    place |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
                    variables = {name: str(value) for name, value in place.items()}
                    variables |= {"MASTER_ADDR": "127.0.0.1", **environment}
                    command = [python, str(JOBS / script)]
                    job.processes.append(_popen(command, variables, output))
        return job


def free_port() -> int:
    """A TCP port of the loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _popen(
    command: list[str], environment: dict[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found
