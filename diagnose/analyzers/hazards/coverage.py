"""How much of a recording the search for hazards can see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.analyzers.hazards.sequence import (
    can_follow,
    launched,
    unnamed_records,
    unnamed_waits,
)
from diagnose.analyzers.hazards.touches import accesses_of
from diagnose.schema import Call
from diagnose.trace import Trace


@dataclass(frozen=True)
class Coverage:
    """Counts of one source.

    ``num_gpu_ops`` is the sum of the five below it; each operation is in the first that fits.
    """

    source: int
    num_gpu_ops: int
    """Kernels, copies and fills."""
    num_launched_before: int
    """Their launch or stream is not recorded."""
    num_known: int
    """An access of their operator to memory of a GPU is known."""
    num_in_graphs: int
    """Launched with a CUDA graph."""
    num_without_operator: int
    """No operator is around their launch."""
    num_unknown: int
    """Their operator has no tensors, or is not in the execution trace."""
    num_unnamed_waits: int
    """Waits of streams of which the event is unknown: all before them counts as waited for."""
    num_unnamed_records: int
    num_without_schema: int
    """Operators that do not say which tensors they write, as the reader noted."""
    num_host_accesses: int
    """Operators of the host on memory that copies use."""
    analysed: bool
    """False: it has more streams than can be followed, and nothing is said."""


def coverage(trace: Trace) -> tuple[Coverage, ...]:
    """Of each source with an execution trace; empty without any."""
    sources = np.unique(trace.accesses["source"]).tolist()
    return tuple(_of_source(trace, source) for source in sources)


def _of_source(trace: Trace, source: int) -> Coverage:
    ops, hosts = trace.gpu_ops, trace.host_ops
    accesses = accesses_of(trace, source)
    own = np.flatnonzero(ops["source"] == source)
    external = ops["external_id"][own]
    known_launch = np.isin(own, launched(trace, source))
    left = known_launch.copy()

    def take(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
        taken = left & mask
        left[taken] = False
        return int(taken.sum())

    num_known = take(np.isin(external, accesses.table["external_id"][~accesses.on_cpu]))
    calls = trace.launches["call"]
    in_graph = np.zeros(len(own), bool)
    in_graph[known_launch] = calls[ops["launch_row"][own[known_launch]]] == Call.GRAPH_LAUNCH
    num_in_graphs = take(in_graph)
    operators = hosts["external_id"][(hosts["source"] == source) & (hosts["external_id"] > 0)]
    num_without_operator = take(~np.isin(external, operators))
    notes = [
        note.count
        for note in trace.notes
        if note.code == "operators-without-schema" and note.source == source
    ]
    return Coverage(
        source=source,
        num_gpu_ops=len(own),
        num_launched_before=len(own) - int(known_launch.sum()),
        num_known=num_known,
        num_in_graphs=num_in_graphs,
        num_without_operator=num_without_operator,
        num_unknown=int(left.sum()),
        num_unnamed_waits=unnamed_waits(trace, source),
        num_unnamed_records=unnamed_records(trace, source),
        num_without_schema=sum(notes),
        num_host_accesses=len(accesses.touched),
        analysed=can_follow(trace, source),
    )
