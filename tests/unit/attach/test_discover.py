"""Which processes are ranks, and of which job: launchers on a fake ``/proc``."""

from __future__ import annotations

import pytest

from diagnose.attach.discovery._families import script
from diagnose.attach.discovery.discover import survey
from tests.unit.attach.fake_proc import (
    GPU_FORKED,
    SPAWNED,
    TORCHRUN,
    FakeProc,
    add_torchrun,
    torchrun,
)

COMPILE_WORKER = (
    "python",
    "/site-packages/torch/_inductor/compile_worker/__main__.py",
    "--kind=fork",
    "--workers=32",
)
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path / "proc")


def placed(proc):
    """Of each job: its name, and pid, rank, local rank and world size of its ranks."""
    return {
        job.name: [(r.pid, r.rank, r.local_rank, r.world_size) for r in job.ranks]
        for job in survey(proc.root).jobs
    }


def test_torchrun_with_its_workers(proc):
    add_torchrun(proc)
    for rank in (0, 1):
        parent, env = 101 + rank, torchrun(rank, 2)
        # Forked by an older PyTorch, forked, and spawned by a newer one, which names them.
        proc.add(200 + 10 * rank, ("python", "-u", "train.py"), ppid=parent, env=env)
        proc.add(
            201 + 10 * rank,
            ("python", "-u", "train.py"),
            ppid=parent,
            env=env,
            name="pt_data_worker",
        )
        proc.add(202 + 10 * rank, SPAWNED, ppid=parent, env=env, name="pt_data_worker")
        proc.add(203 + 10 * rank, COMPILE_WORKER, ppid=parent, env=env)
        proc.add(204 + 10 * rank, COMPILE_WORKER, ppid=203 + 10 * rank, env=env)
    proc.add(300, ("nvidia-smi",), torch=False, exe="/usr/bin/nvidia-smi", name="nvidia-smi")
    seen = survey(proc.root)
    assert placed(proc) == {"train.py": [(101, 0, 0, 2), (102, 1, 1, 2)]}
    [job] = seen.jobs
    assert {rank.launcher for rank in job.ranks} == {"torchrun"}
    assert job.missing == ()
    assert job.summary == "train.py: torchrun, ranks 0, 1 of 2, processes 101, 102"
    assert set(seen.workers) == {200, 201, 202, 203, 204, 210, 211, 212, 213, 214}
    assert {seen.workers[pid] for pid in (200, 201, 202, 203, 204)} == {101}
    assert seen.unlikely == ()


def test_an_agent_that_starts_its_ranks_is_no_rank(proc):
    proc.add(100, TORCHRUN, name="pt_elastic")
    proc.add(110, ("python", "-m", "torch.distributed.run", "train.py"))
    proc.add(120, ("python", "/site-packages/torch/distributed/launch.py", "train.py"))
    assert placed(proc) == {}


def test_ranks_on_other_hosts_are_missing(proc):
    for local in range(4):
        env = torchrun(local + 4, 12, local=local, run="llama-70b", host="node0")
        proc.add(100 + local, ("python", "train.py"), env=env)
    [job] = survey(proc.root).jobs
    assert job.name == "llama-70b"
    assert job.missing == (0, 1, 2, 3, 8, 9, 10, 11)
    assert job.summary == "llama-70b: train.py, torchrun, ranks 4-7 of 12, processes 100-103"


def test_jobs_that_meet_at_different_ports(proc):
    add_torchrun(proc, 100, port=29500)
    add_torchrun(proc, 200, port=29501)
    assert placed(proc) == {
        "train.py:29500": [(101, 0, 0, 2), (102, 1, 1, 2)],
        "train.py:29501": [(201, 0, 0, 2), (202, 1, 1, 2)],
    }


def test_the_run_id_of_standalone_says_nothing(proc):
    add_torchrun(proc, run="5b9b7f4e-2f0a-4b39-9f0b-0d7f5c7f8a11")
    assert list(placed(proc)) == ["train.py"]


