"""Columns that grow in place."""

from __future__ import annotations

import numpy as np

from diagnose.readers.kineto.growing import GrowingColumns
from diagnose.readers.raw import Columns

DTYPES = {"order": "int64", "kind": "int8"}


def rows(begin: int, end: int) -> Columns:
    numbers = np.arange(begin, end, dtype=np.int64)
    return {"order": numbers, "kind": numbers % 3}


def test_rows_stay_what_they_are_while_the_columns_grow() -> None:
    columns, begin = GrowingColumns(DTYPES), 0
    for length in (3, 0, 1500, 7, 40_000):
        assert columns.append(rows(begin, begin + length)) == 9 * length  # 8 bytes and 1
        begin += length
        if length:
            assert columns.last("order") == begin - 1
    assert columns.num_rows == 41_510
    taken = columns.take()
    assert {name: column.dtype.name for name, column in taken.items()} == DTYPES
    np.testing.assert_array_equal(taken["order"], np.arange(41_510))
    np.testing.assert_array_equal(taken["kind"], np.arange(41_510) % 3)


def test_nothing_was_added() -> None:
    assert {name: len(column) for name, column in GrowingColumns(DTYPES).take().items()} == {
        "order": 0,
        "kind": 0,
    }


def test_one_row_after_the_other_costs_no_copy_each() -> None:
    """Twenty thousand rows one by one: capacity grows with the rows, not one at a time."""
    columns = GrowingColumns(DTYPES)
    capacities = set()
    for number in range(20_000):
        columns.append(rows(number, number + 1))
        capacities.add(columns._capacity)
    assert len(capacities) < 40  # 1.125 ** 26 > 20
    assert columns.take()["order"][-1] == 19_999
