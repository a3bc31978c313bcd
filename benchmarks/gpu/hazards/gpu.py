"""What the programs use of CUDA; with ``HAZARDS_DRY=1`` the same on the CPU, without streams."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DRY = os.environ.get("HAZARDS_DRY") == "1"
CYCLES = 20_000_000
"""Of one sleep: about 10 ms at 1.98 GHz, longer than the host takes to launch what follows."""


class _Idle:
    """A stream or an event that does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> bool:
        return True

    wait_stream = wait_event = record = synchronize = query = _nothing

    def record_event(self, *_: Any) -> _Idle:
        return self


class _Replay:
    """A graph that runs its function again."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.replay = work


class Gpu:
    """One GPU. Sizes are those at which a race is won by the wrong side."""

    def __init__(self) -> None:
        self.device = torch.device("cpu" if DRY else "cuda:0")
        self.width = 64 if DRY else 4096
        self.large = 1 << 12 if DRY else 1 << 28
        """Elements of the tensors that are copied or reduced: 1 GiB of float."""
        self.medium = 1 << 10 if DRY else 1 << 24
        """Elements of what the host copies: 64 MiB of float."""
        self._cycles = 0 if DRY else CYCLES
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def square(self, value: float = 0.0) -> torch.Tensor:
        """A matrix filled with a value."""
        return torch.full((self.width, self.width), float(value), device=self.device)

    def flat(self, elements: int, value: float = 0.0) -> torch.Tensor:
        """A vector filled with a value."""
        return torch.full((elements,), float(value), device=self.device)

    def pinned(self, elements: int, value: float = 0.0) -> torch.Tensor:
        """A vector in page-locked host memory."""
        return torch.full((elements,), float(value), pin_memory=not DRY)

    def identity(self) -> torch.Tensor:
        """A matrix whose product with another is the other, exactly, and takes its time."""
        return torch.eye(self.width, device=self.device)

    def stream(self) -> Any:
        """A new stream, from torch's pool."""
        return _Idle() if DRY else torch.cuda.Stream()

    def event(self) -> Any:
        """A new event, without timing."""
        return _Idle() if DRY else torch.cuda.Event()

    def current(self) -> Any:
        """The current stream."""
        return _Idle() if DRY else torch.cuda.current_stream()

    def on(self, stream: Any) -> Any:
        """A context in which work goes to the stream."""
        return contextlib.nullcontext() if DRY else torch.cuda.stream(stream)

    def sleep(self, times: float = 1.0) -> None:
        """Keep the current stream busy for about 10 ms, with no memory touched."""
        if not DRY:
            torch.cuda._sleep(int(self._cycles * times))

    def synchronize(self) -> None:
        """Wait for the device."""
        if not DRY:
            torch.cuda.synchronize()

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Tell the allocator that the stream uses the tensor."""
        if not DRY:
            tensor.record_stream(stream)

    def graph(self, work: Callable[[], Any]) -> Any:
        """A CUDA graph of what the function launches."""
        if DRY:
            return _Replay(work)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def distributed(self) -> Any:
        """``torch.distributed`` with a group of this process alone: NCCL; dry: gloo."""
        import torch.distributed as dist

        if not dist.is_initialized():
            self._folder = tempfile.TemporaryDirectory()
            place = f"file://{self._folder.name}/store"
            more: dict[str, Any] = {} if DRY else {"device_id": self.device}
            backend = "gloo" if DRY else "nccl"
            dist.init_process_group(backend, init_method=place, rank=0, world_size=1, **more)
        return dist

    def halve(self, tensor: torch.Tensor) -> Any:
        """A reduction in flight that halves the tensor in place.

        A sum over one rank launches nothing; one with a factor runs NCCL's ``oneRankReduce``.
        """
        dist = self.distributed()
        if DRY:
            tensor.mul_(0.5)
            return dist.all_reduce(tensor, async_op=True)
        operation = dist._make_nccl_premul_sum(0.5)
        return dist.all_reduce(tensor, op=operation, async_op=True)

    def close(self) -> None:
        """End the process group."""
        if self._folder is not None:
            import torch.distributed as dist

            with contextlib.suppress(Exception):
                dist.destroy_process_group()
            self._folder.cleanup()
            self._folder = None


class _Synchronised(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Before as well: replays and sleeps are no operators.
        self._gpu.synchronize()
        result = func(*args, **(kwargs or {}))
        self._gpu.synchronize()
        return result


@contextlib.contextmanager
def synchronised(gpu: Gpu) -> Iterator[None]:
    """The device is waited for before and after every operator: what is meant to come out."""
    with _Synchronised(gpu):
        yield
    gpu.synchronize()
