"""Four steps of 100 us with calls of the allocator in those that a test names."""

from __future__ import annotations

from collections.abc import Sequence

from tests.builder import TraceBuilder


def allocating(calls: Sequence[str], steps: Sequence[int]) -> TraceBuilder:
    """The GPU idles from 50 to 90 us of each step; each of the calls takes 15 us of that."""
    builder = TraceBuilder(rank=0, world_size=1)
    for step in range(4):
        at = 100.0 * step
        builder.step(step, at, 100)
        builder.kernel("gemm", at + 2, 48, launch=at)
        for place, name in enumerate(calls if step in steps else ()):
            builder.call(name, at + 50 + 15 * place, 15)
        builder.kernel("gemm", at + 90, 10, launch=at + 85)
    return builder
