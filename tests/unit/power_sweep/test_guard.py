"""The old limits are back after everything that can happen: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from diagnose.errors import UsageError
from diagnose.power_sweep.guard import LimitGuard, restore
from diagnose.power_sweep.journal import Journal
from diagnose.telemetry.limits import PowerLimitError, PowerLimits
from tests.conftest import ROOT
from tests.simulated_limits import FileNvml

OLD = {"GPU-a": 700.0, "GPU-b": 650.0}
BOUND_S = 30


@pytest.fixture
def path(tmp_path):
    FileNvml.create(tmp_path / "limits", OLD)
    return tmp_path / "limits"


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "own" / "journal.json")
    journal.lock()
    yield journal
    journal.unlock()


def watchdog(path):
    return [sys.executable, str(ROOT / "tests" / "simulated_limits.py"), str(path)]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def guard_of(path, journal, nvml=None):
    return LimitGuard(PowerLimits(nvml or FileNvml(path)), OLD, journal, watchdog(path))


def test_after_the_block_the_limits_are_as_before(path, journal):
    nvml = FileNvml(path)
    with guard_of(path, journal) as guard:
        assert json.loads(journal.path.read_text()) == OLD
        guard.set({"GPU-a": 500.0, "GPU-b": 500.0})
        assert nvml.limits_w() == {"GPU-a": 500, "GPU-b": 500}
    assert nvml.limits_w() == OLD
    assert not journal.path.exists()
    # All four were set by this process: the watchdog had nothing to do.
    assert {pid for pid, _, _ in nvml.log()} == {str(os.getpid())}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_after_an_exception_too(path, journal, error):
    def fails():
        with guard_of(path, journal) as guard:
            guard.set({"GPU-a": 500.0})
            raise error

    with pytest.raises(error):
        fails()
    assert FileNvml(path).limits_w() == OLD


def test_a_limit_that_cannot_be_set_half_way_leaves_none_behind(path, journal):
    nvml = FileNvml(path)
    nvml.refuse = {"GPU-b"}

    def half_way():
        with guard_of(path, journal, nvml) as guard:
            try:
                guard.set({"GPU-a": 500.0, "GPU-b": 500.0})
            finally:
                nvml.refuse = set()

    with pytest.raises(PowerLimitError, match="GPU 1 cannot be set to 500 W"):
        half_way()
    assert nvml.limits_w() == OLD
    assert [watts for _, uuid, watts in nvml.log() if uuid == "GPU-a"] == ["500", "700"]


def test_a_gpu_that_will_not_be_restored_is_not_set(path, journal):
    guard = LimitGuard(PowerLimits(FileNvml(path)), {"GPU-a": 700.0}, journal, watchdog(path))
    with guard, pytest.raises(PowerLimitError, match="not part"):
        guard.set({"GPU-b": 500.0})
    assert FileNvml(path).log() == [[str(os.getpid()), "GPU-a", "700"]]


def test_where_this_process_cannot_restore_the_watchdog_does(path, journal):
    """The message says how to do it by hand, the watchdog is quicker."""
    nvml = FileNvml(path)

    def loses_its_rights():
        with guard_of(path, journal, nvml) as guard:
            guard.set({"GPU-a": 500.0})
            nvml.refuse = {"GPU-a"}

    with pytest.raises(PowerLimitError, match="of 1 GPUs could not be restored") as error:
        loses_its_rights()
    assert "nvidia-smi -i GPU-a -pl 700" in error.value.hint
    assert FileNvml(path).limits_w() == OLD
    assert not journal.path.exists()
    assert nvml.log()[-1][0] != str(os.getpid())


def test_without_a_watchdog_nothing_is_set(path, journal):
    limits = PowerLimits(FileNvml(path))
    with pytest.raises(PowerLimitError, match="did not start"):
        LimitGuard(limits, OLD, journal, [sys.executable, "-c", "pass"]).__enter__()
    assert FileNvml(path).log() == []
    assert not journal.path.exists()


def test_a_watchdog_that_was_killed_ends_the_sweep(path, journal):
    def goes_on():
        with guard_of(path, journal) as guard:
            guard.set({"GPU-a": 500.0})
            os.kill(guard._watchdog.pid, signal.SIGKILL)
            guard._watchdog.wait(BOUND_S)
            guard.set({"GPU-a": 400.0})

    with pytest.raises(PowerLimitError, match="watchdog"):
        goes_on()
    nvml = FileNvml(path)
    assert nvml.limits_w() == OLD
    assert all(watts != "400" for _, _, watts in nvml.log())


SWEEP = """
import os, sys, time
from pathlib import Path
from diagnose.power_sweep.guard import LimitGuard
from diagnose.power_sweep.journal import Journal
from diagnose.telemetry.limits import PowerLimits
from tests.simulated_limits import FileNvml
path, journal, watchdog = Path(sys.argv[1]), Journal(Path(sys.argv[2])), sys.argv[3:]
journal.lock()
old = {"GPU-a": 700.0, "GPU-b": 650.0}
with LimitGuard(PowerLimits(FileNvml(path)), old, journal, watchdog) as guard:
    guard.set({"GPU-a": 500.0, "GPU-b": 500.0})
    print("set", guard._watchdog.pid, flush=True)
    time.sleep(60)
