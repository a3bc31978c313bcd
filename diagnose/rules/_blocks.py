"""Blocks of kernels, and which kernels fill the multiprocessors of a GPU."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.schema import Activity
from diagnose.trace import Gpu, Table

Array = npt.NDArray[np.int64]
_GRID = re.compile(r"grid \[(\d{1,10}), ?(\d{1,10}), ?(\d{1,10})\]")
_MOST = 1 << 62


def blocks_of(ops: Table) -> Array:
    """Blocks of the grid of each GPU operation; 0 where its launch does not say, as of a copy."""
    codes, place = np.unique(ops["launch_shape"], return_inverse=True)
    blocks = [_blocks(ops.strings[code]) if code >= 0 else 0 for code in codes.tolist()]
    return np.array(blocks, np.int64)[place.reshape(-1)]


def _blocks(shape: str) -> int:
    found = _GRID.search(shape)
    if found is None:
        return 0
    x, y, z = map(int, found.groups())
    return min(x * y * z, _MOST)


def filling(facts: Facts, gpu: Gpu) -> Table | None:
    """The kernels of compute with a block for every multiprocessor, or more, by start.

    None where the number of multiprocessors is not known. A kernel whose grid is not known is
    not among them. That such a kernel leaves room for another is possible: its blocks may be
    small.
    """
    number = facts.sm_count(gpu.source)
    if number is None:
        return None
    ops = facts.trace.gpu_ops.take(facts.trace.on(gpu))
    return ops.take((ops["activity"] == Activity.COMPUTE) & (blocks_of(ops) >= number))
