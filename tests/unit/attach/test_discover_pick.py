"""Choosing a job, and what to say of processes that cannot be looked at."""

from __future__ import annotations

import threading
import time

import pytest

from diagnose.attach.discovery import _observations, discover
from diagnose.attach.discovery._observations import in_time
from diagnose.attach.discovery.discover import in_ranges, missing_ranks, pick, survey
from diagnose.attach.discovery.processes import Process
from diagnose.errors import (
    AttachError,
    NoRanksError,
    OtherUserError,
    ProcessGoneError,
    TorchMissingError,
    UsageError,
)
from tests.unit.attach.fake_proc import SPAWNED, FakeProc, add_torchrun, torchrun


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def two_jobs(proc):
    add_torchrun(proc, 100, run="llama-70b")
    add_torchrun(proc, 200, run="llama-8b", port=29501)
    proc.add(210, SPAWNED, ppid=201, env=torchrun(0, 2, run="llama-8b", port=29501))
    proc.add(300, ("bash",), torch=False, exe="/bin/bash", name="bash")
    return survey(proc.root)


def pids(jobs):
    return [[rank.pid for rank in job.ranks] for job in jobs]


def test_the_only_job_needs_no_name(proc):
    add_torchrun(proc)
    assert pids(pick(survey(proc.root))) == [[101, 102]]


def test_several_jobs_are_listed(two_jobs):
    with pytest.raises(UsageError, match="2 jobs run on this host") as error:
        pick(two_jobs)
    assert "llama-70b: train.py, torchrun, ranks 0, 1 of 2, processes 101, 102" in error.value.hint
    assert "llama-8b" in error.value.hint
    assert pids(pick(two_jobs, everything=True)) == [[101, 102], [201, 202]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-8b", [201, 202]),
        ("llama-7", [101, 102]),
        ("70b", [101, 102]),
    ],
)
def test_a_job_by_its_name_or_a_part_of_it(two_jobs, name, expected):
    assert pids(pick(two_jobs, name=name)) == [expected]


def test_the_exact_name_wins_over_longer_ones(proc):
    add_torchrun(proc, 100, run="llama")
    add_torchrun(proc, 200, run="llama-8b", port=29501)
    assert pids(pick(survey(proc.root), name="llama")) == [[101, 102]]


@pytest.mark.parametrize("name", ["llama", "train.py"])
def test_an_ambiguous_name_lists_what_it_could_be(two_jobs, name):
    with pytest.raises(UsageError, match=f"--job {name}: 2 jobs") as error:
        pick(two_jobs, name=name)
    assert "llama-70b" in error.value.hint
    assert "llama-8b" in error.value.hint


@pytest.mark.parametrize("name", ["bert", ""])
def test_an_unknown_name_lists_what_there_is(two_jobs, name):
    with pytest.raises(UsageError, match="no job of this name") as error:
        pick(two_jobs, name=name)
    assert "llama-70b" in error.value.hint


def test_processes_by_id(two_jobs):
    [job] = pick(two_jobs, pids=[102])
    assert [rank.pid for rank in job.ranks] == [102]
    assert job.missing == (0,)
    assert pids(pick(two_jobs, pids=[201, 102, 201])) == [[102], [201]]


def test_the_id_of_a_launcher_means_its_ranks(two_jobs):
    assert pids(pick(two_jobs, pids=[200])) == [[201, 202]]


def test_why_a_process_cannot_be_chosen(two_jobs):
    with pytest.raises(
        UsageError, match="210 is a data-loader or compile worker of rank 0"
    ) as error:
        pick(two_jobs, pids=[210])
    assert error.value.hint == "give 201"
    with pytest.raises(TorchMissingError, match=r"process 300 \(bash\): PyTorch is not loaded"):
        pick(two_jobs, pids=[300])
    with pytest.raises(ProcessGoneError, match="process 999"):
        pick(two_jobs, pids=[999])
    with pytest.raises(UsageError, match="exclude each other"):
        pick(two_jobs, pids=[101], name="llama")


def test_an_unlikely_process_can_be_chosen_by_id(proc):
    proc.add(100, ("python", "serve.py"))
    proc.add(200, gpu=True)
    assert pids(pick(survey(proc.root), pids=[100])) == [[100]]


def test_nothing_there(proc):
    with pytest.raises(NoRanksError, match="no training process was found on this host"):
        pick(survey(proc.root))
    with pytest.raises(NoRanksError):
        pick(survey(proc.root), everything=True)


