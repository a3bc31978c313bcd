"""A distributed job whose truth is known: who was late, by how much, whose clock is off.

The job is played in true time, in nanoseconds, with collectives that start on each
rank when that rank arrives and end on all when the last has arrived and the bytes
have moved. Each rank then sees it through its host's clock, and its recording may
lack leading collectives or their metadata. ::

    job = Job(4, host_of=lambda rank: f"node{rank // 2}")
    job.clock("node1", offset_ns=3_000_000)
    for step in range(3):
        job.begin_step(step)
        for rank in range(4):
            job.compute(rank, 1_000_000 + 200_000 * (rank == 2))
        job.collective("allreduce", range(4), 1 << 25, 300_000)
    trace = job.trace()
    files = job.write(folder)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diagnose import schema
from diagnose.schema import NO_ROW, NULL, Activity, Detail, Kind
from diagnose.trace import Source, Strings, Table, Trace

BASE_NS = 1_759_276_800_000_000_000
ZERO_NS = 5_000_000_000
KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "coalesced": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
SPELLING = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "broadcast": "broadcast",
    "all_to_all": "all_to_all",
}


@dataclass
class Operation:
    """One kernel of one rank. ``truth`` numbers the collective it is a part of."""

    start: int
    end: int
    name: str
    stream: int
    step: int | None
    collective: str | None = None
    num_bytes: int = 0
    group: str | None = None
    ranks: str | None = None
    group_size: int = 0
    sequence: int | None = None
    peer: int | None = None
    truth: int | None = None
    told: bool = True


@dataclass
class Job:
    """Ranks, the hosts they run on, and what they did so far."""

    num_ranks: int
    host_of: Callable[[int], str | None] = lambda rank: "node0"
    seed: int = 0
    end_jitter_ns: int = 2_000
    """Ranks leave a collective up to this much after the first."""
    base_ns: int | None = BASE_NS
    sequences: bool = False
    marks: bool = True
    clocks: dict[str | None, tuple[int, float]] = field(default_factory=dict)
    operations: list[list[Operation]] = field(init=False)
    steps: list[list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.operations = [[] for _ in range(self.num_ranks)]
        self.steps = [[] for _ in range(self.num_ranks)]
        self.now = [ZERO_NS] * self.num_ranks
        self.free: dict[tuple[int, int], int] = {}
        self.step: int | None = None
        self.num_collectives = 0
        self.counters: dict[Any, int] = {}

    def clock(self, host: str | None, *, offset_ns: int = 0, drift: float = 0.0) -> None:
        """What the host's clock shows: true time + offset_ns + drift * time since the start."""
        self.clocks[host] = (offset_ns, drift)

    def begin_step(self, number: int) -> None:
        self.step = number
        for rank in range(self.num_ranks):
            self.steps[rank].append((number, self.now[rank]))

    def compute(self, rank: int, duration_ns: int) -> None:
        start = self.now[rank]
        self.now[rank] = start + duration_ns
        self._add(rank, Operation(start, self.now[rank], "gemm_kernel", 7, self.step))

    def wait_host(self, rank: int, duration_ns: int) -> None:
        """The GPU idles: the host launches later."""
        self.now[rank] += duration_ns

    def collective(
        self,
        name: str,
        ranks: Iterable[int],
        num_bytes: int,
        transfer_ns: int,
        *,
        group: str = "0",
        stream: int = 20,
        blocking: bool = True,
        shorten: bool = False,
    ) -> None:
        """``blocking``: compute goes on after the collective; else beside it."""
        members = list(ranks)
        arrivals = [max(self.now[r], self.free.get((r, stream), 0)) for r in members]
        leave = max(arrivals) + transfer_ns
        text = str(members)
        if shorten and len(members) > 2:
            text = f"[{members[0]}, {members[1]}, ...]"
        sequence = self._count((group, text))
        for rank, start in zip(members, arrivals, strict=True):
            end = leave + int(self.random.integers(0, self.end_jitter_ns + 1))
            operation = Operation(start, end, KERNELS[name], stream, self.step, name, num_bytes)
            operation.group, operation.ranks = group, text
            operation.group_size, operation.truth = len(members), self.num_collectives
            operation.sequence = sequence if self.sequences else None
            self._add(rank, operation)
            self.free[rank, stream] = end
            if blocking:
                self.now[rank] = end
        self.num_collectives += 1

    def join(self, rank: int, stream: int = 20) -> None:
        """Compute waits for the communication so far."""
        self.now[rank] = max(self.now[rank], self.free.get((rank, stream), 0))

    def send(
        self,
        sender: int,
        receiver: int,
        num_bytes: int,
        transfer_ns: int,
        *,
        group: str = "pp",
        ranks: Iterable[int] | None = None,
        blocking_sender: bool = False,
    ) -> None:
        """The sender goes on computing unless it blocks; the receiver waits for the data."""
        members = list(range(self.num_ranks) if ranks is None else ranks)
        # Each direction has its own stream, as ProcessGroupNCCL has for each pair.
        out, into = 100 + receiver, 200 + sender
        arrive_out = max(self.now[sender], self.free.get((sender, out), 0))
        arrive_in = max(self.now[receiver], self.free.get((receiver, into), 0))
        end = max(arrive_out, arrive_in) + transfer_ns
        for rank, start, stream, name, peer in (
            (sender, arrive_out, out, "send", receiver),
            (receiver, arrive_in, into, "recv", sender),
        ):
            operation = Operation(start, end, KERNELS[name], stream, self.step, name, num_bytes)
            operation.group, operation.ranks = group, str(members)
            operation.group_size, operation.peer = len(members), peer
            operation.truth = self.num_collectives
            self._add(rank, operation)
            self.free[rank, stream] = end
        self.now[receiver] = end
        if blocking_sender:
            self.now[sender] = end
        self.num_collectives += 1

    def drop_leading(self, rank: int, count: int) -> None:
        """The recording of a rank begins ``count`` collectives later than the others'."""
        rest = iter(self.operations[rank])
        kept, dropped = [], 0
        for operation in rest:
            if operation.collective is not None and dropped < count:
                dropped += 1
                continue
            kept.append(operation)
        self.operations[rank] = kept

    def forget_metadata(self, rank: int, count: int) -> None:
        """The first collectives of a rank were launched before the window."""
        first = [op for op in self.operations[rank] if op.collective is not None][:count]
        for operation in first:
            operation.told, operation.step = False, None

    def _count(self, key: Any) -> int:
        self.counters[key] = self.counters.get(key, -1) + 1
        return self.counters[key]

    def _add(self, rank: int, operation: Operation) -> None:
        self.operations[rank].append(operation)

    def shown(self, rank: int, time: int) -> int:
        """What the rank's clock shows at a true time."""
        offset, drift = self.clocks.get(self.host_of(rank), (0, 0.0))
        return time + offset + round(drift * (time - ZERO_NS))

    def trace(self, ranks: Iterable[int] | None = None, *, known_ranks: bool = True) -> Trace:
        """The trace of these ranks (default: all), without files."""
        return _Tables(self, list(range(self.num_ranks) if ranks is None else ranks)).trace(
            known_ranks
        )

    def truth(self, ranks: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """(rank, number of the collective) of each row of ``trace(ranks).collectives``."""
        return [
            (rank, op.truth)
            for rank in (range(self.num_ranks) if ranks is None else ranks)
            for _, op in _by_start(self.operations[rank])
            if op.truth is not None
        ]

    def write(self, folder: Path, ranks: Iterable[int] | None = None) -> list[Path]:
        """One Kineto file a rank."""
        from tests.builder import TraceBuilder

        paths = []
        for rank in range(self.num_ranks) if ranks is None else ranks:
            builder = TraceBuilder(rank, self.num_ranks, zero_us=0, base_ns=self.base_ns)
            if self.host_of(rank) is not None:
                builder.top["host_name"] = self.host_of(rank)
            marks = self._marks(rank)
            for number, start, end in marks:
                builder.step(number, start / 1000, (end - start) / 1000)
            begins = {number: start for number, start, _ in marks}
            for place, operation in enumerate(self.operations[rank]):
                start = self.shown(rank, operation.start)
                duration = self.shown(rank, operation.end) - start
                launch = None
                if operation.step in begins:
                    launch = (begins[operation.step] + 10 * place) / 1000
                meta = _metadata(operation)
                builder.gpu(
                    "kernel",
                    operation.name,
                    start / 1000,
                    duration / 1000,
                    stream=operation.stream,
                    launch=launch,
                    **meta,
                )
            paths.append(builder.write(folder))
        return paths

    def _marks(self, rank: int) -> list[tuple[int, int, int]]:
        begins = self.steps[rank]
        if not self.marks or not begins:
            return []
        ends = [start for _, start in begins[1:]] + [self.now[rank]]
        return [
            (number, self.shown(rank, start), self.shown(rank, end))
            for (number, start), end in zip(begins, ends, strict=True)
        ]


def _by_start(operations: list[Operation]) -> list[tuple[int, Operation]]:
    return sorted(enumerate(operations), key=lambda pair: (pair[1].start, pair[0]))


def _metadata(operation: Operation) -> dict[str, Any]:
    if operation.collective is None or not operation.told:
        return {}
    elements = operation.num_bytes // 2
    inside, outside = elements, elements
    if operation.collective == "_allgather_base":
        inside = elements // operation.group_size
    if operation.collective == "_reduce_scatter_base":
        outside = elements // operation.group_size
    found: dict[str, Any] = {
        "Collective name": operation.collective,
        "In msg nelems": inside,
        "Out msg nelems": outside,
        "dtype": "BFloat16",
        "Group size": operation.group_size,
        "Process Group Name": operation.group,
        "Process Group Ranks": operation.ranks,
    }
    if operation.sequence is not None:
        found["Seq"] = operation.sequence
    if operation.peer is not None:
        found["Dst Rank" if operation.collective == "send" else "Src Rank"] = operation.peer
    return found


class _Tables:
    """The job's tables, column by column."""

    def __init__(self, job: Job, ranks: list[int]) -> None:
        self.job, self.ranks = job, ranks
        self.codes: dict[str, int] = {}

    def code(self, text: str | None) -> int:
        return NO_ROW if text is None else self.codes.setdefault(text, len(self.codes))

    def trace(self, known_ranks: bool) -> Trace:
        steps, step_rows = self._steps()
        ops, collectives = self._operations(step_rows)
        strings = Strings(self.codes)
        sources = tuple(
            Source(
                f"rank{rank}.json",
                rank if known_ranks else None,
                "metadata" if known_ranks else None,
                host=self.job.host_of(rank),
                base_ns=self.job.base_ns,
            )
            for rank in self.ranks
        )
        empty = {
            table.name: Table(table, table.empty(), strings)
            for table in (schema.HOST_OPS, schema.LAUNCHES, schema.SYNCS, schema.SAMPLES)
        }
        return Trace(
            sources,
            strings,
            gpu_ops=_table(schema.GPU_OPS, ops, strings),
            collectives=_table(schema.COLLECTIVES, collectives, strings),
            steps=_table(schema.STEPS, steps, strings),
            detail=Detail.ALL,
            **empty,
        )

    def _steps(self) -> tuple[list[dict[str, Any]], dict[tuple[int, int], int]]:
        rows: list[dict[str, Any]] = []
        found: dict[tuple[int, int], int] = {}
        for source, rank in enumerate(self.ranks):
            for number, start, end in self.job._marks(rank):
                found[source, number] = len(rows)
                row = {"op_id": 10**9 + len(rows), "source": source, "number": number}
                row |= {"thread": self.code("1/1"), "name": self.code(f"ProfilerStep#{number}")}
                rows.append(row | {"start_ns": start, "end_ns": end})
        return rows, found

    def _operations(
        self, step_rows: dict[tuple[int, int], int]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        collectives: list[dict[str, Any]] = []
        for source, rank in enumerate(self.ranks):
            for correlation, op in _by_start(self.job.operations[rank]):
                communicates = op.collective is not None
                row: dict[str, Any] = {"op_id": len(rows), "source": source, "device": 0}
                row |= {"stream": op.stream, "start_ns": self.job.shown(rank, op.start)}
                row |= {"end_ns": self.job.shown(rank, op.end), "kind": Kind.KERNEL}
                activity = Activity.COMMUNICATION if communicates else Activity.COMPUTE
                row |= {"activity": activity, "certain": True, "name": self.code(op.name)}
                row["correlation"] = correlation
                if op.step is not None:
                    row["step_row"] = step_rows.get((source, op.step), NO_ROW)
                rows.append(row)
                if communicates:
                    collectives.append(self._collective(len(rows) - 1, op))
        return rows, collectives

    def _collective(self, row: int, op: Operation) -> dict[str, Any]:
        assert op.collective is not None
        spelling = SPELLING.get(op.collective, "send_recv")
        found: dict[str, Any] = {"gpu_op_row": row, "origin": self.code("kernel")}
        if not op.told:
            by_name = "send_recv" if "SendRecv" in op.name else spelling
            return found | {"collective": self.code(by_name), "origin": self.code("name")}
        found |= {"name": self.code(op.collective), "collective": self.code(spelling)}
        found |= {"bytes": op.num_bytes, "group": self.code(op.group)}
        found |= {"group_size": op.group_size, "group_ranks": self.code(op.ranks)}
        optional = {"sequence": op.sequence, "peer": op.peer}
        return found | {key: value for key, value in optional.items() if value is not None}


def _table(table: schema.TableSchema, rows: list[dict[str, Any]], strings: Strings) -> Table:
    columns = {}
    for column in table.columns:
        unknown = NO_ROW if column.is_reference else NULL
        if column.dtype in ("int8", "bool"):
            unknown = 0
        columns[column.name] = np.array([r.get(column.name, unknown) for r in rows], column.dtype)
    return Table(table, columns, strings)
