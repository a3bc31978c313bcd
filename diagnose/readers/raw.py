"""What a format reader returns for one file, before anything is interpreted.

A format reader (``readers/kineto/``) turns text into these columns and knows
nothing of ranks, steps or classes. ``readers/assemble/`` turns one or many
``RawFile`` into a ``Trace`` and knows nothing of formats.

All times are int64 nanoseconds on the clock of the file. Text columns are codes
into ``RawFile.strings`` (-1: absent); integers that are absent are
``schema.NULL``. ``order`` is the event's place in the file, from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diagnose.schema import Detail
from diagnose.trace import Note

Columns = dict[str, npt.NDArray[Any]]

NO_NAME = "(no name)"
"""The name of an event that was written without one."""

# column -> dtype
GPU_EVENTS = {
    "order": "int64",
    "process": "int32",  # text: pid as written
    "device": "int64",
    "stream": "int64",
    "start_ns": "int64",
    "end_ns": "int64",
    "kind": "int8",  # schema.Kind
    "name": "int32",
    "launch_shape": "int32",  # text, as "grid [132, 1, 1] block [384, 1, 1]"
    "correlation": "int64",
    "external_id": "int64",
    "bytes": "int64",
    "graph_node": "int64",  # id within a CUDA graph; NULL outside of graphs
    "from_device": "int64",  # copies between devices
    "to_device": "int64",
}
HOST_EVENTS = {  # cpu_op, user_annotation, python_function, overhead, Trace spans ...
    "order": "int64",
    "thread": "int32",  # text: "pid/tid"
    "start_ns": "int64",
    "end_ns": "int64",
    "category": "int32",
    "name": "int32",
    "external_id": "int64",
    "sequence": "int64",
    "shapes": "int32",
}
CALL_EVENTS = {  # cuda_runtime, cuda_driver and AMD's names for the same
    "order": "int64",
    "thread": "int32",
    "start_ns": "int64",
    "end_ns": "int64",
    "name": "int32",
    "correlation": "int64",
    "external_id": "int64",
}
SYNC_EVENTS = {  # cuda_sync
    "order": "int64",
    "device": "int64",
    "stream": "int64",
    "start_ns": "int64",
    "end_ns": "int64",
    "sync_kind": "int32",
    "correlation": "int64",
    "event_id": "int64",
    "event_stream": "int64",
    "event_correlation": "int64",
}
COLLECTIVE_METADATA = {  # on kernels, or on record_param_comms host operators
    "order": "int64",  # of the event that carries it
    "on_gpu": "bool",
    "name": "int32",
    "in_elements": "int64",
    "out_elements": "int64",
    "dtype": "int32",
    "group": "int32",
    "group_size": "int64",
    "group_ranks": "int32",
    "sequence": "int64",
    "source_rank": "int64",
    "destination_rank": "int64",
    "in_addresses": "int32",
    "out_addresses": "int32",
}
OPERATOR_EVENTS = {  # of `Detail.SHAPES`: operators of which no more is kept
    "order": "int64",
    "thread": "int32",
    "category": "int32",
    "external_id": "int64",
    "shapes": "int32",
}
FUNCTION_IDS = {  # of host events, where `ReadOptions.function_ids` asks for them
    "order": "int64",  # of the event that carries it
    "function_id": "int64",
}
GROUPS: Mapping[str, Mapping[str, str]] = {
    "gpu": GPU_EVENTS,
    "host": HOST_EVENTS,
    "calls": CALL_EVENTS,
    "syncs": SYNC_EVENTS,
    "collectives": COLLECTIVE_METADATA,
    "operators": OPERATOR_EVENTS,
    "functions": FUNCTION_IDS,
}

EXECUTION_NODES = {  # operators of an execution trace, in file order
    "function_id": "int64",  # the same in the profile's event; 0: none
    "name": "int32",
    "unexplained": "bool",  # no schema says what it does to its tensors, nor what runs within it
}
ACCESSES = {  # tensors of these operators; see `schema.ACCESSES`
    "node": "int64",  # row of the nodes
    "tensor": "int64",
    "storage": "int64",
    "device": "int32",
    "begin": "int64",
    "end": "int64",
    "dense": "bool",
    "reads": "bool",
    "writes": "bool",
    "new": "bool",
}


def empty(group: str) -> Columns:
    """The columns of a group, without rows."""
    return {name: np.empty(0, dtype) for name, dtype in GROUPS[group].items()}


@dataclass
class RawFile:
    """One file's events as columns. ``notes`` carry ``source=None``; assembly sets it."""

    path: str
    strings: list[str] = field(default_factory=list)
    gpu: Columns = field(default_factory=lambda: empty("gpu"))
    host: Columns = field(default_factory=lambda: empty("host"))
    calls: Columns = field(default_factory=lambda: empty("calls"))
    syncs: Columns = field(default_factory=lambda: empty("syncs"))
    collectives: Columns = field(default_factory=lambda: empty("collectives"))
    operators: Columns = field(default_factory=lambda: empty("operators"))
    functions: Columns = field(default_factory=lambda: empty("functions"))
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys of the file (distributedInfo, deviceProperties, host_name ...)."""
    process_names: dict[str, str] = field(default_factory=dict)
    """pid as written -> name and label from metadata events, as "python3 | GPU 0"."""
    base_ns: int | None = None
    num_bytes: int = 0
    num_events: int = 0
    num_dropped: int = 0
    """Events between others that were beyond repair."""
    complete: bool = True
    """Whether every event of the file was read: none dropped, none cut off."""
    notes: list[Note] = field(default_factory=list)


@dataclass
class ExecutionTrace:
    """What the operators of one process touch. Text columns are codes into ``strings``."""

    path: str
    process: str | None
    """pid as written; None: not said."""
    strings: list[str]
    nodes: Columns
    accesses: Columns


@dataclass(frozen=True)
class ReadOptions:
    """What to keep and how far to go.

    ``host_prefixes`` are beginnings of operator names that are kept at every
    level of detail, because they decide what a GPU operation is.
    """

    detail: Detail = Detail.ALL
    host_prefixes: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    progress: Callable[[int], None] | None = None
    """Called with the number of bytes of the file (as stored) read since the last call."""
    function_ids: bool = False
    """Keep what ties host events to an execution trace."""


class Stream(Protocol):
    """Decompressed bytes of one file."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; b"" at the end."""
        ...


class FormatReader(Protocol):
    """A format. ``sniff`` looks at the first bytes of content, never at the name."""

    def sniff(self, head: bytes) -> bool:
        """Whether this reader understands a file that begins so."""
        ...

    def read(self, stream: Stream, path: str, options: ReadOptions) -> RawFile:
        """Read as far as possible; raise InputError only if nothing could be read."""
        ...
