"""Missing synchronisation: two accesses of the same memory that nothing orders.

``sequence`` is what the host did, ``order`` what of it is over before what may begin,
``touches`` which memory each kernel, copy and operator of the host uses, ``conflicts`` the
pairs that nothing orders. Where a recording does not tell whether two accesses are ordered, they
count as ordered. Invisible: kernels without an operator, as custom ones and those inside of CUDA
graphs, and what lies in other steps than the recorded ones; ``coverage`` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from diagnose.analysis import Analyzer, Unavailable
from diagnose.analyzers.hazards import nccl
from diagnose.analyzers.hazards.conflicts import Pair, unordered
from diagnose.analyzers.hazards.order import order_of
from diagnose.analyzers.hazards.reuse import Reuse
from diagnose.analyzers.hazards.sequence import MOST_LANES, can_follow, sequence_of
from diagnose.analyzers.hazards.touches import Touches, accesses_of, touches_of
from diagnose.schema import NO_ROW, NULL, Column, Detail, TableSchema
from diagnose.trace import Table, Trace


class Hazard(IntEnum):
    """What the later access does to what the earlier one did."""

    READ_AFTER_WRITE = 0
    WRITE_AFTER_READ = 1
    WRITE_AFTER_WRITE = 2
    REUSE = 3
    """The allocator gave the memory out again in between."""


class MissingCall(IntEnum):
    """What would order the two."""

    WAIT_STREAM = 0
    """The later stream waits for the earlier."""
    WORK_WAIT = 1
    """``Work.wait()`` of the collective, before the later access."""
    RECORD_STREAM = 2
    """``tensor.record_stream`` of the earlier stream, before the tensor is freed."""
    SYNCHRONIZE = 3
    """The host waits for the copy."""


HAZARDS = TableSchema(
    "hazards",
    "two accesses of the same memory that nothing orders, the earlier as the host asked for them",
    (
        Column("source", "int32", "index into `Trace.sources`"),
        Column("hazard", "int8", "what the later does to the earlier", choices=Hazard),
        Column("missing", "int8", "the call that would order them", choices=MissingCall),
        Column("first_op", "int32", "the earlier operator", text=True),
        Column("second_op", "int32", "the later operator", text=True),
        Column("first_op_row", "int64", "row of `host_ops` of the earlier operator"),
        Column("second_op_row", "int64", "row of `host_ops` of the later operator"),
        Column("first_gpu_op_row", "int64", "its last operation; none: the host", nullable=True),
        Column("second_gpu_op_row", "int64", "its first operation; none: the host", nullable=True),
        Column("first_stream", "int64", "its stream; unknown: the host", nullable=True),
        Column("second_stream", "int64", "its stream; unknown: the host", nullable=True),
        Column("begin", "int64", "first byte of the storage that both touch", "bytes"),
        Column("end", "int64", "last such byte, not included", "bytes"),
        Column(
            "certain",
            "bool",
            "whether both touch the same byte for certain; else strided views may pass each other "
            "by, or an operator has work on several streams",
        ),
        Column(
            "gap_ns",
            "int64",
            "from the end of the earlier to the start of the later as recorded; negative: the "
            "later had begun by then",
            "ns",
        ),
        Column("step_row", "int64", "row of `steps` of the later access", nullable=True),
    ),
    order=("source", "second_op_row"),
)


def hazards(trace: Trace) -> Table | Unavailable:
    """Uses of the same memory that nothing orders: one row for each missing wait and step.

    Both operators, streams and bytes, what the later does to the earlier, which call is missing,
    and how close they came. Rows are those of ``recording.trace``. Not seen are kernels without an
    operator, the inside of CUDA graphs, and steps that were not recorded.
    """
    if not len(trace.gpu_ops):
        return Unavailable("nothing ran on a GPU")
    if not len(trace.accesses):
        return Unavailable(
            "no execution trace of the same steps was read beside the profile",
            "record with `diagnose attach --check-sync`",
        )
    columns: dict[str, list[int]] = {column.name: [] for column in HAZARDS.columns}
    sources = followed(trace)
    if not sources:
        return Unavailable(f"each process has more than {MOST_LANES} streams")
    for source in sources:
        for row in _of_source(trace, source):
            for name, values in columns.items():
                values.append(row[name])
    made = {c.name: np.array(columns[c.name], c.dtype) for c in HAZARDS.columns}
    by = np.lexsort((made["first_op_row"], made["second_op_row"], made["source"]))
    return Table(HAZARDS, {name: values[by] for name, values in made.items()}, trace.strings)


def followed(trace: Trace) -> tuple[int, ...]:
    """The sources with an execution trace and no more streams than can be followed."""
    sources = np.unique(trace.accesses["source"]).tolist()
    return tuple(source for source in sources if can_follow(trace, source))


def _of_source(trace: Trace, source: int) -> Iterator[dict[str, int]]:
    accesses = accesses_of(trace, source)
    sequence = sequence_of(trace, source, accesses.touched)
    num_nodes = len(sequence.gpu_rows) + len(accesses.touched)
    order = order_of(sequence.actions, num_nodes, sequence.num_lanes)
    touches = touches_of(trace, accesses, sequence.gpu_rows, order)
    gpu_row = np.append(sequence.gpu_rows, np.full(len(accesses.touched), NO_ROW))
    reused = Reuse.of(trace, source)
    own_stream = nccl.on_a_stream_of_its_own(trace, source)
    for pair in unordered(touches, order):
        nodes = touches.last[pair.first], touches.first[pair.second]
        if touches.life[pair.first] != touches.life[pair.second]:
            over, begun = trace.host_ops["end_ns"][touches.host_op_row[[pair.first, pair.second]]]
            if gpu_row[nodes[0]] >= 0:
                over = trace.gpu_ops["end_ns"][gpu_row[nodes[0]]]
            if reused.may_be_known(int(over), int(begun)):
                continue
        rows = gpu_row[list(nodes)].tolist()
        yield {"source": source, **_row(trace, touches, pair, rows, own_stream)}


def _row(
    trace: Trace, touches: Touches, pair: Pair, gpu_rows: list[int], own_stream: frozenset[int]
) -> dict[str, int]:
    first, second = touches.host_op_row[[pair.first, pair.second]].tolist()
    ops, hosts = trace.gpu_ops, trace.host_ops
    one, other = gpu_rows
    over = ops["end_ns"][one] if one >= 0 else hosts["end_ns"][first]
    begun = ops["start_ns"][other] if other >= 0 else hosts["start_ns"][second]
    hazard = _hazard(touches, pair)
    return {
        "hazard": hazard,
        "missing": _missing(hazard, on_host=one < 0 or other < 0, is_work=first in own_stream),
        "first_op": int(hosts["name"][first]),
        "second_op": int(hosts["name"][second]),
        "first_op_row": first,
        "second_op_row": second,
        "first_gpu_op_row": one,
        "second_gpu_op_row": other,
        "first_stream": int(ops["stream"][one]) if one >= 0 else NULL,
        "second_stream": int(ops["stream"][other]) if other >= 0 else NULL,
        "begin": max(touches.begin[[pair.first, pair.second]].tolist()),
        "end": min(touches.end[[pair.first, pair.second]].tolist()),
        "certain": int(pair.certain),
        "gap_ns": int(begun) - int(over),
        "step_row": int(ops["step_row"][other]) if other >= 0 else NO_ROW,
    }


def _hazard(touches: Touches, pair: Pair) -> Hazard:
    if touches.life[pair.first] != touches.life[pair.second]:
        return Hazard.REUSE
    if not touches.writes[pair.first]:
        return Hazard.WRITE_AFTER_READ
    return Hazard.WRITE_AFTER_WRITE if touches.writes[pair.second] else Hazard.READ_AFTER_WRITE


def _missing(hazard: Hazard, *, on_host: bool, is_work: bool) -> MissingCall:
    if on_host:
        return MissingCall.SYNCHRONIZE
    if hazard == Hazard.REUSE:
        return MissingCall.RECORD_STREAM
    return MissingCall.WORK_WAIT if is_work else MissingCall.WAIT_STREAM


ANALYZERS = (Analyzer("hazards", Detail.ALL, HAZARDS, hazards),)
