"""Tiny Kineto traces that read like what they describe. Times are microseconds from zero.

::

    builder = TraceBuilder(rank=0, world_size=2)
    builder.step(7, 0, 100)
    builder.kernel("gemm", 10, 50, launch=5)
    builder.collective("allreduce", 60, 20, elements=1024, launch=8)
    path = builder.write(tmp_path)  # a file, read by the real reader
    trace = build_trace(builder)  # a Trace, without a file and without the reader

An operation with ``launch=`` gets a host call at that time, tied to it by a
correlation id; without, it was launched before the window. ``parent=`` names the
operator around the launch; ``operator`` adds one and returns its External id.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnose.readers.raw import GROUPS, RawFile, empty
from diagnose.schema import NULL, Detail, Kind
from diagnose.trace import Trace

if TYPE_CHECKING:
    from diagnose.readers.assemble import Origin

HOST_PID, MAIN_THREAD = 4242, 4242
COLLECTIVE_KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
COPY_NAMES = {
    "DtoD": "Memcpy DtoD (Device -> Device)",
    "HtoD": "Memcpy HtoD (Pinned -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pinned)",
    "PtoP": "Memcpy PtoP (Device -> Device)",
}

KINDS = {"kernel": Kind.KERNEL, "gpu_memcpy": Kind.MEMCPY, "gpu_memset": Kind.MEMSET}
ARGUMENTS = {
    "stream": "stream",
    "correlation": "correlation",
    "external_id": "External id",
    "bytes": "bytes",
    "graph_node": "graph node id",
    "from_device": "fromDevice",
    "to_device": "toDevice",
    "sequence": "Sequence number",
    "event_id": "wait_on_cuda_event_id",
    "event_stream": "wait_on_stream",
    "event_correlation": "wait_on_cuda_event_record_corr_id",
}
METADATA = {
    "name": "Collective name",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "dtype": "dtype",
    "group": "Process Group Name",
    "group_size": "Group size",
    "group_ranks": "Process Group Ranks",
    "sequence": "Seq",
    "source_rank": "Src Rank",
    "destination_rank": "Dst Rank",
    "in_addresses": "Input Tensors start",
    "out_addresses": "Output Tensors start",
}


class TraceBuilder:
    """One process. Every method but ``write``, ``text`` and ``raw`` adds events."""

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        zero_us: int = 5_000_000,
        base_ns: int | None = 1_759_276_800_000_000_000,
        pid: int | str = HOST_PID,
    ) -> None:
        self.rank, self.world_size, self.zero_us, self.pid = rank, world_size, zero_us, pid
        self.events: list[dict[str, Any]] = []
        self.process_names: dict[str, str] = {}
        self.top: dict[str, Any] = {"schemaVersion": 1}
        if base_ns is not None:
            self.top["baseTimeNanoseconds"] = base_ns
        if rank is not None:
            self.top["distributedInfo"] = {"backend": "nccl", "rank": rank}
            if world_size is not None:
                self.top["distributedInfo"]["world_size"] = world_size
        self._ids = 0

    def _next(self) -> int:
        self._ids += 1
        return 1000 + self._ids

    def event(self, cat: str | None, name: str, start: float, duration: float, **rest: Any) -> None:
        """Any complete event. ``pid``, ``tid`` and ``args`` as they would stand in the file."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": self.pid, "tid": MAIN_THREAD}
        event |= {"ts": self.zero_us + start, "dur": duration, **rest}
        self.events.append(event)

    def process(self, pid: int | str, name: str) -> TraceBuilder:
        self.process_names[str(pid)] = name
        self.events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        return self

    def step(
        self, number: int, start: float, duration: float, *, thread: int = MAIN_THREAD
    ) -> TraceBuilder:
        self.event("user_annotation", f"ProfilerStep#{number}", start, duration, tid=thread)
        return self

    def operator(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        category: str = "cpu_op",
        thread: int = MAIN_THREAD,
        **args: Any,
    ) -> int:
        """A host operator or annotation; returns its External id."""
        external = self._next()
        args = {"External id": external, **args}
        self.event(category, name, start, duration, tid=thread, args=args)
        return external

    def call(
        self,
        name: str,
        start: float,
        duration: float = 2,
        *,
        thread: int = MAIN_THREAD,
        parent: int | None = None,
        correlation: int | None = None,
    ) -> int:
        """A host call into the GPU runtime; returns its correlation id."""
        correlation = self._next() if correlation is None else correlation
        args = {"correlation": correlation} | _given({"External id": parent})
        category = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
        self.event(category, name, start, duration, tid=thread, args=args)
        return correlation

    def gpu(
        self,
        category: str,
        name: str,
        start: float,
        duration: float,
        *,
        stream: int = 7,
        device: int = 0,
        launch: float | None = None,
        thread: int = MAIN_THREAD,
        parent: int | None = None,
        correlation: int | None = None,
        pid: int | str | None = None,
        **args: Any,
    ) -> TraceBuilder:
        """GPU work; ``kernel``, ``collective`` and ``copy`` are shorter."""
        if launch is not None:
            by = {"kernel": "cudaLaunchKernel", "gpu_memset": "cudaMemsetAsync"}
            correlation = self.call(
                by.get(category, "cudaMemcpyAsync"),
                launch,
                thread=thread,
                parent=parent,
                correlation=correlation,
            )
        elif correlation is None:
            correlation = self._next()
        own = {"device": device, "stream": stream, "correlation": correlation}
        own |= _given({"External id": parent}) | args
        pid = device if pid is None else pid
        self.event(category, name, start, duration, pid=pid, tid=stream, args=own)
        return self

    def kernel(self, name: str, start: float, duration: float, **rest: Any) -> TraceBuilder:
        return self.gpu("kernel", name, start, duration, **rest)

    def copy(self, kind: str, start: float, duration: float, **rest: Any) -> TraceBuilder:
        """``kind``: DtoD, HtoD, DtoH or PtoP."""
        return self.gpu("gpu_memcpy", COPY_NAMES[kind], start, duration, **rest)

    def collective(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        elements: int = 1024,
        out_elements: int | None = None,
        dtype: str = "BFloat16",
        group: str = "0",
        group_size: int = 2,
        stream: int = 20,
        **rest: Any,
    ) -> TraceBuilder:
        """An NCCL kernel with the metadata that PyTorch writes on it."""
        meta = metadata(name, elements, out_elements, dtype, group, group_size)
        kernel = COLLECTIVE_KERNELS[name]
        return self.gpu("kernel", kernel, start, duration, stream=stream, **meta, **rest)

    def sync(
        self,
        kind: str,
        start: float,
        duration: float,
        *,
        stream: int = -1,
        device: int = 0,
        correlation: int | None = None,
    ) -> TraceBuilder:
        args = {"cuda_sync_kind": kind, "stream": stream, "device": device}
        args |= {"correlation": self._next() if correlation is None else correlation}
        self.event("cuda_sync", kind, start, duration, pid=device, tid=stream, args=args)
        return self

    def text(self) -> str:
        """The file as Kineto would write it."""
        top = "".join(f"  {json.dumps(key)}: {json.dumps(self.top[key])},\n" for key in self.top)
        events = ",\n".join("  " + json.dumps(_rounded(event)) for event in self.events)
        return "{\n" + top + '  "traceEvents": [\n' + events + "\n  ]\n}\n"

    def write(self, folder: Path, name: str | None = None) -> Path:
        """Write the file; ``name`` ending in ``.gz`` compresses it."""
        label = "trace" if self.rank is None else f"rank{self.rank:05d}.trace"
        path = folder / (name or f"{label}.json")
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    def raw(self, path: str = "trace.json") -> RawFile:
        """What a reader returns for this file, made without the reader."""
        return _Columns(self, path).raw


