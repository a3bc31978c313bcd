"""The same compute alone and beside traffic: collectives and point to point.

    torchrun --nproc-per-node 2 benchmarks/gpu/jobs/contention.py --out DIR

How many multiprocessors the traffic takes is bounded from outside by ``NCCL_MAX_CTAS``.
Every round is one step: traffic with the compute beside it, then the same compute alone.
Without a profiler the two blocks are timed by CUDA events (``timed.json``: the truth),
then the same rounds are traced (``rankNNNNN.trace.json.gz``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from diagnose.agent import environment

PATTERNS = ("all_reduce", "all_gather", "point_to_point", "reduce_scatter")
MATRIX = 4096
NUM_MATRIX_PRODUCTS = 12
NUM_ADDITIONS = 6
TRAFFIC_BYTES = 256 << 20
TRAFFIC_MS = 12.0


class Rounds:
    """One rank's buffers, and the blocks of work made of them."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.left, self.right = (torch.randn(MATRIX, MATRIX, **options) for _ in range(2))
        self.product = torch.empty(MATRIX, MATRIX, **options)
        self.long = [torch.randn(64 << 20, **options) for _ in range(2)]
        self.sum = torch.empty(64 << 20, **options)
        self.traffic = torch.zeros(TRAFFIC_BYTES // 2, **options)
        self.gathered = torch.empty(self.world * TRAFFIC_BYTES // 2, **options)
        self.repeats = {pattern: self._calibrated(pattern) for pattern in PATTERNS}

    def send(self, pattern: str) -> list[Any]:
        if pattern == "all_reduce":
            return [dist.all_reduce(self.traffic, async_op=True)]
        if pattern == "all_gather":
            return [dist.all_gather_into_tensor(self.gathered, self.traffic, async_op=True)]
        if pattern == "reduce_scatter":
            return [dist.reduce_scatter_tensor(self.traffic, self.gathered, async_op=True)]
        half = len(self.traffic) // 2
        there, here = self.traffic[:half], self.traffic[half:]
        peer = (self.rank + 1) % self.world
        operations = [dist.P2POp(dist.isend, there, peer), dist.P2POp(dist.irecv, here, peer)]
        return list(dist.batch_isend_irecv(operations))

    def multiply(self) -> None:
        for _ in range(NUM_MATRIX_PRODUCTS):
            torch.mm(self.left, self.right, out=self.product)

    def add(self) -> None:
        for _ in range(NUM_ADDITIONS):
            torch.add(self.long[0], self.long[1], out=self.sum)

    def beside(self, pattern: str, compute: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        works = [work for _ in range(self.repeats[pattern]) for work in self.send(pattern)]
        took = _timed(compute)
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        return took()

    def alone(self, compute: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        took = _timed(compute)
        torch.cuda.synchronize()
        return took()

    def _calibrated(self, pattern: str) -> int:
        """How often a transfer is repeated to last TRAFFIC_MS; the same on every rank."""
        once = []
        for _ in range(5):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            took = _timed(lambda: [work.wait() for work in self.send(pattern)])
            torch.cuda.synchronize()
            once.append(took())
        longest = torch.tensor([statistics.median(once[1:])], device=self.left.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return max(1, round(TRAFFIC_MS / float(longest.item())))


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    return lambda: float(begin.elapsed_time(end))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    device = torch.device(
        "cuda", 0 if "ALL_ON_GPU0" in os.environ else int(os.environ["LOCAL_RANK"])
    )
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rounds = Rounds(device)
    (arguments.out / "alive").touch()
    work = {"multiply": rounds.multiply, "add": rounds.add}
    for pattern in PATTERNS:
        rounds.beside(pattern, rounds.multiply)
    timed = {
        pattern: {
            name: {
                "beside_ms": [rounds.beside(pattern, compute) for _ in range(arguments.rounds)],
                "alone_ms": [rounds.alone(compute) for _ in range(arguments.rounds)],
            }
            for name, compute in work.items()
        }
        for pattern in PATTERNS
    }
    content = {"max_ctas": os.environ.get("NCCL_MAX_CTAS"), "repeats": rounds.repeats}
    path = arguments.out / f"rank{rounds.rank:05d}.timed.json"
    path.write_text(json.dumps({**content, "timed": timed}))
    trace(rounds, work, arguments.rounds, arguments.out)
    said = json.dumps(environment.collect(device.index), indent=1)
    (arguments.out / f"rank{rounds.rank:05d}.env.json").write_text(said)
    dist.barrier()
    dist.destroy_process_group()


def trace(rounds: Rounds, work: dict[str, Callable[[], None]], num: int, folder: Path) -> None:
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    step = 0
    with profile(activities=activities, record_shapes=True) as recorded:
        for pattern in PATTERNS:
            for _ in range(num):
                with record_function(f"ProfilerStep#{step}"):
                    for compute in work.values():
                        rounds.beside(pattern, compute)
                        rounds.alone(compute)
                step += 1
    recorded.export_chrome_trace(str(folder / f"rank{rounds.rank:05d}.trace.json.gz"))


if __name__ == "__main__":
    main()
