"""Who was the last in each stretch of a line, asked for any range of it.

Numbers only grow, so whoever takes a whole block of stretches is the last in all of it: neither
taking a range nor asking for one looks at more than two blocks and one number for each other.
"""

from __future__ import annotations

import numpy as np

NOBODY = -1
_BLOCK = 512


class Latest:
    """Of several rows; ``take`` with growing numbers."""

    def __init__(self, num_rows: int, length: int) -> None:
        blocks = -(-length // _BLOCK)
        self._single = np.full((num_rows, length), NOBODY, np.int32)
        self._whole = np.full((num_rows, blocks), NOBODY, np.int32)
        """Last to take all of a block."""
        self._any = np.full((num_rows, blocks), NOBODY, np.int32)
        """Last to take any of a block."""

    def take(self, row: int, begin: int, end: int, number: int) -> None:
        """``number`` is the last in ``[begin, end)``, which is not empty."""
        low, high = -(-begin // _BLOCK), end // _BLOCK
        self._any[row, begin // _BLOCK : -(-end // _BLOCK)] = number
        if low < high:
            self._whole[row, low:high] = number
            self._single[row, begin : low * _BLOCK] = number
            self._single[row, high * _BLOCK : end] = number
        else:
            self._single[row, begin:end] = number

    def last(self, begin: int, end: int) -> list[int]:
        """For each row the last in ``[begin, end)``, which is not empty; ``NOBODY``: none."""
        low, high = -(-begin // _BLOCK), end // _BLOCK
        if low >= high:
            blocks = self._whole[:, begin // _BLOCK : -(-end // _BLOCK)].max(axis=1)
            return np.maximum(self._single[:, begin:end].max(axis=1), blocks).tolist()  # type: ignore[no-any-return]
        parts = [
            self._any[:, low:high],
            self._single[:, begin : low * _BLOCK],
            self._single[:, high * _BLOCK : end],
            self._whole[:, [begin // _BLOCK, (end - 1) // _BLOCK]],
        ]
        return np.concatenate(parts, axis=1).max(axis=1).tolist()  # type: ignore[no-any-return]
