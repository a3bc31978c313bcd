"""One process of ``/proc``: fields that are awkward to read, and what is not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from diagnose.attach.discovery.processes import Process, every
from diagnose.errors import ProcessGoneError
from tests.unit.attach.fake_proc import TORCH, FakeProc


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path / "proc")


def test_reads_what_the_kernel_writes(proc):
    proc.add(
        42,
        ("python", "-u", "train.py", ""),
        ppid=7,
        env={"RANK": 3, "EMPTY": "", "EQUALS": "a=b"},
        uid=1234,
        namespace_pid=5,
        threads=("pt_nccl_watchdg",),
        session=6,
        started=9876,
        cgroup="/kubepods/pod1",
    )
    process = Process(42, proc.root)
    assert process.exists
    assert process.command == ("python", "-u", "train.py")
    assert process.environ == {"PATH": "/usr/bin", "RANK": "3", "EMPTY": "", "EQUALS": "a=b"}
    assert (process.ppid, process.session, process.uid) == (7, 6, 1234)
    assert (process.namespace_pid, process.tracer_pid) == (5, 0)
    assert process.started_ticks == 9876
    assert process.threads == (42, 43)
    assert process.thread_names == {"python", "pt_nccl_watchdg"}
    assert process.cgroup == "/kubepods/pod1"
    first, second, stack = process.maps()
    assert (first.start, first.end) == (0x7F0000000000, 0x7F0000008000)
    assert first.permissions == "r-xp"
    assert (second.path, second.name) == (TORCH, "libtorch_python.so")
    assert stack.path == "[stack]"


def test_a_name_with_spaces_and_parentheses_shifts_no_field(proc):
    proc.add(42, name="evil) R 1 (x", ppid=7)
    assert Process(42, proc.root).ppid == 7
    assert Process(42, proc.root).state == "S"


def test_the_environment_is_not_shown_by_accident(proc):
    proc.add(42, env={"WANDB_API_KEY": "hunter2"})
    environ = Process(42, proc.root).environ
    assert environ["WANDB_API_KEY"] == "hunter2"
    assert "hunter2" not in f"{environ} {environ!r}"


def test_the_first_of_repeated_variables_counts(proc):
    # As getenv(3) takes it.
    proc.add(42)
    (proc.root / "42" / "environ").write_bytes(b"RANK=1\0RANK=2\0=3\0no equals sign\0")
    assert Process(42, proc.root).environ == {"RANK": "1"}


def test_bytes_that_are_no_text_survive(proc):
    proc.add(42)
    (proc.root / "42" / "environ").write_bytes(b"DATA=\xff\xfe\0")
    (proc.root / "42" / "maps").write_bytes(
        b"not a line\n7f0000000000-7f0000008000 r--p 0001f000 08:01 9  /a b/\xff.so (deleted)\n"
    )
    assert os.fsencode(Process(42, proc.root).environ["DATA"]) == b"\xff\xfe"
    [region] = Process(42, proc.root).maps()
    assert region.offset == 0x1F000
    assert os.fsencode(region.name) == b"\xff.so"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/user.slice\n", "/user.slice"),
        ("12:memory:/docker/abc\n1:name=systemd:/\n0::/\n", "/docker/abc"),
        ("0::/\n", "/"),
        ("", ""),
        ("rubbish\n", ""),
    ],
)
def test_control_groups_of_both_versions(proc, text, expected):
    proc.add(42)
    (proc.root / "42" / "cgroup").write_text(text)
    assert Process(42, proc.root).cgroup == expected


@pytest.mark.parametrize("what", ["environ", "command", "ppid", "uid", "threads", "cgroup", "name"])
def test_what_is_gone_says_so(proc, what):
    with pytest.raises(ProcessGoneError, match=r"process 42: there is no such process"):
        getattr(Process(42, proc.root), what)
    with pytest.raises(ProcessGoneError):
        list(Process(42, proc.root).maps())
    assert not Process(42, proc.root).exists


def test_a_cut_stat_is_a_process_that_ends(proc):
    proc.add(42)
    (proc.root / "42" / "stat").write_text("")
    with pytest.raises(ProcessGoneError):
        _ = Process(42, proc.root).ppid


def test_every_lists_numbers_only(proc):
    proc.add(42)
    proc.add(7)
    (proc.root / "self").mkdir()
    (proc.root / "meminfo").write_text("")
    assert [process.pid for process in every(proc.root)] == [7, 42]
    assert every(proc.root / "none") == []


def test_this_very_process():
    own = Process(os.getpid())
    assert own.ppid == os.getppid()
    assert own.uid == os.geteuid()
    assert own.session == os.getsid(0)
    assert own.environ["PATH"]
    assert own.same_mount_namespace
    assert any(region.path.endswith(("libc.so.6", ".so")) for region in own.maps())
    assert own.pid in own.threads


def test_a_zombie_does_not_exist():
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert Process(child.pid).state == "Z"
        assert not Process(child.pid).exists
    finally:
        child.wait()


def test_another_view_of_the_files_is_no_same_namespace(proc):
    proc.add(42)
    assert not Process(42, proc.root).same_mount_namespace