def test_localhost_is_another_place_in_every_container(proc):
    for base, net in ((100, "net:[1]"), (200, "net:[2]")):
        for rank in (0, 1):
            proc.add(base + rank, env=torchrun(rank, 2), net=net, namespace_pid=10 + rank)
    assert placed(proc) == {
        "train.py:29500@100": [(100, 0, 0, 2), (101, 1, 1, 2)],
        "train.py:29500@200": [(200, 0, 0, 2), (201, 1, 1, 2)],
    }
    keys = [job.key for job in survey(proc.root).jobs]
    assert len(set(keys)) == 2


def test_localhost_in_two_containers_is_never_one_job(proc):
    # One rank each, the others ended: nothing but the place tells them apart.
    proc.add(100, env=torchrun(0, 2), net="net:[1]")
    proc.add(200, env=torchrun(1, 2), net="net:[2]")
    assert sorted(placed(proc).values()) == [[(100, 0, 0, 2)], [(200, 1, 1, 2)]]


def test_two_pods_of_one_job_on_one_node(proc):
    for node in (0, 1):
        for local in (0, 1):
            env = torchrun(2 * node + local, 4, local=local, host="llama-master-0")
            proc.add(
                100 + 10 * node + local,
                env=env | POD,
                net=f"net:[{node}]",
                cgroup=f"/kubepods/pod{node}",
            )
    assert placed(proc) == {
        "llama": [(100, 0, 0, 4), (101, 1, 1, 4), (110, 2, 0, 4), (111, 3, 1, 4)]
    }


@pytest.mark.parametrize("by", ["net", "cgroup", "session", "ppid"])
def test_equal_ranks_of_equal_names_are_told_apart(proc, by):
    """Jobs of the same name in two Kubernetes namespaces, or started by two shells."""
    values = {"net": ("net:[1]", "net:[2]"), "cgroup": ("/pod1", "/pod2")}
    for index, base in enumerate((100, 200)):
        how = {by: values[by][index] if by in values else 40 + index}
        for rank in (0, 1):
            proc.add(base + rank, env=torchrun(rank, 2, host="node-a"), **how)
    assert sorted(placed(proc).values()) == [
        [(100, 0, 0, 2), (101, 1, 1, 2)],
        [(200, 0, 0, 2), (201, 1, 1, 2)],
    ]


def test_jobs_of_two_users_are_two(proc):
    # Even if together they would look like one.
    proc.add(100, env=torchrun(0, 2, host="node-a"), uid=1000)
    proc.add(101, env=torchrun(1, 2, host="node-a"), uid=1001)
    assert [len(ranks) for ranks in placed(proc).values()] == [1, 1]


def test_pods_with_a_rank_and_no_local_rank(proc):
    for rank in (0, 1):
        env = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "bert-master-0", "MASTER_PORT": 23456}
        proc.add(100 + rank, env=env | POD, net=f"net:[{rank}]")
    assert placed(proc) == {"bert": [(100, 0, None, 2), (101, 1, None, 2)]}
    assert survey(proc.root).jobs[0].ranks[0].launcher == "kubernetes"


def test_torchrun_in_a_pod_that_has_a_rank_of_its_own(proc):
    pod = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "bert-master-0", "MASTER_PORT": 23456, **POD}
    proc.add(100, TORCHRUN, env=pod, name="python")
    for local in range(2):
        env = torchrun(2 + local, 4, local=local, host="bert-master-0")
        proc.add(101 + local, ppid=100, env=pod | env)
    assert placed(proc) == {"bert": [(101, 2, 0, 4), (102, 3, 1, 4)]}


def slurm(rank, world, step=0, job=4711, **other):
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": step,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank % 2,
        "SLURM_NTASKS": world,
        **other,
    }


