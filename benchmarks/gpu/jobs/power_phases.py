"""More than a minute of steps made of long phases: compute, communication, both, idle.

    torchrun --nproc-per-node 2 benchmarks/gpu/jobs/power_phases.py --out DIR

Each phase lasts about PHASE_S, several refreshes of the power sensor, so that the power
of each class can be read off directly and compared with what is estimated from the trace.
Kernels are long, so that the trace of a minute stays small.
Writes ``rankNNNNN.trace.json.gz``, ``rankNNNNN.phases.csv`` (phase, begin and end in unix
time) and nothing else; telemetry is recorded beside it by ``python -m diagnose.telemetry``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from diagnose.agent import environment

PHASE_S = 0.8
MATRIX = 16384
TRAFFIC_BYTES = 2 << 30


class Phases:
    """One rank's buffers, and its phases; counts are the same on every rank."""

    def __init__(self, device: torch.device) -> None:
        options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.left, self.right = (torch.randn(MATRIX, MATRIX, **options) for _ in range(2))
        self.product = torch.empty(MATRIX, MATRIX, **options)
        self.traffic = torch.zeros(TRAFFIC_BYTES // 2, **options)
        self.num_products = self._count(self._multiply, PHASE_S)
        self.num_transfers = self._count(self._send, PHASE_S)

    def compute(self) -> None:
        for _ in range(self.num_products):
            self._multiply()

    def communication(self) -> None:
        for _ in range(self.num_transfers):
            self._send()

    def overlap(self) -> None:
        works = [dist.all_reduce(self.traffic, async_op=True) for _ in range(self.num_transfers)]
        self.compute()
        for work in works:
            work.wait()

    def idle(self) -> None:
        time.sleep(PHASE_S)

    def _multiply(self) -> None:
        torch.mm(self.left, self.right, out=self.product)

    def _send(self) -> None:
        dist.all_reduce(self.traffic)

    def _count(self, work: Callable[[], None], seconds: float) -> int:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        return max(1, round(seconds * 10 / self.slowest(time.perf_counter() - begin)))

    def slowest(self, seconds: float) -> float:
        """The greatest value of all ranks; the same on each."""
        greatest = torch.tensor([seconds], device=self.left.device)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
        return float(greatest.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=70)
    arguments = parser.parse_args()
    device = torch.device(
        "cuda", 0 if "ALL_ON_GPU0" in os.environ else int(os.environ["LOCAL_RANK"])
    )
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    phases = Phases(device)
    (arguments.out / "alive").touch()
    begin = time.perf_counter()
    one_step(phases, 0)
    num_steps = math.ceil(arguments.seconds / phases.slowest(time.perf_counter() - begin))
    rows = []
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as recorded:
        for step in range(num_steps):
            with record_function(f"ProfilerStep#{step}"):
                rows += one_step(phases, step)
    name = arguments.out / f"rank{dist.get_rank():05d}"
    with open(f"{name}.phases.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "phase", "begin_unix_ns", "end_unix_ns"])
        writer.writerows(rows)
    recorded.export_chrome_trace(f"{name}.trace.json.gz")
    Path(f"{name}.env.json").write_text(json.dumps(environment.collect(device.index), indent=1))
    dist.barrier()
    dist.destroy_process_group()


def one_step(phases: Phases, step: int) -> list[list[Any]]:
    """All phases once: number of the step, name, begin and end in unix time."""
    rows: list[list[Any]] = []
    for phase in (phases.compute, phases.communication, phases.overlap, phases.idle):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.time_ns()
        phase()
        torch.cuda.synchronize()
        rows.append([step, phase.__name__, begin, time.time_ns()])
    return rows


if __name__ == "__main__":
    main()
