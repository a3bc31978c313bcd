"""A ``/proc`` laid out in a folder: what discovery reads of a process, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

TORCH = "/site-packages/torch/lib/libtorch_python.so"
HOST_NET = "net:[4026531840]"
SPAWNED = (
    "python",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)",
    "--multiprocessing-fork",
)
TORCHRUN = ("python", "/usr/bin/torchrun", "--nproc-per-node=2", "train.py")
# What a process with a CUDA context maps, and what is left in a child that it forks.
GPU = ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl")
GPU_FORKED = ("/dev/nvidia0", "/dev/nvidiactl")


class FakeProc:
    """Processes below ``root``; pids and parents as given."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    def add(
        self,
        pid: int,
        command: Sequence[str] = ("python", "train.py"),
        *,
        ppid: int = 1,
        env: Mapping[str, object] | None = None,
        torch: bool = True,
        gpu: bool = False,
        maps: Sequence[str] = (),
        name: str = "python",
        exe: str = "/usr/bin/python3.11",
        threads: Sequence[str] = (),
        uid: int = 1000,
        namespace_pid: int | None = None,
        net: str = HOST_NET,
        cgroup: str = "/",
        session: int = 1,
        started: int = 100,
    ) -> int:
        """A process; by default a Python with PyTorch in it that nothing launched."""
        folder = self.root / str(pid)
        (folder / "ns").mkdir(parents=True)
        environ = {"PATH": "/usr/bin", **(env or {})}
        pairs = [f"{key}={value}".encode() for key, value in environ.items()]
        (folder / "environ").write_bytes(b"\0".join(pairs) + b"\0")
        (folder / "cmdline").write_bytes(b"\0".join(map(str.encode, command)) + b"\0")
        (folder / "comm").write_text(f"{name}\n")
        # pid (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt
        # utime stime cutime cstime priority nice threads itrealvalue starttime
        (folder / "stat").write_text(
            f"{pid} ({name}) S {ppid} {pid} {session} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0\n"
        )
        inner = f"{pid}\t{namespace_pid}" if namespace_pid is not None else f"{pid}"
        (folder / "status").write_text(
            f"Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTracerPid:\t0\n"
            f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{inner}\n"
        )
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        files = [exe, *([TORCH] if torch else []), *(GPU if gpu else []), *maps]
        (folder / "maps").write_text(
            "".join(
                f"7f00{n:04x}0000-7f00{n:04x}8000 r-xp 00000000 08:01 {n + 10}      {file}\n"
                for n, file in enumerate(files)
            )
            + "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]\n"
        )
        for number, thread in enumerate((name, *threads)):
            (folder / "task" / str(pid + number)).mkdir(parents=True)
            (folder / "task" / str(pid + number) / "comm").write_text(f"{thread}\n")
        (folder / "exe").symlink_to(exe)
        (folder / "ns" / "net").symlink_to(net)
        return pid


def torchrun(
    rank: int,
    world: int,
    *,
    local: int | None = None,
    run: str = "none",
    port: int = 29500,
    host: str = "localhost",
) -> dict[str, object]:
    """What torchrun's agent sets for a rank."""
    return {
        "RANK": rank,
        "LOCAL_RANK": rank if local is None else local,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "GROUP_RANK": 0,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run,
    }


def add_torchrun(proc, first=100, ranks=2, command=("python", "-u", "train.py"), **how):
    """torchrun's agent as process ``first``, its ranks right behind."""
    proc.add(first, TORCHRUN, name="pt_elastic")
    for rank in range(ranks):
        proc.add(first + 1 + rank, command, ppid=first, env=torchrun(rank, ranks, **how))
