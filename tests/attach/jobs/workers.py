"""Ranks with data loaders, one forked and one spawned; knows nothing of diagnose.

With RANK set to a number it is one rank, otherwise it starts two by
``torch.multiprocessing.spawn``, the way in which the environment tells nobody their rank. Writes
``pid.RANK`` and, once it trains, ``workers.RANK`` (the pids of its workers) to ``JOB_DIR``. It
ends soon after a file ``stop`` appears there, and is killed by its own alarm after ``LIFETIME``
seconds.
"""

import multiprocessing
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def train(rank, world_size, port):
    signal.alarm(int(os.environ.get("LIFETIME", "120")))
    folder = Path(os.environ["JOB_DIR"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}" if port else None, rank=rank, world_size=world_size
    )
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [torch.full((8,), float(i)) for i in range(16)]
    loaders = [
        DataLoader(data, 4, num_workers=1, multiprocessing_context=way, persistent_workers=True)
        for way in ("fork", "spawn")
    ]
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    told = False
    while True:
        stop = torch.tensor(float((folder / "stop").exists()))
        dist.all_reduce(stop)
        if stop:
            break
        for loader in loaders:
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        if not told:
            pids = [child.pid for child in multiprocessing.active_children()]
            (folder / f"workers.{rank}").write_text(" ".join(map(str, pids)))
            told = True
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.environ.get("RANK"):
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None)
    else:
        mp.spawn(train, (2, int(os.environ["PORT"])), 2)