def metadata(
    name: str,
    elements: int = 1024,
    out_elements: int | None = None,
    dtype: str = "BFloat16",
    group: str = "0",
    group_size: int = 2,
) -> dict[str, Any]:
    """The arguments that PyTorch writes on a collective."""
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements if out_elements is None else out_elements,
        "dtype": dtype,
        "Group size": group_size,
        "Process Group Name": group,
        "Process Group Ranks": str(list(range(group_size))),
    }


def build_trace(
    *builders: TraceBuilder, detail: Detail = Detail.ALL, origins: Sequence[Origin] = ()
) -> Trace:
    """Assemble builders into a Trace, in memory and without the reader.

    ``origins``: what is known of each from outside of its file.
    """
    from diagnose.names import Classifier
    from diagnose.readers.assemble import Origin, assemble_file, join

    classifier = Classifier.load()
    parts = []
    for number, builder in enumerate(builders):
        raw = builder.raw(f"file{number}.json")
        if detail < Detail.LAUNCHES:
            raw.calls, raw.syncs = empty("calls"), empty("syncs")
        origin = origins[number] if origins else Origin()
        parts += assemble_file(raw, origin, classifier, detail)
    return join(parts, detail=detail)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _rounded(event: dict[str, Any]) -> dict[str, Any]:
    return event | {key: round(event[key], 3) for key in ("ts", "dur") if key in event}


