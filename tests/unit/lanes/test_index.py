"""The arrays of a lane against looking at every interval."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.intervals import Intervals
from diagnose.lanes import Category, OpTable
from diagnose.lanes.index import SubRow, index_of, state_row


def sub_row(depth: int, start: list[int], length: list[int]) -> SubRow:
    begins = np.array(start, np.int64)
    rows = np.arange(len(start)) + 1000 * depth
    return SubRow(
        depth, Category.HOST, OpTable.HOST_OPS, begins, begins + np.array(length, np.int64), rows
    )


@pytest.mark.parametrize("sizes", [(1,), (16, 17), (40, 1, 300), (5000, 257)])
def test_long_ones_are_found_without_looking_at_all(sizes):
    random = np.random.default_rng(sum(sizes))
    parts, lengths = [], []
    for depth, size in enumerate(sizes):
        length = random.integers(0, 12, size)
        gap = random.integers(0, 3, size)
        start = np.cumsum(length + gap) - length
        parts.append(sub_row(depth, start.tolist(), length.tolist()))
        lengths.append(length)
    (block,) = index_of(parts).blocks
    every = np.concatenate(lengths)
    assert block.length(np.arange(every.size)).tolist() == every.tolist()
    for wanted in (0, 1, 7, 11, 12):
        for share in (0.0, 0.3):
            low = block.edges[:-1] + (share * np.array(sizes)).astype(np.int64)
            high = block.edges[1:]
            inside = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
            expected = inside[every[inside] >= wanted]
            assert block.at_least(wanted, low, high).tolist() == expected.tolist()


def test_one_as_long_as_asked_among_shorter_ones():
    length = [3] * 40
    length[21] = 8
    (block,) = index_of([sub_row(0, list(range(0, 400, 10)), length)]).blocks
    edges = np.array([0]), np.array([40])
    assert block.at_least(8, *edges).tolist() == [21]
    assert block.at_least(9, *edges).tolist() == []


def test_rows_of_operations_and_states():
    state = state_row(Category.EXPOSED, 4, Intervals(np.array([5]), np.array([9])))
    index = index_of([sub_row(0, [0, 5], [2, 2]), sub_row(3, [1], [1]), state])
    assert index.num_rows == 5
    assert index.row_of(OpTable.HOST_OPS, 1) == 0
    assert index.row_of(OpTable.HOST_OPS, 3000) == 3
    assert index.row_of(OpTable.LAUNCHES, 1) is None
    assert index.row_of(OpTable.HOST_OPS, 77) is None
    assert index_of([]).num_rows == 1


def test_memory_is_counted():
    small = index_of([sub_row(0, [0], [1])]).num_bytes
    large = index_of([sub_row(0, list(range(1000)), [1] * 1000)]).num_bytes
    # A start, a running sum and a row: 8 + 8 + 4 bytes an operation, and little more.
    assert 20 * 999 <= large - small <= 22 * 999