"""


class Sweep:
    """A sweep in a process of its own, between set and restore."""

    def __init__(self, path, journal):
        line = [sys.executable, "-c", SWEEP, str(path), str(journal), *watchdog(path)]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        said, self.watchdog = self.process.stdout.readline().split()
        assert said == "set"
        assert FileNvml(path).limits_w() == {"GPU-a": 500, "GPU-b": 500}

    def end(self, number):
        self.process.send_signal(number)
        status = self.process.wait(BOUND_S)
        self.process.stdout.close()
        return status


def eventually(check):
    end = time.monotonic() + BOUND_S
    while not check():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def gone(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_restores(path, tmp_path, number):
    sweep = Sweep(path, tmp_path / "own" / "journal.json")
    assert sweep.end(number) != 0
    assert FileNvml(path).limits_w() == OLD
    assert gone(sweep.watchdog)


def test_a_kill_between_set_and_restore_is_undone_by_the_watchdog(path, tmp_path):
    journal = tmp_path / "own" / "journal.json"
    sweep = Sweep(path, journal)
    assert sweep.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: FileNvml(path).limits_w() == OLD)
    eventually(lambda: not journal.exists())
    setters = [pid for pid, _, _ in FileNvml(path).log()]
    assert setters == [str(sweep.process.pid)] * 2 + [sweep.watchdog] * 2


def test_the_watchdog_survives_what_ends_a_terminal(path, tmp_path):
    sweep = Sweep(path, tmp_path / "own" / "journal.json")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(int(sweep.watchdog), number)
    assert os.getsid(int(sweep.watchdog)) != os.getsid(sweep.process.pid)
    sweep.end(signal.SIGKILL)
    eventually(lambda: FileNvml(path).limits_w() == OLD)


def test_no_sweep_begins_while_another_runs_or_its_watchdog_restores(path, tmp_path):
    sweep = Sweep(path, tmp_path / "own" / "journal.json")
    other = Journal(tmp_path / "own" / "journal.json")
    with pytest.raises(UsageError, match="another power sweep"):
        other.lock()
    os.kill(int(sweep.watchdog), signal.SIGSTOP)
    sweep.end(signal.SIGKILL)
    with pytest.raises(UsageError, match="another power sweep"):
        other.lock()
    os.kill(int(sweep.watchdog), signal.SIGCONT)

    def free():
        try:
            other.lock()
        except UsageError:
            return False
        return True

    eventually(free)
    assert FileNvml(path).limits_w() == OLD
    other.unlock()


def test_the_journal_is_kept_where_both_are_killed(path, tmp_path):
    journal = Journal(tmp_path / "own" / "journal.json")
    sweep = Sweep(path, journal.path)
    os.kill(int(sweep.watchdog), signal.SIGKILL)
    sweep.end(signal.SIGKILL)
    assert FileNvml(path).limits_w() == {"GPU-a": 500, "GPU-b": 500}
    assert journal.leftover() == OLD
    restore(PowerLimits(FileNvml(path)), journal.leftover())
    assert FileNvml(path).limits_w() == OLD


def test_a_journal_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    with pytest.raises(PowerLimitError, match="can be written by others"):
        Journal(tmp_path / "own" / "journal.json").lock()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"GPU-a": "700"}', '{"GPU-a": -1}'])
def test_a_damaged_journal_restores_nothing(tmp_path, text):
    (tmp_path / "journal.json").write_text(text)
    assert Journal(tmp_path / "journal.json").leftover() == {}