def test_srun(proc):
    for rank in (2, 3):
        proc.add(100 + rank, env=slurm(rank, 4))
    assert placed(proc) == {"slurm-4711": [(102, 2, 0, 4), (103, 3, 1, 4)]}


def test_srun_that_speaks_pmi_is_still_slurm(proc):
    proc.add(100, env=slurm(0, 2, PMI_RANK=0, PMI_SIZE=2, PMIX_RANK=0))
    [job] = survey(proc.root).jobs
    assert job.ranks[0].launcher == "slurm"


def test_steps_of_one_slurm_job_are_jobs(proc):
    for step in (0, 1):
        for rank in (0, 1):
            proc.add(100 + 10 * step + rank, env=slurm(rank, 2, step))
    assert placed(proc) == {
        "slurm-4711@100": [(100, 0, 0, 2), (101, 1, 1, 2)],
        "slurm-4711@110": [(110, 0, 0, 2), (111, 1, 1, 2)],
    }


@pytest.mark.parametrize("step", [None, 4294967291])
def test_the_batch_script_is_no_task(proc, step):
    # sbatch sets SLURM_PROCID=0 and SLURM_NTASKS in the script as well.
    env = slurm(0, 8, step)
    if step is None:
        del env["SLURM_STEP_ID"]
    proc.add(100, env=env, gpu=True)
    assert placed(proc) == {"train.py": [(100, None, None, None)]}


def test_srun_that_starts_torchrun(proc):
    task = slurm(1, 2)
    proc.add(100, TORCHRUN, env=task)
    for local in (0, 1):
        env = torchrun(2 + local, 4, local=local, host="node0")
        proc.add(101 + local, ppid=100, env=task | env)
    assert placed(proc) == {"slurm-4711": [(101, 2, 0, 4), (102, 3, 1, 4)]}


def test_srun_whose_task_spawns_the_ranks(proc):
    """Each has the environment of the task: its number is not theirs."""
    task = slurm(1, 2)
    proc.add(100, env=task)
    for local in (0, 1):
        proc.add(101 + local, SPAWNED, ppid=100, env=task, gpu=True)
    assert placed(proc) == {"slurm-4711": [(101, None, None, None), (102, None, None, None)]}
    assert survey(proc.root).jobs[0].missing is None


def test_open_mpi(proc):
    for rank in (0, 1):
        env = {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": 4,
            "PMIX_NAMESPACE": "prterun-host-77@1",
            "PMIX_RANK": rank,
        }
        # mpirun under Slurm: its daemon is the task, and the ranks inherit that.
        proc.add(100 + rank, env=slurm(0, 1) | env)
    assert placed(proc) == {"slurm-4711": [(100, 0, 0, 4), (101, 1, 1, 4)]}
    [job] = survey(proc.root).jobs
    assert job.ranks[0].launcher == "openmpi"
    assert job.missing == (2, 3)


def test_hydra_under_slurm(proc):
    for rank in (4, 5):
        env = {"PMI_RANK": rank, "PMI_SIZE": 8, "MPI_LOCALRANKID": rank - 4, "PMI_FD": 9}
        proc.add(100 + rank, env=slurm(1, 2) | env)
    assert placed(proc) == {"slurm-4711": [(104, 4, 0, 8), (105, 5, 1, 8)]}
    assert survey(proc.root).jobs[0].ranks[0].launcher == "mpich"


def test_pmix_alone_tells_no_world_size(proc):
    proc.add(100, env={"PMIX_RANK": 3, "PMIX_NAMESPACE": "x"})
    assert placed(proc) == {"train.py": [(100, 3, None, None)]}
    assert survey(proc.root).jobs[0].missing is None


def test_mvapich(proc):
    env = {
        "MV2_COMM_WORLD_RANK": 1,
        "MV2_COMM_WORLD_LOCAL_RANK": 1,
        "MV2_COMM_WORLD_SIZE": 2,
    }
    proc.add(100, env=env)
    assert placed(proc) == {"train.py": [(100, 1, 1, 2)]}


