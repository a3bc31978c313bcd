"""Every table and column of a trace: type, unit, meaning. The source of ``docs/schema.md``.

How "unknown" is stored. Integer values: ``NULL`` (the smallest int64). Row
references and dictionary codes: ``NO_ROW`` (-1, as pandas codes do). Floats:
NaN. A DataFrame shows all of them as missing; code asks ``Table.known``. No
column uses 0, -1 or "" to say "unknown" of a value.

Time is int64 nanoseconds on the clock of the source, half open
``[start_ns, end_ns)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

NULL = int(np.iinfo(np.int64).min)
NO_ROW = -1


class Detail(IntEnum):
    """How much of a file is kept. Each level includes the ones before."""

    GPU = 0
    """GPU operations, step marks and what classifies collectives."""
    LAUNCHES = 1
    """And calls into the GPU runtime, synchronisations and annotations."""
    SHAPES = 2
    """And of each GPU operation the input shapes of the operator that launched it."""
    ALL = 3
    """And every operator and annotation on the host."""


class Kind(IntEnum):
    """What the profiler calls a GPU operation."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class Activity(IntEnum):
    """What a GPU operation does for the job."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


class Call(IntEnum):
    """What a host call into the GPU runtime is for."""

    LAUNCH = 0
    GRAPH_LAUNCH = 1
    COPY = 2
    FILL = 3
    SYNCHRONIZE = 4
    EVENT = 5
    ALLOCATE = 6
    OTHER = 7


@dataclass(frozen=True)
class Column:
    """One column. ``dtype`` is numpy's; ``unit`` is "" for codes, counts and ids."""

    name: str
    dtype: str
    meaning: str
    unit: str = ""
    nullable: bool = False
    text: bool = False
    """The integers are codes into the trace's string dictionary."""
    choices: type[IntEnum] | None = None

    @property
    def is_reference(self) -> bool:
        return self.text or self.name.endswith("_row")


@dataclass(frozen=True)
class TableSchema:
    """A table: its name, what one row is, its columns and total order."""

    name: str
    row: str
    columns: tuple[Column, ...]
    order: tuple[str, ...] = ()

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name!r}")

    def empty(self) -> dict[str, npt.NDArray[np.generic]]:
        return {column.name: np.empty(0, column.dtype) for column in self.columns}


