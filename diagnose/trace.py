"""The one data model: an immutable ``Trace`` of documented, columnar tables.

A trace is everything given together: all files, ranks and devices of one job.
Columns are read-only numpy arrays; text is stored once, in one dictionary per
trace; a DataFrame is a view made on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose import schema
from diagnose.schema import NO_ROW, NULL, Activity, Detail, TableSchema

if TYPE_CHECKING:
    import pandas as pd

Severity = Literal["info", "warning", "error"]
RankOrigin = Literal["metadata", "manifest", "file name", "process name", "user"]


class Strings:
    """The string dictionary: code -> text. Codes are dense and start at 0."""

    __slots__ = ("_code", "_text")

    def __init__(self, text: Iterable[str] = ()) -> None:
        self._text = tuple(text)
        self._code: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, code: int) -> str:
        return self._text[code]

    def __iter__(self) -> Any:
        return iter(self._text)

    def code(self, text: str) -> int:
        """The code of a text; ``NO_ROW`` if no table uses it."""
        if self._code is None:
            self._code = {word: code for code, word in enumerate(self._text)}
        return self._code.get(text, NO_ROW)

    def decode(self, codes: npt.NDArray[Any]) -> list[str | None]:
        return [None if code < 0 else self._text[code] for code in codes.tolist()]

    def where(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """For each code whether ``test`` holds: each distinct text is tested once."""
        holds: npt.NDArray[np.bool_] = np.array([test(word) for word in self._text], bool)
        return holds


class Table:
    """Columns of equal length under a schema. Read-only; ``take`` returns a new one."""

    __slots__ = ("_columns", "schema", "strings")

    def __init__(
        self,
        table_schema: TableSchema,
        columns: Mapping[str, npt.NDArray[Any]],
        strings: Strings,
    ) -> None:
        schema.check(table_schema, columns)
        self.schema = table_schema
        self.strings = strings
        self._columns = {c.name: columns[c.name].view() for c in table_schema.columns}
        for column in self._columns.values():
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    def __repr__(self) -> str:
        return f"<Table {self.schema.name}: {len(self)} rows>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Table, (self.schema, dict(self._columns), self.strings))

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        return dict(self._columns)

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in self._columns.values())

    def known(self, name: str) -> npt.NDArray[np.bool_]:
        """Where the value of a column is not null."""
        column, values = self.schema.column(name), self._columns[name]
        if values.dtype.kind == "f":
            known: npt.NDArray[np.bool_] = ~np.isnan(values)
            return known
        if not column.nullable:
            return np.ones(len(values), bool)
        return values >= 0 if column.is_reference else values != NULL

    def texts(self, name: str) -> list[str | None]:
        """A text column, decoded."""
        return self.strings.decode(self._columns[name])

    def take(self, rows: npt.NDArray[Any] | slice) -> Table:
        """The rows of a mask, an index array or a slice."""
        taken = {name: column[rows] for name, column in self._columns.items()}
        return Table(self.schema, taken, self.strings)

    def frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame: text as categoricals, nulls as missing."""
        import pandas as pd

        return pd.DataFrame({c.name: self._series(c) for c in self.schema.columns})

    def _series(self, column: schema.Column) -> Any:
        import pandas as pd

        values: Any = self._columns[column.name]
        if column.text:
            used, codes = np.unique(values[values >= 0], return_inverse=True)
            shown = np.full(len(values), -1, np.int64)
            shown[values >= 0] = codes
            words: list[str] = [self.strings[code] for code in used.tolist()]
            return pd.Categorical.from_codes(shown.tolist(), pd.Index(words))
        if column.choices is not None:
            choices = [choice.name.lower() for choice in column.choices]
            return pd.Categorical.from_codes(values.tolist(), pd.Index(choices))
        if column.nullable and values.dtype.kind == "i":
            return pd.arrays.IntegerArray(values.astype("int64"), ~self.known(column.name))
        return values


@dataclass(frozen=True)
class Note:
    """Something repaired, dropped or doubted. Every report shows it.

    ``code`` is for scripts; ``sentence`` says what was seen, where, and what it
    does to which number; ``count`` how often; ``source`` indexes
    ``Trace.sources`` (None: the whole trace).
    """

    code: str
    severity: Severity
    sentence: str
    count: int = 1
    source: int | None = None


ON_CPU = "on-cpu"
"""Code of the note that the process of a source had no GPU in use, as its environment says."""


