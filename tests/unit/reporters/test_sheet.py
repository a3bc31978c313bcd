"""Bars: what a state gets of a bar depends on its size alone."""

from __future__ import annotations

import pytest

from diagnose.reporters._sheet import Bar


def cells(shares: tuple[int, ...], longest: int, width: int) -> list[int]:
    return [len(signs) for signs, _ in Bar(shares, longest).signs(width, unicode=True)]


@pytest.mark.parametrize(
    ("shares", "longest", "width", "expected"),
    [
        ((50, 20, 10, 0, 20), 100, 10, [5, 2, 1, 0, 2]),
        # 4.32, 0.19, 0.12, 0.02, 0.17 of 4.82 in 26 cells: 23.3, 1.02, 0.65, 0.11, 0.92.
        # Whole cells 23, 1, 0, 0, 0; the two left over go to idle (0.92) and exposed (0.65).
        ((432, 19, 12, 2, 17), 482, 26, [23, 1, 1, 0, 1]),
        # Half as long as the longest: half the cells.
        ((50, 0, 0, 0, 0), 100, 10, [5, 0, 0, 0, 0]),
        # Equal shares that do not divide: the earlier states get the cells left over.
        ((1, 1, 1, 0, 0), 3, 4, [2, 1, 1, 0, 0]),
        ((0, 0, 0, 0, 0), 10, 10, [0, 0, 0, 0, 0]),
    ],
)
def test_cells_go_by_largest_remainder(shares, longest, width, expected):
    assert cells(shares, longest, width) == expected


def test_a_share_draws_the_same_wherever_it_stands():
    for at in range(5):
        shares = [0] * 5
        shares[at] = 12
        shares[(at + 1) % 5] = 88
        assert cells(tuple(shares), 100, 25)[at] == 3
