"""What is known of one process, before all processes are joined into a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.readers.raw import Columns, ExecutionTrace
from diagnose.trace import HostIntervals, Note, Source

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """What is known of a file from outside of it."""

    manifest_rank: int | None = None
    user_rank: int | None = None
    world_size: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    samples: Columns | None = None
    notes: tuple[Note, ...] = ()
    host_intervals: HostIntervals | None = None
    gpu_uuid: str | None = None
    execution_trace: ExecutionTrace | None = None


@dataclass
class Part:
    """One process: its tables in the schema's order, without the column ``source``.

    ``tables`` maps the name of a table to its columns; text columns are codes into
    ``strings``, row references count within the part, ``op_id`` within the file.
    """

    source: Source
    strings: list[str]
    tables: dict[str, Columns]
    num_orders: int
    notes: list[Note] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return sum(c.nbytes for columns in self.tables.values() for c in columns.values())


def sorted_rows(*keys: npt.NDArray[Any]) -> Rows | None:
    """Row numbers that sort by ``keys``, the first being the strongest.

    None if the rows are sorted already: files mostly are, and a copy is saved.
    """
    if not keys or len(keys[0]) < 2:
        return None
    below = np.zeros(len(keys[0]) - 1, bool)
    tied = np.ones(len(keys[0]) - 1, bool)
    for key in keys:
        below |= tied & (key[1:] < key[:-1])
        tied &= key[1:] == key[:-1]
    if not below.any():
        return None
    return np.lexsort(keys[::-1]).astype(np.int64)


def reorder(columns: Columns, rows: Rows | None) -> None:
    """Apply ``sorted_rows`` in place, column by column, so that no second copy of all is held."""
    if rows is not None:
        for name in columns:
            columns[name] = columns[name][rows]
