"""The injector on real processes that run plain Python: nothing is left, nobody is harmed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from diagnose.attach.channel import Channel
from diagnose.attach.discovery.processes import Process
from diagnose.attach.injection import _boot, payload, refusals, symbols
from diagnose.attach.injection.inject import PAGE, Injection, failure, inject
from diagnose.attach.injection.ptrace import TracedThread
from diagnose.errors import (
    AttachTimeoutError,
    NotPythonError,
    ProcessGoneError,
    PtraceRefusedError,
    StuckError,
    TorchMissingError,
)

JOBS = Path(__file__).resolve().parent / "jobs"
ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 20

# Counts up, then gives back the memory it runs from, once the thread in it has ended.
MARK = """
def mark():
    import _thread, ctypes, os, signal, sys, threading, time

    def give_back(page, thread):
        while os.path.exists("/proc/self/task/%d" % thread):
            time.sleep(0.001)
        ctypes.CDLL(None).munmap(ctypes.c_void_p(page[0]), ctypes.c_size_t(page[1]))

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD} <= blocked
    assert not {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, 32, 33} & blocked
    sys.marks_of_the_test = getattr(sys, "marks_of_the_test", 0) + 1
    _thread.start_new_thread(give_back, (PAGE, threading.get_native_id()))

mark()
"""


def mark_text() -> str:
    return payload.wrapped(MARK, {"PAGE": PAGE})


@pytest.fixture(autouse=True, scope="module")
def _ptrace_allowed() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        TracedThread.seize(process.pid, process.pid).release()
    except PtraceRefusedError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must allow ptrace: {error}")
        pytest.skip(f"this system does not allow ptrace ({error})")
    finally:
        process.kill()
        process.wait()


def _interpreters() -> dict[str, str]:
    """One CPython of each version and kind of file: search path, pyenv, and this one."""
    folders = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    with suppress(OSError):
        folders += [version / "bin" for version in sorted((pyenv / "versions").iterdir())]
    names = [f"python3.{minor}" for minor in range(9, 15)]
    found: dict[str, str] = {}
    for path in [Path(sys.executable), *(folder / name for folder in folders for name in names)]:
        try:
            with open(path, "rb") as file:
                head = file.read(20)
        except OSError:
            continue
        if head[:4] != b"\x7fELF":
            continue  # a script that starts another
        ask = "import sys; print('%d.%d' % sys.version_info[:2], hasattr(sys, 'abiflags'))"
        asked = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=20)
        if asked.returncode == 0:
            kind = "fixed" if head[16] == 2 else "movable"
            found.setdefault(f"{asked.stdout.split()[0]}-{kind}", str(path))
    return found


INTERPRETERS = _interpreters()


@dataclass
class Spinning:
    """A running ``spin.py``, or another of that kind."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self) -> dict[str, object]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0
        result: dict[str, object] = json.loads((self.folder / "result.json").read_text())
        return result


@contextmanager
def spinning(
    folder: Path, python: str = sys.executable, *, threads: int = 3, period_s: float = 0.1
) -> Iterator[Spinning]:
    # Long enough for threads to have rested, short enough to wake one that is away.
    command = [python, str(JOBS / "spin.py"), str(folder), str(threads), str(period_s)]
    with running(folder, command) as job:
        yield job


@contextmanager
def running(folder: Path, command: list[str]) -> Iterator[Spinning]:
    folder.mkdir(mode=0o700)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DIAGNOSE_DIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Spinning(process, folder)
    finally:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait(20)


