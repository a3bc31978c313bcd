"""Edges of the dependency graph as they are found: kind, how sure, and when they let go."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers._idle_causes.causes import Confidence

Array = npt.NDArray[np.int64]


class Edge(IntEnum):
    """Why a node waits for another."""

    LAUNCH = 0
    """A GPU operation for the call that launched it."""
    STREAM_ORDER = 1
    """A GPU operation for the one before it on its stream."""
    EVENT_WAIT = 2
    """A stream that waits for an event of another stream."""
    OBSERVED_ORDER = 3
    """It began right after the other ended, where waits are not recorded (CUDA graphs, AMD)."""
    ROOM = 4
    """It was free to begin, but did only as an operation of another stream ended: that one
    held the multiprocessors (collectives give them back channel by channel)."""
    THREAD_ORDER = 5
    """A host call after the one before it on its thread."""
    HANDOFF = 6
    """A host call after one on another thread of the process, which did nothing in between."""
    HOST_WAIT = 7
    """A host call that returned when a GPU operation had ended."""


class Edges(NamedTuple):
    """Equal-length arrays in any order. ``ready_ns``: the node could not begin before."""

    from_node: Array
    to_node: Array
    kind: npt.NDArray[np.int8]
    confidence: npt.NDArray[np.int8]
    ready_ns: Array

    @classmethod
    def of(
        cls,
        from_node: Array,
        to_node: Array,
        kind: Edge,
        confidence: Confidence | npt.NDArray[np.int8],
        ready_ns: Array,
    ) -> Edges:
        size = from_node.size
        return cls(
            from_node.astype(np.int64),
            to_node.astype(np.int64),
            np.full(size, kind, np.int8),
            np.broadcast_to(np.asarray(confidence, np.int8), (size,)),
            ready_ns,
        )

    def take(self, which: npt.NDArray[Any]) -> Edges:
        """The chosen edges, by mask or index."""
        return Edges(*(column[which] for column in self))

    @classmethod
    def joined(cls, parts: list[Edges]) -> Edges:
        return cls(
            np.concatenate([part.from_node for part in parts]),
            np.concatenate([part.to_node for part in parts]),
            np.concatenate([part.kind for part in parts]),
            np.concatenate([part.confidence for part in parts]),
            np.concatenate([part.ready_ns for part in parts]),
        )