def check(schema: TableSchema, columns: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Raise ValueError unless names, dtypes and lengths are those of the schema."""
    expected = [column.name for column in schema.columns]
    if sorted(columns) != sorted(expected):
        raise ValueError(f"{schema.name}: columns {sorted(columns)}, expected {sorted(expected)}")
    lengths = {len(columns[name]) for name in expected}
    if len(lengths) > 1:
        raise ValueError(f"{schema.name}: columns of different lengths {sorted(lengths)}")
    for column in schema.columns:
        dtype = columns[column.name].dtype
        if dtype != np.dtype(column.dtype):
            raise ValueError(f"{schema.name}.{column.name}: {dtype}, expected {column.dtype}")


_OP_ID = Column("op_id", "int64", "place in reading order over the whole trace; unique")
_SOURCE = Column("source", "int32", "index into `Trace.sources`: the file (and process) it is from")
_START = Column("start_ns", "int64", "start on the clock of the source", "ns")
_END = Column("end_ns", "int64", "end, not included", "ns")
_NAME = Column("name", "int32", "name as written in the file", text=True)
_THREAD = Column("thread", "int32", "host thread as `pid/tid`", text=True)
_STREAM = Column("stream", "int64", "stream (queue) number on its device", nullable=True)
_CORRELATION = Column(
    "correlation", "int64", "ties a host call to the GPU operations it launched", nullable=True
)
_EXTERNAL = Column("external_id", "int64", "External id of the operator around it", nullable=True)

GPU_OPS = TableSchema(
    "gpu_ops",
    "one kernel, copy or fill on a GPU",
    (
        _OP_ID,
        _SOURCE,
        Column("device", "int32", "device number within its process"),
        _STREAM,
        _START,
        _END,
        Column("kind", "int8", "kernel, copy or fill", choices=Kind),
        Column("activity", "int8", "compute, communication or memory", choices=Activity),
        Column("certain", "bool", "whether the class is known rather than likely"),
        _NAME,
        Column("launch_shape", "int32", "grid and block as written", nullable=True, text=True),
        Column(
            "shapes",
            "int32",
            "input shapes of the operator that launched it, as written; unknown below "
            "`Detail.SHAPES`",
            nullable=True,
            text=True,
        ),
        _CORRELATION,
        _EXTERNAL,
        Column("bytes", "int64", "bytes copied or filled", "bytes", nullable=True),
        Column("launch_row", "int64", "row of `launches` that launched it", nullable=True),
        Column("step_row", "int64", "row of `steps` during which it was launched", nullable=True),
    ),
    order=("source", "device", "start_ns", "op_id"),
)

HOST_OPS = TableSchema(
    "host_ops",
    "one operator, annotation or profiler span on a host thread",
    (
        _OP_ID,
        _SOURCE,
        _THREAD,
        _START,
        _END,
        Column("category", "int32", "category as written: cpu_op, user_annotation...", text=True),
        _NAME,
        _EXTERNAL,
        Column("sequence", "int64", "autograd sequence number", nullable=True),
        Column("shapes", "int32", "input shapes as written", nullable=True, text=True),
    ),
    order=("source", "thread", "start_ns", "op_id"),
)

LAUNCHES = TableSchema(
    "launches",
    "one host call into the GPU runtime or driver (launches, copies, waits, allocations)",
    (
        _OP_ID,
        _SOURCE,
        _THREAD,
        _START,
        _END,
        Column("call", "int8", "what the call is for", choices=Call),
        _NAME,
        _CORRELATION,
        _EXTERNAL,
    ),
    order=("source", "start_ns", "op_id"),
)

SYNCS = TableSchema(
    "syncs",
    "one wait the profiler saw: a stream for an event, or the host for a stream, event, device",
    (
        _OP_ID,
        _SOURCE,
        Column("device", "int32", "device number within its process"),
        Column(
            "stream", "int64", "stream that waits; unknown for waits of the host", nullable=True
        ),
        _START,
        _END,
        Column("sync_kind", "int32", "kind as written, as `Stream Wait Event`", text=True),
        _CORRELATION,
        Column("event_id", "int64", "the CUDA event waited for", nullable=True),
        Column("event_stream", "int64", "stream on which that event was recorded", nullable=True),
        Column(
            "event_correlation", "int64", "correlation of the call that recorded it", nullable=True
        ),
    ),
    order=("source", "start_ns", "op_id"),
)

COLLECTIVES = TableSchema(
    "collectives",
    "one GPU operation that is communication, with what is known of the collective",
    (
        Column("gpu_op_row", "int64", "row of `gpu_ops`"),
        Column("name", "int32", "collective as written, as `allreduce`", nullable=True, text=True),
        Column(
            "collective",
            "int32",
            "the same in one spelling, as `all_reduce`",
            nullable=True,
            text=True,
        ),
        Column("in_elements", "int64", "elements of the input", nullable=True),
        Column("out_elements", "int64", "elements of the output", nullable=True),
        Column("dtype", "int32", "element type as written", nullable=True, text=True),
        Column("bytes", "int64", "message size as nccl-tests counts it", "bytes", nullable=True),
        Column("group", "int32", "process group name", nullable=True, text=True),
        Column("group_size", "int64", "ranks in the group", nullable=True),
        Column("group_ranks", "int32", "ranks of the group as written", nullable=True, text=True),
        Column("sequence", "int64", "sequence number within the group", nullable=True),
        Column("peer", "int64", "the other rank of a point-to-point operation", nullable=True),
        Column(
            "in_addresses", "int32", "where its inputs begin, as written", nullable=True, text=True
        ),
        Column(
            "out_addresses",
            "int32",
            "where its outputs begin, as written",
            nullable=True,
            text=True,
        ),
        Column(
            "origin",
            "int32",
            "where the metadata is from: kernel, record_param_comms or name",
            text=True,
        ),
    ),
    order=("gpu_op_row",),
)

ACCESSES = TableSchema(
    "accesses",
    "one tensor that an operator reads, writes or makes, from an execution trace recorded beside "
    "the profile",
    (
        _SOURCE,
        Column("host_op_row", "int64", "row of `host_ops` of the operator"),
        Column(
            "external_id",
            "int64",
            "the operator's External id, by which its launches and GPU operations name it",
            nullable=True,
        ),
        Column("tensor", "int64", "tensor as the execution trace numbers it; reused once freed"),
        Column("storage", "int64", "its memory, numbered by the address at which that begins"),
        Column("device", "int32", "where the memory is, as `cuda:0` or `cpu`", text=True),
        Column("begin", "int64", "first byte within the storage", "bytes"),
        Column("end", "int64", "last byte within the storage, not included", "bytes"),
        Column(
            "dense",
            "bool",
            "whether it is known that all bytes of the range are touched; else a view with gaps "
            "spans it",
        ),
        Column("reads", "bool", "whether the operator reads it"),
        Column("writes", "bool", "whether the operator writes it"),
        Column("new", "bool", "whether the operator was given the memory by the allocator"),
    ),
    order=("source", "host_op_row"),
)

STEPS = TableSchema(
    "steps",
    "one training step as the host marked it (`ProfilerStep#N`)",
    (
        _OP_ID,
        _SOURCE,
        _THREAD,
        _NAME,
        Column("number", "int64", "the step's number", nullable=True),
        _START,
        _END,
    ),
    order=("source", "start_ns", "op_id"),
)

_SAMPLE_COLUMNS = (
    ("power_avg_w", "power, averaged by the driver", "W"),
    ("power_instant_w", "power now", "W"),
    ("energy_j", "energy since the driver was loaded", "J"),
    ("sm_clock_mhz", "clock of the multiprocessors", "MHz"),
    ("mem_clock_mhz", "clock of the memory", "MHz"),
    ("temperature_c", "temperature of the GPU", "C"),
    ("gpu_util_pct", "share of time with a kernel running", "%"),
    ("mem_util_pct", "share of time with memory traffic", "%"),
    ("clocks_event_reasons", "why clocks are lowered (bit mask)", ""),
    ("power_limit_w", "enforced power limit", "W"),
    ("gpm_sm_util_pct", "multiprocessors in use", "%"),
    ("gpm_sm_occupancy_pct", "occupancy of the multiprocessors", "%"),
    ("gpm_tensor_util_pct", "tensor cores in use", "%"),
    ("gpm_dram_bw_util_pct", "memory bandwidth in use", "%"),
    ("gpm_nvlink_tx_mib_s", "sent over NVLink", "MiB/s"),
    ("gpm_pcie_tx_mib_s", "sent over PCIe", "MiB/s"),
    ("gpm_nvlink_rx_mib_s", "received over NVLink", "MiB/s"),
    ("gpm_pcie_rx_mib_s", "received over PCIe", "MiB/s"),
    ("power_sample_w", "power at a moment the driver chose (rows of their own)", "W"),
    ("mem_temperature_c", "temperature of the memory", "C"),
    ("mem_used_bytes", "memory in use, by all processes", "bytes"),
    ("pcie_tx_mib_s", "sent over PCIe, over 20 ms", "MiB/s"),
    ("pcie_rx_mib_s", "received over PCIe, over 20 ms", "MiB/s"),
    ("pcie_tx_bytes", "sent over PCIe, ever-growing counter", "bytes"),
    ("pcie_rx_bytes", "received over PCIe, ever-growing counter", "bytes"),
    ("nvlink_tx_bytes", "payload sent over NVLink, ever-growing counter", "bytes"),
    ("nvlink_rx_bytes", "payload received over NVLink, ever-growing counter", "bytes"),
    ("nvlink_crc_errors", "damaged packets on NVLink, ever-growing counter", ""),
    ("nvlink_replay_errors", "repeated packets on NVLink, ever-growing counter", ""),
    ("nvlink_recovery_errors", "links of NVLink set up anew, ever-growing counter", ""),
    ("pcie_replay_errors", "repeated packets on PCIe, ever-growing counter", ""),
    ("pcie_correctable_errors", "corrected errors on PCIe, ever-growing counter", ""),
    ("ecc_volatile_corrected", "bit errors corrected since the driver was loaded", ""),
    ("ecc_volatile_uncorrected", "bit errors not corrected since the driver was loaded", ""),
    ("ecc_aggregate_corrected", "bit errors corrected in the life of the GPU", ""),
    ("ecc_aggregate_uncorrected", "bit errors not corrected in the life of the GPU", ""),
    ("xid_error", "number of an error the driver reported (rows of their own)", ""),
)

SAMPLES = TableSchema(
    "samples",
    "one reading of the GPU's sensors",
    (
        _SOURCE,
        Column("unix_ns", "int64", "wall clock of the host", "ns"),
        *(
            Column(n, "float64", meaning, unit, nullable=True)
            for n, meaning, unit in _SAMPLE_COLUMNS
        ),
    ),
    order=("source", "unix_ns"),
)

TABLES = (GPU_OPS, HOST_OPS, LAUNCHES, SYNCS, COLLECTIVES, ACCESSES, STEPS, SAMPLES)