def until(ready: Callable[[], object], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def names_in(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def belongings(pid: int) -> tuple[list[str], list[str]]:
    return names_in(f"/proc/{pid}/task"), names_in(f"/proc/{pid}/fd")


def blocked_signals(pid: int) -> set[str]:
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return {line for text in texts for line in text.splitlines() if line.startswith("SigBlk")}


def is_left(pid: int) -> bool:
    """Whether all memory that threads were started from has been given back."""
    return not any(r.permissions == "r-xp" and not r.path for r in Process(pid).maps())


def enter(pid: int) -> Injection:
    """Inject, and wait until what was injected is through and has given back its memory."""
    injection = inject(pid, mark_text())
    page = injection.page[0]
    until(lambda: not any(r.start <= page < r.end for r in Process(pid).maps()))
    return injection


@pytest.mark.parametrize("version", INTERPRETERS)
def test_leaves_nothing_behind(version: str, tmp_path: Path) -> None:
    with spinning(tmp_path / "job", INTERPRETERS[version]) as job:
        found = symbols.supported_interpreter(Process(job.pid))
        assert found.version == tuple(map(int, version.split("-")[0].split(".")))
        before = belongings(job.pid)
        for _ in range(ROUNDS):
            assert enter(job.pid).thread != job.pid
        until(lambda: belongings(job.pid) == before)
        assert is_left(job.pid)
        assert blocked_signals(job.pid) == {"SigBlk:\t0000000000000000"}
        result = job.finish()
    assert result["marks"] == ROUNDS
    assert result["names"] == []
    assert result["threads"] == ["MainThread"]
    assert result["counts"] == [result["rounds"]] * 3


@pytest.mark.parametrize("version", INTERPRETERS)
def test_agent_comes_up_and_leaves(version: str, tmp_path: Path) -> None:
    with spinning(tmp_path / "job", INTERPRETERS[version]) as job:
        before = belongings(job.pid)
        inject(job.pid, payload.bootstrap())
        channel = Channel.connect(Process(job.pid), 10)
        try:
            status = channel.ask("status")
            assert (status["pid"], status["injected"]) == (job.pid, True)
            until(lambda: is_left(job.pid))
            channel.ask("detach")
        finally:
            channel.close()
        until(lambda: belongings(job.pid) == before)
        assert names_in(tmp_path / "job") == []
        result = job.finish()
    assert (result["names"], result["modules"]) == ([], [])


def test_word_of_a_failure(tmp_path: Path) -> None:
    boot = Path(_boot.__file__).read_text()
    texts = {"": "", "server": "raise ValueError('no room')"}
    program = f"{boot}\nboot({texts!r}, ['', 'server'], PAGE, None)"
    with spinning(tmp_path / "job") as job:
        injection = inject(job.pid, payload.wrapped(program, {"PAGE": PAGE}))
        until(lambda: failure(job.pid, injection))
        assert failure(job.pid, injection) == "ValueError: no room"
        page = injection.page
        assert failure(job.pid, Injection(0, 0, (page[0], page[1] - 512))) == ""
        assert failure(job.pid, Injection(0, 0, (0, 4096))) == ""
        assert job.finish()["modules"] == []


def test_killed_at_every_step(tmp_path: Path) -> None:
    """Whatever call the injector dies before, the borrowed thread comes back and answers."""
    (tmp_path / "text").write_text(mark_text())
    with spinning(tmp_path / "job") as job:
        arguments = [str(JOBS / "dying_injector.py"), str(job.pid), str(tmp_path / "text")]
        died = int(run_python(arguments))
        enter(job.pid)
        result = job.finish()
    # Two calls of at least one system call each, before and after which it stops.
    assert died > 20
    assert result["counts"] == [result["rounds"]] * 3
    # The last ones, and those killed when the thread was made already.
    assert 1 <= int(str(result["marks"])) < died
    assert result["names"] == []


@pytest.mark.skipif("avx" not in Path("/proc/cpuinfo").read_text(), reason="the job needs AVX")
def test_registers_of_the_borrowed_thread(tmp_path: Path) -> None:
    """Killed at every step or not: no register differs, and the wait ends as it would have."""
    (tmp_path / "text").write_text(mark_text())
    folder = tmp_path / "job"
    with running(folder, [sys.executable, str(JOBS / "registers.py"), str(folder)]) as job:
        arguments = [str(JOBS / "dying_injector.py"), str(job.pid), str(tmp_path / "text")]
        assert int(run_python(arguments)) > 20
        for _ in range(5):
            enter(job.pid)
        result = job.finish()
    assert (result["differences"], result["results"]) == ([], [])
    assert int(str(result["rounds"])) > 5
    assert int(str(result["marks"])) >= 5


def test_control_c_on_the_way(tmp_path: Path) -> None:
    """The interrupt is raised, but only when the thread is back where it was."""
    script = (
        "import os, signal, sys\n"
        "from diagnose.attach.injection import inject, ptrace\n"
        "wait = ptrace.TracedThread.wait\n"
        "def interrupted(*arguments):\n"
        "    ptrace.TracedThread.wait = wait\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return wait(*arguments)\n"
        "ptrace.TracedThread.wait = interrupted\n"
        "try:\n"
        "    inject.inject(int(sys.argv[1]), open(sys.argv[2]).read())\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    (tmp_path / "text").write_text(mark_text())
    with spinning(tmp_path / "job") as job:
        said = run_python(["-c", script, str(job.pid), str(tmp_path / "text")])
        until(lambda: is_left(job.pid))
        result = job.finish()
    assert said == "interrupted"
    assert result["marks"] == 1
    assert result["counts"] == [result["rounds"]] * 3


def test_while_the_process_ends() -> None:
    """From the last of its own code, through finalization, to long after it: nobody may enter."""
    code = (
        "import atexit, ctypes, threading, time\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "libc = ctypes.CDLL(None)\n"
        "pause = ctypes.cast(libc.usleep, ctypes.c_void_p)\n"
        "libc.__cxa_atexit(pause, ctypes.c_void_p(300_000), None)\n"
        "atexit.register(time.sleep, 0.1)\n"
        "print('ready', flush=True)\n"
    )
    for _ in range(3):
        assert storm(code) == 0


def test_while_modules_are_imported() -> None:
    code = (
        "import threading, time\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "import asyncio, ctypes.util, email.message, http.client, multiprocessing.pool, sqlite3\n"
        "import tkinter.constants, unittest.mock, urllib.request, xml.dom.minidom, zipfile\n"
        "from concurrent import futures\n"
        "assert sum(futures.ThreadPoolExecutor(3).map(abs, range(-100, 0))) == 5050\n"
    )
    assert storm(code) == 0


def storm(code: str) -> int:
    """Inject into a short-lived process as often as it can be done; its exit status."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    done = 0
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while process.poll() is None:
            with suppress(ProcessGoneError, AttachTimeoutError, NotPythonError, PtraceRefusedError):
                inject(process.pid, mark_text(), timeout_s=0.1)
                done += 1
        assert done, "not one injection was tried in time"
        return process.wait(20)
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def test_a_program_that_is_not_python() -> None:
    with sleeping() as pid, pytest.raises(NotPythonError, match="no CPython found"):
        inject(pid, mark_text())


def test_a_process_that_is_gone() -> None:
    with sleeping() as pid:
        pass
    with pytest.raises(ProcessGoneError, match=f"process {pid}"):
        inject(pid, mark_text())


def test_a_process_without_a_thread_at_rest(tmp_path: Path) -> None:
    with spinning(tmp_path / "job", threads=0) as job:
        with pytest.raises(AttachTimeoutError, match="none of its 1 threads"):
            inject(job.pid, mark_text(), timeout_s=0.2)
        assert job.finish()["marks"] == 0


def test_a_process_whose_threads_never_rest_for_long(tmp_path: Path) -> None:
    with spinning(tmp_path / "job", period_s=0.004) as job:
        for _ in range(5):
            enter(job.pid)
        result = job.finish()
    assert result["marks"] == 5
    assert result["counts"] == [result["rounds"]] * 3


def test_a_process_without_torch(tmp_path: Path) -> None:
    with spinning(tmp_path / "job") as job:
        assert isinstance(refusals.explain(job.pid), TorchMissingError)
        assert refusals.explain(job.pid, torch=False) is None


def test_a_stopped_process(tmp_path: Path) -> None:
    with spinning(tmp_path / "job") as job:
        os.kill(job.pid, signal.SIGSTOP)
        until(lambda: Process(job.pid).state == "T")
        with pytest.raises(StuckError) as caught:
            inject(job.pid, mark_text())
        assert f"kill -CONT {job.pid}" in caught.value.hint
        os.kill(job.pid, signal.SIGCONT)
        until(lambda: Process(job.pid).state != "T")
        enter(job.pid)
        assert job.finish()["marks"] == 1


def test_a_process_stopped_between_looking_and_entering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop is noticed when the thread does not stop for us, and stays in force."""
    seize = TracedThread.seize

    def stopping(pid: int, thread: int) -> TracedThread:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: Process(pid).state == "T")
        return seize(pid, thread)

    with spinning(tmp_path / "job") as job:
        monkeypatch.setattr(TracedThread, "seize", staticmethod(stopping))
        with pytest.raises(StuckError, match="SIGSTOP"):
            inject(job.pid, mark_text())
        assert Process(job.pid).state == "T"
        os.kill(job.pid, signal.SIGCONT)
        assert job.finish()["marks"] == 0


def test_a_process_with_a_debugger(tmp_path: Path) -> None:
    tracing = (
        "import sys\nfrom diagnose.attach.injection.ptrace import TracedThread\n"
        "TracedThread.seize(int(sys.argv[1]), int(sys.argv[1]))\n"
        "print('tracing', flush=True)\nsys.stdin.read()\n"
    )
    with spinning(tmp_path / "job") as job:
        debugger = subprocess.Popen(
            [sys.executable, "-c", tracing, str(job.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        with debugger:
            assert debugger.stdout is not None
            assert debugger.stdin is not None
            assert debugger.stdout.readline() == "tracing\n"
            with pytest.raises(PtraceRefusedError, match=f"by process {debugger.pid}"):
                inject(job.pid, mark_text())
            debugger.stdin.close()
        assert job.finish()["marks"] == 0


def test_another_process_that_got_the_same_id_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked up belongs to the process that was there before."""
    seen: list[int] = []

    def starts(process: Process) -> int:
        seen.append(process.pid)
        return len(seen)

    with spinning(tmp_path / "job") as job:
        monkeypatch.setattr(Process, "started_ticks", property(starts))
        with pytest.raises(ProcessGoneError):
            inject(job.pid, "raise SystemExit")
        assert seen == [job.pid, job.pid]
        monkeypatch.undo()
        assert job.finish()["marks"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_process_of_another_user(tmp_path: Path) -> None:
    as_nobody = (
        "import os, sys\nfrom diagnose.attach.injection.inject import inject\n"
        "from diagnose.errors import OtherUserError\n"
        "import encodings.idna, pwd\n"
        "os.setgroups([])\nos.setresgid(65534, 65534, 65534)\nos.setresuid(65534, 65534, 65534)\n"
        "try:\n    inject(int(sys.argv[1]), 'pass')\n"
        "except OtherUserError as error:\n    print(error, '|', error.hint)\n"
    )
    with spinning(tmp_path / "job") as job:
        said = run_python(["-c", as_nobody, str(job.pid)])
        assert job.finish()["marks"] == 0
    assert said.startswith(f"process {job.pid} belongs to user root, and this is user ")
    assert said.endswith("run as the user of the job, or as root")


def run_python(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def sleeping() -> Iterator[int]:
    program = shutil.which("sleep")
    assert program is not None
    process = subprocess.Popen([program, "60"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(20)
