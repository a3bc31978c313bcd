"""Rows of operations, worked out by hand. An operation is (start, end)."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.lanes.rows import depths, drawing_order

CASES = {
    "one after the other": ([(0, 4), (4, 6), (9, 10)], [0, 0, 0]),
    "nested": ([(0, 9), (1, 5), (2, 3), (3, 5), (6, 8)], [0, 1, 2, 2, 1]),
    "the same interval": ([(0, 5), (0, 5), (0, 5)], [0, 1, 2]),
    "the longer one is above": ([(0, 9), (0, 4)], [0, 1]),
    "without length inside": ([(0, 9), (4, 4), (4, 4)], [0, 1, 1]),
    "without length between": ([(0, 4), (4, 4), (5, 6)], [0, 0, 0]),
    "without length where one begins": ([(4, 9), (4, 4)], [0, 1]),
    # (2, 6) and (0, 4) cross: no nesting. (7, 8) is beyond both, on the first row again.
    "crossing": ([(0, 4), (2, 6), (7, 8)], [0, 1, 0]),
    "a chain that crosses": ([(0, 4), (2, 6), (5, 8), (7, 9)], [0, 1, 0, 1]),
    # By the number of open ones (8, 9) would lie on row 1, where (3, 10) still is.
    "nested in a crossing": ([(0, 5), (3, 10), (8, 9)], [0, 1, 0]),
    # (30, 110) and (105, 120) cross while (0, 100) is still open on the first row.
    "crossing beside an open one": ([(0, 100), (10, 20), (30, 110), (105, 120)], [0, 1, 1, 0]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("case", CASES)
def test_rows(case):
    ops, rows = CASES[case]
    start = np.array([op[0] for op in ops], np.int64)
    end = np.array([op[1] for op in ops], np.int64)
    assert drawing_order(start, end).tolist() == list(range(len(ops)))
    assert depths(start, end).tolist() == rows


def test_order_is_by_start_then_the_longest():
    start, end = np.array([5, 0, 0, 5]), np.array([6, 2, 9, 5])
    assert drawing_order(start, end).tolist() == [2, 1, 0, 3]


def test_only_the_stretch_that_crosses_is_rearranged():
    nested = [(100, 109), (101, 102)]
    ops = [(0, 4), (2, 6), (5, 7), *nested]
    start, end = (np.array([op[side] for op in ops], np.int64) for side in (0, 1))
    assert depths(start, end).tolist() == [0, 1, 0, 0, 1]


def test_many_that_all_cross_take_a_row_each_and_no_time():
    start = np.arange(100_000, dtype=np.int64)
    assert depths(start, start + 100_000).tolist() == start.tolist()
