"""Where one rank of a pair computes: a GPU, or a CPU with tiny sizes (``PAIRS_DRY=1``)."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
_GROUP_TIMEOUT = timedelta(seconds=60)


class Place:
    """Device, rank and world size of this process; of more than one, its process group."""

    def __init__(self) -> None:
        self.dry = os.environ.get("PAIRS_DRY") == "1"
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device("cpu") if self.dry else self._gpu()
        if self.world == 1:
            return
        if self.dry:
            dist.init_process_group("gloo", timeout=_GROUP_TIMEOUT)
        else:
            dist.init_process_group("nccl", device_id=self.device, timeout=_GROUP_TIMEOUT)
        self.slowest(0.0)  # the first collective makes the communicator

    def _gpu(self) -> torch.device:
        shared = self.world == 1 or "ALL_ON_GPU0" in os.environ
        device = torch.device("cuda", 0 if shared else int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device

    def of(self, real: T, tiny: T) -> T:
        """The size for a GPU, or the one with which a CPU goes through the same code."""
        return tiny if self.dry else real

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)

    def meet(self) -> None:
        """Wait for all work of this rank, then for all ranks."""
        self.synchronize()
        if self.world > 1:
            dist.barrier()
            self.synchronize()

    def slowest(self, value: float) -> float:
        """The greatest value of all ranks; the same on each."""
        if self.world == 1:
            return value
        greatest = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
        return float(greatest.item())

    def facts(self) -> dict[str, Any]:
        """What a result has to say of the place."""
        return {"device": self.device.type, "world": self.world}

    def close(self) -> None:
        if self.world > 1:
            dist.barrier()
            dist.destroy_process_group()