class _Columns:
    """A deliberately plain reader of a builder's events."""

    def __init__(self, builder: TraceBuilder, path: str) -> None:
        self.codes: dict[str, int] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
        for order, event in enumerate(builder.events):
            if event["ph"] == "X":
                self._add(order, event)
        columns = {
            group: {
                name: np.array([row.get(name, self._absent(dtype)) for row in rows], dtype)
                for name, dtype in GROUPS[group].items()
            }
            for group, rows in self.rows.items()
        }
        self.raw = RawFile(path, **columns, metadata=dict(builder.top))
        self.raw.strings = list(self.codes)
        self.raw.process_names = dict(builder.process_names)
        self.raw.base_ns = builder.top.get("baseTimeNanoseconds")
        self.raw.num_bytes, self.raw.num_events = len(builder.text()), len(builder.events)

    @staticmethod
    def _absent(dtype: str) -> int:
        return NULL if dtype == "int64" else -1

    def _code(self, text: Any) -> int:
        return -1 if text is None else self.codes.setdefault(str(text), len(self.codes))

    def _add(self, order: int, event: dict[str, Any]) -> None:
        args, category = event.get("args", {}), event["cat"]
        start = round(event["ts"] * 1000)
        row = {key: args[name] for key, name in ARGUMENTS.items() if name in args}
        row |= {"order": order, "start_ns": start, "end_ns": start + round(event["dur"] * 1000)}
        row |= {"name": self._code(event["name"]), "category": self._code(category)}
        row |= {"thread": self._code(f"{event['pid']}/{event['tid']}")}
        row |= {"process": self._code(event["pid"]), "device": args.get("device", NULL)}
        if category in KINDS:
            row["kind"] = KINDS[category]
            shape = f"grid {args['grid']} block {args['block']}" if "grid" in args else None
            row["launch_shape"] = self._code(shape)
            self.rows["gpu"].append(row)
        elif category in ("cuda_runtime", "cuda_driver"):
            self.rows["calls"].append(row)
        elif category == "cuda_sync":
            row["sync_kind"] = self._code(args["cuda_sync_kind"])
            unknown = {key: NULL for key, value in row.items() if value == -1 and key != "name"}
            self.rows["syncs"].append(row | unknown)
        else:
            self.rows["host"].append(row)
        if "Collective name" in args:
            meta: dict[str, Any] = {"order": order, "on_gpu": category in KINDS}
            for column, name in METADATA.items():
                text = GROUPS["collectives"][column] == "int32"
                if name in args:
                    meta[column] = self._code(args[name]) if text else args[name]
            self.rows["collectives"].append(meta)