# What may not be read, and what does not answer.


def refuse(monkeypatch, *refused):
    """Their environment and maps belong to another user; root's tests can read everything."""
    whole = Process._bytes

    def bytes_of(self, name):
        if self.pid in refused and name == "environ":
            raise OtherUserError("process: may not be read")
        return whole(self, name)

    monkeypatch.setattr(Process, "_bytes", bytes_of)


def test_processes_of_other_users_are_named(proc, monkeypatch):
    proc.add(100, env=torchrun(0, 1), uid=1001)
    proc.add(101, ("postgres",), name="postgres", uid=70, torch=False, exe="/usr/bin/postgres")
    refuse(monkeypatch, 100, 101)
    seen = survey(proc.root)
    assert [(u.pid, u.uid, u.name) for u in seen.unreadable] == [(100, 1001, "python")]
    with pytest.raises(NoRanksError, match=r"1 could not be looked at: 100 \(python, user 1001\)"):
        pick(seen)


def test_a_process_that_does_not_answer_is_left_behind(proc, monkeypatch):
    add_torchrun(proc)
    proc.add(50, env=torchrun(0, 9))
    never = threading.Event()
    look = _observations._look

    def hangs(process):
        if process.pid == 50:
            never.wait(60)
        return look(process)

    monkeypatch.setattr(_observations, "_look", hangs)
    scan = _observations.scan(proc.root, patience_s=0.2)
    never.set()
    assert [o.pid for o in scan.observations] == [100, 101, 102]
    [stuck] = scan.unreadable
    assert (stuck.pid, stuck.uid) == (50, None)
    seen = discover.Survey((), unreadable=scan.unreadable, root=str(proc.root))
    with pytest.raises(AttachError, match="process 50: it did not answer"):
        pick(seen, pids=[50])


def test_many_that_do_not_answer_are_passed_over_quickly(proc):
    for pid in range(1, 9):
        proc.add(pid)
    never = threading.Event()
    given = [Process(pid, proc.root) for pid in range(1, 9)]
    began = time.monotonic()
    answers = list(in_time(given, lambda _: never.wait(60) and None, 0.8))
    never.set()
    assert [answer for _, answer in answers] == [None] * 8
    # 0.8 + 0.4 + 0.2 + 5 * 0.1 = 1.9 s; with all patience for each, 6.4.
    assert time.monotonic() - began < 5


def test_an_error_in_reading_is_not_swallowed(proc):
    proc.add(1)

    def fails(process):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(in_time([Process(1, proc.root)], fails, 1.0))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([3], "3"), ([1, 0], "0, 1"), ([0, 1, 2, 5, 7, 8, 9, 10], "0-2, 5, 7-10")],
)
def test_ranges(numbers, expected):
    assert in_ranges(numbers) == expected


@pytest.mark.parametrize(
    ("present", "world", "expected"),
    [([0, 2], 4, (1, 3)), ([0, 1], 2, ()), ([0], None, None), ([0, None], 2, None)],
)
def test_missing(present, world, expected):
    assert missing_ranks(present, world) == expected


# Names that tell two jobs of one script apart, and those of the one that is left.


@pytest.mark.parametrize(
    ("ports", "name", "expected"),
    [
        ((29873, 29501), "train.py:29873", 101),  # as listed
        ((29873, 29501), "train.py:29501", 201),
        ((29873, None), "train.py:29873", 101),  # the other has ended
        ((29873, None), "train.py", 101),
        ((29500, 29500), "train.py:29500@201", 201),
        ((29500, None), "train.py:29500@101", 101),
    ],
)
def test_a_name_that_was_listed_stays_valid_when_the_other_job_ends(proc, ports, name, expected):
    for number, port in enumerate(ports):
        if port is not None:
            first = 100 * (number + 1)
            add_torchrun(proc, first, ranks=1, port=port)
    assert pids(pick(survey(proc.root), name=name)) == [[expected]]


@pytest.mark.parametrize("name", ["train.py:29501", ":29873", "29873", "train.py:"])
def test_a_port_counts_only_in_the_whole_name(proc, name):
    add_torchrun(proc, 100, ranks=1, port=29873)
    with pytest.raises(UsageError, match="no job of this name"):
        pick(survey(proc.root), name=name)


def test_a_run_goes_by_its_script_and_port_too(two_jobs):
    assert pids(pick(two_jobs, name="train.py:29501")) == [[201, 202]]
    assert pids(pick(two_jobs, name="llama-8b:29501")) == [[201, 202]]
