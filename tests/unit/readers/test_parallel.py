"""Files read side by side in processes of their own."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from diagnose import readers
from diagnose.errors import InputTooLargeError
from diagnose.readers import memory, parallel
from diagnose.readers.inputs import TraceFile
from diagnose.readers.load import Job, Outcome
from tests.builder import TraceBuilder


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    made = []
    for rank in range(3):
        builder = TraceBuilder(rank=rank).step(1, 0, 100).kernel(f"gemm {rank}", 10, 20, launch=5)
        made.append(Job(TraceFile(str(builder.write(tmp_path)))))
    (tmp_path / "rank9.json").write_bytes(b"")
    return [*made, Job(TraceFile(str(tmp_path / "rank9.json")))]


def summary(outcomes: list[Outcome]) -> list[Any]:
    return [
        (
            [(part.source.rank, part.tables["gpu_ops"]["end_ns"].tolist()) for part in each.parts],
            [(error.code, error.message, error.hint) for error in each.errors],
        )
        for each in outcomes
    ]


def test_the_same_comes_out_as_in_this_process(jobs: list[Job]) -> None:
    alone = parallel.load_all(jobs, 1)
    assert [len(outcome.parts) for outcome in alone] == [1, 1, 1, 0]
    assert [len(outcome.errors) for outcome in alone] == [0, 0, 0, 1]
    assert summary(parallel.load_all(jobs, 2)) == summary(alone)


def test_progress_arrives_in_the_calling_thread(tmp_path: Path, jobs: list[Job]) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(Path(jobs[0].trace.path).read_bytes() + b" " * (3 << 20))
    threads = set()
    seen: list[int] = []

    def progress(num_bytes: int) -> None:
        threads.add(threading.current_thread())
        seen.append(num_bytes)

    parallel.load_all([Job(TraceFile(str(path))), jobs[1]], 2, progress)
    assert sum(seen) == path.stat().st_size + Path(jobs[1].trace.path).stat().st_size
    assert threads == {threading.current_thread()}


def start(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_START", textwrap.dedent(program))


def test_a_child_that_cannot_start_costs_only_time(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = summary(parallel.load_all(jobs, 1))
    start("raise SystemExit(3)", monkeypatch)
    assert summary(parallel.load_all(jobs, 2)) == expected


def test_a_child_that_answers_nonsense_costs_only_time(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = summary(parallel.load_all(jobs, 1))
    start("print('Hello!', flush=True)", monkeypatch)
    assert summary(parallel.load_all(jobs, 2)) == expected


def test_a_child_that_dies_at_work_costs_only_time(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = summary(parallel.load_all(jobs, 1))
    dies = """
        import os, pickle, sys
        sys.path[:] = pickle.load(sys.stdin.buffer)
        from diagnose.readers import parallel
        working = parallel.load
        def load(job, progress=None):
            if "rank00001" in job.trace.path:
                os._exit(5)
            return working(job, progress)
        parallel.load = load
        parallel.serve()
    """
    start(dies, monkeypatch)
    assert summary(parallel.load_all(jobs, 2)) == expected


def test_a_child_that_was_killed_is_not_followed_into_death(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = """
        import os, pickle, sys
        sys.path[:] = pickle.load(sys.stdin.buffer)
        from diagnose.readers import parallel
        working = parallel.load
        def load(job, progress=None):
            if "rank00001" in job.trace.path:
                os.kill(os.getpid(), 9)
            return working(job, progress)
        parallel.load = load
        parallel.serve()
    """
    start(killed, monkeypatch)
    outcomes = parallel.load_all(jobs, 2)
    assert [len(outcome.parts) for outcome in outcomes] == [1, 0, 1, 0]
    (error,) = outcomes[1].errors
    assert isinstance(error, InputTooLargeError)
    assert "was killed" in error.message
    assert "--only gpu" in error.hint


def test_what_a_child_prints_does_not_reach_the_answers(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    chatty = """
        import os, pickle, sys
        sys.path[:] = pickle.load(sys.stdin.buffer)
        from diagnose.readers import parallel
        working = parallel.load
        def load(job, progress=None):
            os.write(1, b"chatter")
            print("more", flush=True)
            if "rank00001" in job.trace.path:
                job = None
            return working(job, progress)
        parallel.load = load
        parallel.serve()
    """
    expected = summary(parallel.load_all(jobs, 1))
    start(chatty, monkeypatch)
    assert summary(parallel.load_all(jobs, 2)) == expected


def test_an_interruption_leaves_no_child_behind(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    start("import time; time.sleep(600)", monkeypatch)
    pools: list[Any] = []
    original = parallel._Pool.__init__

    def remember(self: Any, *args: Any) -> None:
        original(self, *args)
        pools.append(self)
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel._Pool, "__init__", remember)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel.load_all(jobs, 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [child.poll() is not None for child in pools[0].children] == [True, True]


def test_a_script_without_a_main_guard_runs_once(jobs: list[Job], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from diagnose import readers\n"
        "from diagnose.readers import parallel\n"
        "parallel.MIN_TEXT_BYTES = 0\n"
        "parallel._num_cpus = lambda: 2\n"
        "print('ran', len(readers.read(sys.argv[1:]).sources))\n"
    )
    paths = [job.trace.path for job in jobs[:3]]
    environment = {**os.environ, "PYTHONPATH": str(Path(readers.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(script), *paths],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "ran 3\n"


def test_processes_are_used_only_where_they_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_num_cpus", lambda: 4)
    paths = []
    for name, size in (("a.json", 70 << 20), ("b.json", 70 << 20), ("c.json.gz", 6 << 20)):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(size)
        paths.append(str(path))
    assert parallel.num_workers(paths) == 3
    assert parallel.num_workers(paths[:2]) == 2
    assert parallel.num_workers(paths[:1]) == 1
    assert parallel.num_workers([paths[0], str(tmp_path / "none")]) == 1
    assert parallel.num_workers([paths[0], paths[2]]) == 2
    monkeypatch.setattr(parallel, "_num_cpus", lambda: 1)
    assert parallel.num_workers(paths) == 1


def test_jobs_and_outcomes_can_be_pickled(jobs: list[Job]) -> None:
    outcomes = parallel.load_all(jobs, 1)
    assert summary(pickle.loads(pickle.dumps(outcomes))) == summary(outcomes)


# ---- how much memory there is ----


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machine_and_the_container_limit_memory(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert memory.default_limit_bytes(root) is None
    write(tmp_path, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert memory.default_limit_bytes(root) == 4_096_000
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "900000\n")
    assert memory.default_limit_bytes(root) == 4_096_000
    write(tmp_path, "sys/fs/cgroup/memory.max", "1000000\n")
    assert memory.default_limit_bytes(root) == 80_000
    write(tmp_path, "sys/fs/cgroup/memory.stat", "anon 100\ninactive_file 400000\n")
    assert memory.default_limit_bytes(root) == 400_000


def test_the_older_control_groups(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "1000")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "2000")
    assert memory.default_limit_bytes(str(tmp_path)) == 0
    write(tmp_path, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1500")
    assert memory.default_limit_bytes(str(tmp_path)) == 400


def test_this_machine_has_memory() -> None:
    limit = memory.default_limit_bytes()
    assert limit is None or limit > 1 << 20
