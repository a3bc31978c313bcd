"""Columns that grow in place.

Blocks of a few thousand rows, joined at the end, need the memory of all columns twice: small
arrays come from the heap, which is not given back for large ones. A large array that grows
keeps its pages, as the system only extends their range.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diagnose.readers.raw import Columns

_LEAST_ROWS = 1 << 10
_GROWTH = 1.125


class GrowingColumns:
    """Rows with one array per column of ``dtypes``."""

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        self._columns: Columns = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}
        self._capacity = 0
        self.num_rows = 0

    def append(self, block: Columns) -> int:
        """Add rows; ``block`` has every column, of any integer type. Returns their bytes."""
        begin = self.num_rows
        self.num_rows += len(next(iter(block.values())))
        if self.num_rows > self._capacity:
            self._resize(max(_LEAST_ROWS, self.num_rows, int(self._capacity * _GROWTH)))
        num_bytes = 0
        for name, column in self._columns.items():
            part = column[begin : self.num_rows]
            part[:] = block[name]
            num_bytes += part.nbytes
        return num_bytes

    def last(self, name: str) -> int:
        """The value of a column in the last row."""
        return int(self._columns[name][self.num_rows - 1])

    def take(self) -> Columns:
        """The columns as they are; nothing is left here."""
        self._resize(self.num_rows)
        taken, self._columns = self._columns, {}
        return taken

    def _resize(self, capacity: int) -> None:
        for column in self._columns.values():
            # Nobody else holds these arrays: views of them live within ``append`` only.
            column.resize(capacity, refcheck=False)
        self._capacity = capacity