@dataclass(frozen=True)
class HostIntervals:
    """Times between optimizer steps on the host, in nanoseconds, as the recorder saw them.

    ``before`` and ``after`` the window the job ran undisturbed.
    """

    before: tuple[int, ...] = ()
    within: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Source:
    """One process that was recorded: usually one file, one rank.

    ``base_ns`` plus a time of this source is unix time (None: unknown).
    ``environment`` is the content of ``*.env.json``; ``metadata`` what the trace
    itself says (NCCL version, device properties, world size).
    """

    path: str
    rank: int | None = None
    rank_origin: RankOrigin | None = None
    host: str | None = None
    world_size: int | None = None
    base_ns: int | None = None
    num_bytes: int = 0
    """Bytes of text read, after decompression."""
    num_events: int = 0
    """Events in the file, kept or not."""
    num_ops: int | None = None
    """Operators of PyTorch in the file; None where they were not read."""
    complete: bool = True
    """Whether every event was read; else busy times are lower bounds, idle an upper one."""
    process: str | None = None
    """In a file of several processes: the one this source is, as written."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    host_intervals: HostIntervals | None = None
    """None unless the manifest of its recording has them."""
    manifest_gpu_uuid: str | None = None

    @property
    def gpu_uuid(self) -> str | None:
        """UUID of its GPU: as its environment file names it, else the manifest; None: neither."""
        gpu = self.environment.get("gpu")
        named = gpu.get("uuid") if isinstance(gpu, Mapping) else None
        return named if isinstance(named, str) and named else self.manifest_gpu_uuid

    @property
    def label(self) -> str:
        """What a person calls it: the rank, or the file if the rank is unknown."""
        if self.rank is not None:
            return f"rank {self.rank}"
        name = self.path.rsplit("/", 1)[-1]
        return name if self.process is None else f"{name} (process {self.process})"


class Gpu(NamedTuple):
    """One GPU of one process."""

    source: int
    device: int
    rank: int | None


@dataclass(frozen=True)
class Observer:
    """What recording cost: median host interval between steps, over all ranks, in nanoseconds.

    None: too few were seen. The manifest of the recording says it; see
    ``diagnose.manifest.Observer`` and, for the steps of the GPU, the analysis
    ``observer_effect``.
    """

    before_ns: int | None = None
    within_ns: int | None = None
    after_ns: int | None = None
    num_before: int = 0
    num_within: int = 0
    num_after: int = 0
    before_spread_ns: int | None = None


@dataclass(frozen=True)
class Trace:
    """Everything recorded of one job. See ``diagnose.schema`` for the tables."""

    sources: tuple[Source, ...]
    strings: Strings
    gpu_ops: Table
    host_ops: Table
    launches: Table
    syncs: Table
    collectives: Table
    steps: Table
    samples: Table
    notes: tuple[Note, ...] = ()
    detail: Detail = Detail.ALL
    observer: Observer | None = None
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the job that the recorder could not record, as its manifest says."""
    accesses: Table = field(
        default_factory=lambda: Table(schema.ACCESSES, schema.ACCESSES.empty(), Strings())
    )
    """Empty unless an execution trace of the same steps was recorded beside the profile."""

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs with work, by rank (unknown ranks last), source and device."""
        source, device = self.gpu_ops["source"], self.gpu_ops["device"]
        changes = (source[1:] != source[:-1]) | (device[1:] != device[:-1])
        first = np.flatnonzero(np.append(np.ones(min(len(source), 1), bool), changes))
        pairs = zip(source[first].tolist(), device[first].tolist(), strict=True)
        found = [Gpu(s, d, self.sources[s].rank) for s, d in pairs]
        return tuple(sorted(found, key=lambda g: (g.rank is None, g.rank or 0, g.source, g.device)))

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the job used no GPU: no GPU work, and an environment that says why of all."""
        said = {note.source for note in self.notes if note.code == ON_CPU}
        return not self.gpus and bool(said) and said >= set(range(len(self.sources)))

    def on(self, gpu: Gpu) -> slice:
        """The rows of ``gpu_ops`` of one GPU: contiguous, sorted by start."""
        source, device = self.gpu_ops["source"], self.gpu_ops["device"]
        low = np.searchsorted(source, gpu.source, side="left")
        high = np.searchsorted(source, gpu.source, side="right")
        first = low + np.searchsorted(device[low:high], gpu.device, side="left")
        last = low + np.searchsorted(device[low:high], gpu.device, side="right")
        return slice(int(first), int(last))

    def _of(self, activity: Activity) -> Table:
        return self.gpu_ops.take(self.gpu_ops["activity"] == activity)

    @property
    def compute(self) -> Table:
        return self._of(Activity.COMPUTE)

    @property
    def communication(self) -> Table:
        return self._of(Activity.COMMUNICATION)

    @property
    def memory(self) -> Table:
        return self._of(Activity.MEMORY)
