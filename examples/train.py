"""A small data-parallel training job, to try `diagnose` on: a transformer on random tokens.

    torchrun --nproc-per-node 2 examples/train.py --seconds 60

It trains on GPUs over NCCL where there are any, else on the CPU over gloo. It knows
nothing of `diagnose`: while it runs, record a few of its steps from another terminal with
`diagnose attach --all -o recording`, and read `diagnose report recording`.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """A few transformer blocks between an embedding and a projection onto the tokens."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.projection = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of each token at each place."""
        return self.projection(self.blocks(self.embedding(tokens)))


def main() -> None:
    """Train until the time is over; every rank makes the same number of steps."""
    parser = argparse.ArgumentParser(description="A small data-parallel training job.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train")
    parser.add_argument("--width", type=int, help="of the model (default: 1024, CPU: 128)")
    parser.add_argument("--depth", type=int, help="of the model (default: 12, CPU: 2)")
    parser.add_argument("--batch", type=int, help="sequences a step (default: 16, CPU: 4)")
    parser.add_argument("--length", type=int, help="of a sequence (default: 512, CPU: 64)")
    arguments = parser.parse_args()

    # Started without torchrun, it trains alone.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        # Two ranks on one GPU need gloo: NCCL refuses a device that is used twice.
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
        dist.init_process_group("gloo" if shared else "nccl")
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    rank = dist.get_rank()
    width = arguments.width or (1024 if on_gpu else 128)
    depth = arguments.depth or (12 if on_gpu else 2)
    batch = arguments.batch or (16 if on_gpu else 4)
    length = arguments.length or (512 if on_gpu else 64)
    vocabulary = 8192 if on_gpu else 512

    torch.manual_seed(0)
    model = Model(width, depth, vocabulary).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=3e-4, fused=on_gpu)
    tokens = torch.randint(vocabulary, (batch, length + 1), device=device)

    end = time.monotonic() + arguments.seconds
    step, told = 0, time.monotonic()
    going_on = torch.ones(1, device=device)
    while going_on.item():
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            scores = parallel(tokens[:, :-1])
            loss = nn.functional.cross_entropy(
                scores.flatten(0, 1).float(), tokens[:, 1:].flatten()
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0:  # rank 0's clock decides for all
            going_on.fill_(float(time.monotonic() < end))
            dist.broadcast(going_on, 0)
        if rank == 0 and time.monotonic() - told >= 5:
            told = time.monotonic()
            print(f"step {step}: loss {loss.item():.4f}", flush=True)  # noqa: T201
    if rank == 0:
        print(f"finished after {step} steps", flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
