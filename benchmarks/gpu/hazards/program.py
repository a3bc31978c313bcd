"""What a program of the gallery is: one hazard when ``racy``, and none else.

A builder makes the tensors and gives back the step. Every step writes other values, so that
what it should have waited for can be told from what was there before; it returns what has to
come out. The device is synchronised between steps by whoever runs them, never inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.gpu.hazards.gpu import Gpu

STEPS = 5
"""Two to warm up, three to record."""

Step = Callable[[int], torch.Tensor]


class Program(NamedTuple):
    """One hazard: two accesses of the same memory, and the call that would order them."""

    build: Callable[[Gpu, bool], Step]
    kind: str
    """``read-after-write``, ``write-after-read``, ``write-after-write`` or ``reuse``: what the
    second access does after the first, in program order."""
    first: str
    """Operator and stream of the earlier access in program order."""
    second: str
    missing: str
    sanitizer: bool
    """Whether torch's sanitizer is expected to find it (from its source)."""
    recorded: str = "yes"
    """Whether a recording shows it: ``yes``, ``host`` (one access is the host's), ``no``."""
    distributed: bool = False
    racy_steps: tuple[int, ...] = tuple(range(STEPS))

    @property
    def name(self) -> str:
        """The builder's."""
        return self.build.__name__


def outputs(make: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """One result per step, made beforehand: an allocation may wait for the device, no race then."""
    return [make() for _ in range(STEPS)]
