"""A small DDP job over gloo that records itself with ``diagnose.record``; deterministic.

Writes ``pid.RANK`` and ``loss.RANK`` to ``JOB_DIR`` as ``train.py`` does. ``OUTPUT`` is where it
records (nowhere without it), with ``check_sync`` where ``CHECK_SYNC`` is set. ``EXPLICIT`` calls
``recorder.step()`` after each step. ``DIE_AT`` ends the process with SIGKILL after that step.
"""

import atexit
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import diagnose

STATUS = [1]


@atexit.register
def end():
    """Leave once the recorder's hooks had their turn: this one was registered before them.

    What PyTorch destroys after Python is done aborts now and then on a busy machine ("terminate
    called without an active exception"), whether the job records itself or not.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STATUS[0])


def train(rank, folder, after_step):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(rank)
    with open(folder / f"loss.{rank}", "w", buffering=1) as log:
        for step in range(60):
            loss = model(torch.randn(16, 64, generator=data)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            log.write(f"{step} {loss.item().hex()}\n")
            after_step()
            if step == int(os.environ.get("DIE_AT", "-1")):
                os.kill(os.getpid(), signal.SIGKILL)


def main():
    signal.alarm(90)
    folder = Path(os.environ["JOB_DIR"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    output = os.environ.get("OUTPUT")
    if output is None:
        train(rank, folder, lambda: None)
    else:
        check_sync = "CHECK_SYNC" in os.environ
        with diagnose.record(output, steps=3, skip=20, check_sync=check_sync) as recorder:
            train(rank, folder, recorder.step if "EXPLICIT" in os.environ else lambda: None)
        (folder / f"children.{rank}").write_text(
            Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    STATUS[0] = 0
