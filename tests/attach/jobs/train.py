"""A small DDP job over gloo that knows nothing of diagnose; deterministic, whatever watches it.

Each rank writes ``pid.RANK`` and one line a step, ``STEP LOSS-AS-HEX-FLOAT``, to ``loss.RANK``
in ``JOB_DIR``. It ends after ``STEPS`` steps, or soon after a file ``stop`` appears there (all
ranks after the same step), and is killed by its own alarm after ``LIFETIME`` seconds.

Further knobs: ``SLEEP`` seconds a step, ``HIDDEN`` and ``DEPTH`` of the model, ``ACCUMULATE``
backward passes a step, ``SLOW_AT`` and ``SLOW_SLEEP``: from that step on sleep so long.
"""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def knob(name, default):
    return type(default)(os.environ.get(name, default))


def main():
    signal.alarm(knob("LIFETIME", 120))
    folder = Path(os.environ["JOB_DIR"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hidden, depth = knob("HIDDEN", 64), knob("DEPTH", 4)
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(hidden, hidden), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    weight = torch.randn(hidden, hidden, generator=torch.Generator().manual_seed(99))
    weight /= hidden**0.5
    last = knob("STEPS", 200)
    store = dist.distributed_c10d._get_default_store()
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    with open(folder / f"loss.{rank}", "w", buffering=1) as log:
        step = 0
        while step < last:
            for _ in range(knob("ACCUMULATE", 1)):
                x = torch.randn(16, hidden, generator=data)
                loss = (model(x) - torch.tanh(x @ weight)).pow(2).mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            log.write(f"{step} {loss.item().hex()}\n")
            slow = step >= knob("SLOW_AT", 10**9)
            time.sleep(knob("SLOW_SLEEP", 0.0) if slow else knob("SLEEP", 0.0))
            # Rank 0 announces the end a few steps ahead; an all-reduce a step keeps the others
            # from being further ahead than that. No collective of ours: the job stays as it is.
            if rank == 0 and last == knob("STEPS", 200) and (folder / "stop").exists():
                last = min(last, step + 4)
                store.set("stop", str(last))
            elif rank != 0 and store.check(["stop"]):
                last = int(store.get("stop"))
            step += 1
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"done.{rank}").write_text(str(step))


if __name__ == "__main__":
    main()
