"""What a command cost is its own and its children's, not the caller's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.measure import CommandFailedError, _family, measure

MIB = 2**20


def _python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_memory_is_that_of_the_command_and_not_of_the_caller() -> None:
    ballast = bytearray(300 * MIB)
    small = measure(_python("import time; time.sleep(0.2)"), timeout_s=30)
    big = measure(_python("import time; b = bytearray(100 << 20); time.sleep(0.3)"), timeout_s=30)
    assert len(ballast) == 300 * MIB
    assert 2 < small.peak_mib < 60
    assert 95 < big.peak_mib - small.peak_mib < 130


def test_memory_of_two_processes_at_once_adds_up() -> None:
    code = (
        "import os, time\n"
        "pid = os.fork()\n"
        "b = bytearray(60 << 20)\n"
        "time.sleep(0.4)\n"
        "pid and os.waitpid(pid, 0)\n"
    )
    assert 120 < measure(_python(code), timeout_s=30).peak_mib < 200


def test_cpu_of_children_counts_and_sleeping_does_not() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass\n"
    code = f"import os\npid = os.fork()\n{busy}pid and os.waitpid(pid, 0)\n"
    assert 0.9 < measure(_python(code), timeout_s=60).cpu_s < 1.5
    slept = measure(_python("import time; time.sleep(0.5)"), timeout_s=60)
    assert slept.cpu_s < 0.3
    assert slept.wall_s >= 0.5


def test_a_failure_says_why() -> None:
    with pytest.raises(CommandFailedError, match="no such trace"):
        measure(_python("import sys; sys.exit('no such trace')"), timeout_s=30)


def test_a_command_that_hangs_is_stopped() -> None:
    with pytest.raises(CommandFailedError, match="more than"):
        measure(_python("import time; time.sleep(60)"), timeout_s=0.3)


def test_a_process_that_has_ended_has_no_family_but_itself():
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert _family(gone.pid) == [gone.pid]