def test_deepspeed(proc):
    proc.add(100, ("python", "-u", "-m", "deepspeed.launcher.launch", "--x", "train.py"))
    for rank in (0, 1):
        env = torchrun(rank, 2) | {"CROSS_RANK": 0, "CROSS_SIZE": 1}
        del env["TORCHELASTIC_RUN_ID"]
        command = ("python", "-u", "train.py", f"--local_rank={rank}")
        proc.add(101 + rank, command, ppid=100, env=env)
    assert placed(proc) == {"train.py": [(101, 0, 0, 2), (102, 1, 1, 2)]}
    assert survey(proc.root).jobs[0].ranks[0].launcher == "deepspeed"


def test_accelerate_with_one_process(proc):
    # No rank variables: the launcher starts the script and waits.
    proc.add(100, ("python", "/usr/bin/accelerate", "launch", "train.py"))
    proc.add(101, ppid=100, env={"ACCELERATE_MIXED_PRECISION": "no"})
    assert placed(proc) == {"train.py": [(101, None, None, None)]}
    assert survey(proc.root).jobs[0].ranks[0].launcher == "accelerate"


def test_lightning_is_rank_0_itself_and_starts_the_others(proc):
    proc.add(100, ("python", "fit.py"))
    for local in (1, 2):
        env = {
            "LOCAL_RANK": local,
            "NODE_RANK": 0,
            "WORLD_SIZE": 3,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 12355,
        }
        proc.add(100 + local, ("python", "fit.py"), ppid=100, env=env)
        proc.add(200 + local, ("python", "fit.py"), ppid=100 + local, env=env)
    assert placed(proc) == {"fit.py": [(100, 0, 0, 3), (101, 1, 1, 3), (102, 2, 2, 3)]}


def test_spawned_ranks_by_their_process_group(proc):
    """torch.multiprocessing.spawn, on the CPU: the number is told later, by the agent."""
    proc.add(100, ("python", "spawn.py", "--epochs", "3"))
    for pid in (101, 102):
        proc.add(pid, SPAWNED, ppid=100, threads=("pt_gloo_runloop", "gloo_tcp_loop"))
        proc.add(pid + 10, SPAWNED, ppid=pid, name="pt_data_worker")
    assert placed(proc) == {"spawn.py": [(101, None, None, None), (102, None, None, None)]}
    [job] = survey(proc.root).jobs
    assert job.summary == "spawn.py: spawned, ranks not known yet, processes 101, 102"


def test_spawned_ranks_by_their_gpu(proc):
    proc.add(100, ("python", "spawn.py"))
    for pid in (101, 102):
        proc.add(pid, SPAWNED, ppid=100, gpu=True)
        proc.add(pid + 10, SPAWNED, ppid=pid)  # data loader of a PyTorch that does not name it
    assert placed(proc) == {"spawn.py": [(101, None, None, None), (102, None, None, None)]}


def test_spawned_data_loaders_of_a_single_process(proc):
    proc.add(100, gpu=True)
    proc.add(101, SPAWNED, ppid=100)
    proc.add(102, ("python", "train.py"), ppid=100, maps=GPU_FORKED)
    proc.add(103, ("python", "preprocess.py"), ppid=100, maps=GPU_FORKED)
    assert placed(proc) == {"train.py": [(100, None, None, None)]}


def test_a_helper_program_of_a_trainer_is_part_of_it(proc):
    proc.add(100, env=torchrun(0, 1))
    proc.add(101, ("python", "evaluate.py"), ppid=100, env=torchrun(0, 1), gpu=True)
    assert placed(proc) == {"train.py": [(100, 0, 0, 1)]}


