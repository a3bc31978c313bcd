"""What of a collective is latency, and what grows with its bytes: a line through its transfers.

duration = latency + bytes / rate, for collectives of one kind and group of a recording. Only
the latency is used: the rest of a recorded duration is scaled with the bytes, so what was
measured is kept. With too few different sizes the latency is not known; the range then
is that of nccl-tests for messages of a few bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.replay.change import Assume
from diagnose.replay.changes._which import collectives_of, is_communication
from diagnose.replay.model import Array, Mask, Model
from diagnose.schema import NULL

ASSUMED_NS = (5_000, 15_000, 40_000)
"""Latency of a collective where it cannot be fitted: nccl-tests on messages of a few bytes show
from about 5 us (two GPUs on NVLink) over 15 us (eight) to 40 us (some nodes)."""
SPREAD = 2.0
"""Largest over smallest size from which a line is fitted."""

Floats = npt.NDArray[np.float64]


class Latencies(NamedTuple):
    """Of each operation in ns; 0 for what is no communication. Shape (ops,)."""

    low: Floats
    likely: Floats
    high: Floats
    fitted: bool
    """Whether all of them come from a line through this recording's sizes."""

    def where_few_gain(self, assume: Assume) -> Floats:
        """For a change that makes fewer messages: it gains least where latency is low."""
        return (self.low, self.likely, self.high)[assume]

    def where_many_cost(self, assume: Assume) -> Floats:
        """For a change that makes more messages, or smaller ones."""
        return (self.high, self.likely, self.low)[assume]


NOT_FITTED = (
    "The collectives of a kind have (almost) one size, so their latency is assumed: 15 us (5 to 40 "
    "us), at most the shortest one recorded."
)


def latencies(model: Model) -> Latencies:
    """The latency of each collective, fitted per kind, group and GPU stream."""
    ops = model.operations
    found = np.zeros((3, model.num_ops))
    communication = is_communication(model)
    fitted = True
    for rows in _alike(model, communication):
        duration = ops.duration_ns[rows].astype(np.float64)
        shortest = float(duration.min())
        line = _latency(ops.bytes[rows], duration)
        fitted &= line is not None
        few, likely, many = ASSUMED_NS if line is None else (line[0], line[1], line[2])
        for column, value in enumerate((few, likely, many)):
            found[column, rows] = min(float(value), shortest)
    return Latencies(found[0], found[1], found[2], fitted)


def _alike(model: Model, chosen: Mask) -> list[Array]:
    """Indices of communication of one kind, group and size of group, over all GPUs."""
    rows = np.flatnonzero(chosen)
    if not rows.size:
        return []
    said = collectives_of(model)
    key = np.stack([said.kind[rows], said.group[rows], said.group_size[rows]], 1)
    _, label = np.unique(key, axis=0, return_inverse=True)
    label = label.reshape(-1)
    order = np.argsort(label, kind="stable")
    return [rows[part] for part in np.split(order, np.flatnonzero(np.diff(label[order])) + 1)]


def _latency(num_bytes: Array, duration: Floats) -> tuple[float, float, float] | None:
    """Least, likely and most latency by a line through the median of each size; None: no line.

    The slope is the weighted median of the slopes between all sizes (Theil and Sen),
    weighted by how much they tell: pairs x distance. The ends are the quartiles of
    what single collectives leave over that slope.
    """
    known = (num_bytes != NULL) & (num_bytes > 0)
    size, inverse, count = np.unique(num_bytes[known], return_inverse=True, return_counts=True)
    if size.size < 2 or size[-1] < SPREAD * size[0]:
        return None
    inverse = inverse.reshape(-1)
    duration = duration[known]
    middle = np.array([np.median(duration[inverse == one]) for one in range(size.size)])
    # Many sizes tell no more than some: the pairs stay few.
    if size.size > 64:
        kept = np.linspace(0, size.size - 1, 64).astype(np.int64)
        size, middle, count = size[kept], middle[kept], count[kept]
    one, other = np.triu_indices(size.size, 1)
    distance = (size[other] - size[one]).astype(np.float64)
    slopes = (middle[other] - middle[one]) / distance
    weights = distance * np.minimum(count[one], count[other])
    order = np.argsort(slopes)
    reached = np.cumsum(weights[order])
    slope = float(slopes[order][np.searchsorted(reached, reached[-1] / 2)])
    if slope <= 0:
        return None
    rest = duration - slope * num_bytes[known]
    low, likely, high = (max(float(value), 0.0) for value in np.percentile(rest, (25, 50, 75)))
    return low, likely, high
