"""What a job is started with, how its processes are found, and what `--try` accepts and ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.attach.discovery.processes import Process
from diagnose.attach.launching.launch import MARK, _signals_every_process, environment, processes
from diagnose.cli._trials import Trial, parse, ranking
from diagnose.errors import UsageError

MS = 1_000_000


def test_the_environment_keeps_what_was_there() -> None:
    variables = environment({"PYTHONPATH": "/a:/b", "X": "1"}, {"NCCL_ALGO": "Ring"})
    first, *rest = variables["PYTHONPATH"].split(":")
    assert Path(first, "sitecustomize.py").is_file()
    assert rest == ["/a", "/b"]
    assert (variables["X"], variables["NCCL_ALGO"]) == ("1", "Ring")
    assert variables["DIAGNOSE_AGENT"] == "1"
    assert variables[MARK] != environment({})[MARK]
    assert ":" not in environment({})["PYTHONPATH"]


def test_the_processes_of_a_job_are_found_by_their_mark() -> None:
    variables = environment(dict(os.environ))
    child = subprocess.Popen([sys.executable, "-c", "input()"], env=variables, stdin=-1)
    try:
        assert [process.pid for process in processes(variables[MARK])] == [child.pid]
        assert processes("another") == []
    finally:
        child.communicate(b"\n")


def test_what_slurm_has_sent_to_every_process_is_not_sent_again(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    for name, expected in (("slurmstepd", True), ("bash-like", False)):
        shutil.copy(sleep, tmp_path / name)
        with subprocess.Popen([tmp_path / name, "60"]) as child:
            try:
                # The kernel names a process a little after its start is reported.
                while Process(child.pid).name != name:
                    time.sleep(0.001)
                assert _signals_every_process(child.pid) is expected
            finally:
                child.kill()
    assert not _signals_every_process(0)
    assert not _signals_every_process(1 << 22)


def test_values_to_try() -> None:
    assert parse("NCCL_ALGO=Ring,Tree,Ring") == ("NCCL_ALGO", ["Ring", "Tree"])
    assert parse("NCCL_PROTO=,LL") == ("NCCL_PROTO", ["", "LL"])


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_ALGO",
        "NCCL_ALGO=Ring",
        "NCCL_ALGO=Ring,Ring",
        "NCCL_ALGO=Ring,$(x)",
        "LD_PRELOAD=/a.so,/b.so",
        "NCCL_NET_PLUGIN=a,b",
        "NCCL_DEBUG_FILE=a,b",
        "PATH=/a,/b",
        "=a,b",
    ],
)
def test_what_is_not_tried(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_values_are_ranked_and_what_lies_within_the_spread_is_said() -> None:
    trials = [
        Trial("Tree", Path("t/Tree"), 20.0 * MS, 60, 0.5 * MS),
        Trial("Ring", Path("t/Ring"), 16.0 * MS, 60, 0.3 * MS),
        Trial("NVLS", Path("t/NVLS"), 16.2 * MS, 60, 0.3 * MS),
        Trial("CollNet", problem="no window, the job ended with status 1"),
        Trial("PAT", Path("t/PAT")),
    ]
    assert ranking("NCCL_ALGO", trials, {}).splitlines() == [
        "NCCL_ALGO: step time by value (median of the steps outside of the window)",
        "",
        "  Ring          16.00 ms  +- 0.30    60 steps  fastest",
        "  NVLS          16.20 ms  +- 0.30    60 steps  1.2 % slower,"
        " within the spread of the steps",
        "  Tree          20.00 ms  +- 0.50    60 steps  25.0 % slower",
        "  CollNet           -     no window, the job ended with status 1",
        "  PAT               -     too few steps outside of the window",
    ]