def test_a_shell_between_launcher_and_rank(proc):
    add_torchrun(proc, ranks=0)
    for rank in (0, 1):
        env = torchrun(rank, 2)
        shell = proc.add(
            110 + rank, ("bash", "run.sh"), ppid=100, env=env, torch=False, exe="/bin/sh"
        )
        proc.add(120 + rank, ppid=shell, env=env)
        proc.add(130 + rank, ppid=120 + rank, env=env)
    assert placed(proc) == {"train.py": [(120, 0, 0, 2), (121, 1, 1, 2)]}


def test_python_without_a_gpu_counts_only_if_nothing_else_trains(proc):
    proc.add(100, ("python", "-m", "ipykernel_launcher", "-f", "x.json"))
    assert placed(proc) == {"ipykernel_launcher": [(100, None, None, None)]}
    proc.add(110, ("python", "monitor.py"), maps=GPU_FORKED)  # as with NVML alone
    proc.add(200, ("python", "train.py"), gpu=True)
    assert placed(proc) == {"train.py": [(200, None, None, None)]}
    assert [job.name for job in survey(proc.root).unlikely] == ["ipykernel_launcher", "monitor.py"]


def test_an_environment_overwritten_by_the_title(proc):
    proc.add(100, ("trainer: step 12",), gpu=True, name="trainer: step 1")
    (proc.root / "100" / "environ").write_bytes(b"")
    assert placed(proc) == {"trainer:-step-12": [(100, None, None, None)]}


def test_ray_workers_of_a_node_are_one_job(proc):
    for pid in (101, 102):
        proc.add(pid, ("ray::RayTrainWorker.run()",), name="ray::RayTrainWo", ppid=50, gpu=True)
    proc.add(103, ("ray::IDLE",), name="ray::IDLE", ppid=50)
    [job] = survey(proc.root).jobs
    assert [rank.pid for rank in job.ranks] == [101, 102]
    assert job.ranks[0].launcher == "ray"


@pytest.mark.parametrize(
    "broken",
    [
        {"RANK": "x"},
        {"RANK": "2"},  # of a world of 2
        {"RANK": "-1"},
        {"RANK": "9" * 30},
        {"WORLD_SIZE": ""},
        {"RANK": "\u0661"},
    ],
)
def test_numbers_that_are_none_place_nobody(proc, broken):
    proc.add(100, env=torchrun(0, 2) | broken, gpu=True)
    assert placed(proc) == {"train.py": [(100, None, None, None)]}


def test_processes_that_end_meanwhile_are_passed_over(proc):
    add_torchrun(proc)
    for pid, name in enumerate(("stat", "maps", "environ"), 500):
        proc.add(pid, env=torchrun(0, 9))
        (proc.root / str(pid) / name).unlink()
    assert placed(proc) == {"train.py": [(101, 0, 0, 2), (102, 1, 1, 2)]}


def test_names_of_jobs_can_be_printed_and_typed(proc):
    run = "evil\x1b[31m run\n; rm -rf /"
    proc.add(100, env=torchrun(0, 1, run=run))
    [job] = survey(proc.root).jobs
    assert job.name == "evil-31m-run-rm--rf-/"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("python", "train.py", "--lr", "1"), "train.py"),
        (("python", "-u", "-X", "dev", "-W", "error", "/a/b/train.py"), "train.py"),
        (("python", "-m", "package.train", "x.py"), "package.train"),
        (("python", "-um", "package.train"), "package.train"),
        (("python", "-c", "import x"), "-c"),
        (("python", "--", "-odd.py"), "-odd.py"),
        (("torchtitan",), "torchtitan"),
        (("python", "-Wignore", "-OO", "train.py"), "train.py"),
        ((), ""),
    ],
)
def test_what_a_command_line_runs(command, expected):
    assert script(command) == expected


def test_no_secret_is_kept(proc):
    proc.add(
        100, ("python", "train.py", "--key=hunter2"), env=torchrun(0, 1) | {"TOKEN": "hunter2"}
    )
    seen = survey(proc.root)
    assert "hunter2" not in repr(seen)
    assert "hunter2" not in seen.jobs[0].summary
