"""Discovery of real processes: ranks, their launcher, their workers, another user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from diagnose.attach.discovery.discover import pick, survey
from diagnose.attach.discovery.processes import Process
from diagnose.errors import UsageError
from tests.attach.conftest import Job, free_port

pytest.importorskip("torch")

# Imports first: another user may not read where this is installed.
AS_NOBODY = """
import json, os, sys
from diagnose.attach.discovery.discover import survey
os.setgroups([]), os.setgid(65534), os.setuid(65534)
seen = survey()
print(json.dumps({
    "ranks": [rank.pid for rank in seen.ranks],
    "unreadable": [[u.pid, u.uid, u.reason] for u in seen.unreadable],
}))
"""


@dataclass
class Running:
    """A job of two ranks: which process is what."""

    job: Job
    ranks: list[int]
    workers: list[set[int]]

    @property
    def launcher(self) -> int:
        return self.job.processes[0].pid


def running(job):
    def told():
        texts = [job.folder / f"workers.{rank}" for rank in range(2)]
        found = [set(map(int, path.read_text().split())) for path in texts if path.exists()]
        return found if all(len(pids) == 2 for pids in found) and len(found) == 2 else None

    ranks = job.pids
    return Running(job, ranks, job.wait_until(told, 60, "all workers"))


@pytest.fixture(scope="module")
def jobs(start_job):
    """The same script by torchrun and by torch.multiprocessing.spawn, at once."""
    by_torchrun = start_job("workers.py", launcher="torchrun")
    nowhere = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"), "")
    spawned = start_job("workers.py", ranks=1, env=nowhere | {"PORT": str(free_port())})
    spawned.ranks = 2
    found = running(by_torchrun), running(spawned)
    yield found
    for each in found:
        each.job.finish()


def ours(jobs, seen):
    """The jobs of this module among all that this machine runs."""
    mine = {pid for each in jobs for pid in each.ranks}
    return [job for job in (*seen.jobs, *seen.unlikely) if mine & {r.pid for r in job.ranks}]


def test_ranks_of_torchrun(jobs):
    torchrun, _ = jobs
    seen = survey()
    [job] = [job for job in ours(jobs, seen) if job.ranks[0].launcher == "torchrun"]
    assert [(r.pid, r.rank, r.local_rank, r.world_size) for r in job.ranks] == [
        (torchrun.ranks[0], 0, 0, 2),
        (torchrun.ranks[1], 1, 1, 2),
    ]
    assert job.missing == ()
    assert {r.script for r in job.ranks} == {"workers.py"}
    assert {r.uid for r in job.ranks} == {os.getuid()}
    assert {r.host for r in job.ranks} == {os.uname().nodename}
    assert all(Process(r.pid).started_ticks == r.started_ticks for r in job.ranks)


def test_ranks_that_were_spawned(jobs):
    _, spawned = jobs
    [job] = [job for job in ours(jobs, survey()) if job.ranks[0].launcher == "spawned"]
    assert {r.pid for r in job.ranks} == set(spawned.ranks)
    assert {r.rank for r in job.ranks} == {None}
    assert {r.script for r in job.ranks} == {"workers.py"}
    assert job.missing is None


def test_nothing_else_of_them_is_a_rank(jobs):
    seen = survey()
    assert len(ours(jobs, seen)) == 2
    listed = {r.pid for job in (*seen.jobs, *seen.unlikely) for r in job.ranks}
    for each in jobs:
        assert each.launcher not in listed
        for rank, workers in zip(each.ranks, each.workers, strict=True):
            assert not workers & listed
            assert {seen.workers[pid] for pid in workers} == {rank}


def test_a_job_by_what_started_it_and_no_worker(jobs):
    seen = survey()
    for each in jobs:
        [job] = pick(seen, pids=[each.launcher])
        assert {r.pid for r in job.ranks} == set(each.ranks)
        with pytest.raises(UsageError, match="data-loader or compile worker"):
            pick(seen, pids=[next(iter(each.workers[0]))])


def test_this_process_is_no_candidate(jobs):
    # It holds torch as well, as this module imports it.
    assert any(r.name.startswith("libtorch_python") for r in Process(os.getpid()).maps())
    seen = survey()
    assert os.getpid() not in {r.pid for job in (*seen.jobs, *seen.unlikely) for r in job.ranks}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_told_what_may_not_be_looked_at(jobs):
    answer = subprocess.run(
        [sys.executable, "-c", AS_NOBODY],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(answer.stdout)
    mine = {pid for each in jobs for pid in each.ranks}
    assert not mine & set(found["ranks"])
    refused = {pid: (uid, reason) for pid, uid, reason in found["unreadable"]}
    assert mine <= refused.keys()
    assert {refused[pid] for pid in mine} == {(os.getuid(), "it belongs to another user")}
