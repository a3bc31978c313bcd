"""The interval algebra, on examples worked out by hand. Random inputs: tests/property."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.grouped_intervals import (
    covered_length_by,
    first_and_last_by,
    intersection_length_by,
    length_by,
    sum_by,
    union_by,
    union_length_by,
)
from diagnose.intervals import (
    Intervals,
    covered_length,
    gaps,
    intersect,
    intersection_length,
    subtract,
    union,
    union_length,
)

FAR = 1_733_059_200_000_000_000


def spans(*pairs: tuple[int, int]) -> Intervals:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return Intervals(array[:, 0].copy(), array[:, 1].copy())


def pairs(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


@pytest.mark.parametrize("shift", [0, -1_000, FAR])
@pytest.mark.parametrize(
    ("given", "length", "merged"),
    [
        ([], 0, []),
        ([(3, 3)], 0, []),
        ([(5, 2)], 0, []),
        ([(0, 10)], 10, [(0, 10)]),
        ([(0, 10), (10, 20)], 20, [(0, 20)]),
        ([(0, 10), (11, 20)], 19, [(0, 10), (11, 20)]),
        ([(0, 10), (0, 10), (0, 10)], 10, [(0, 10)]),
        ([(0, 100), (10, 20), (30, 40)], 100, [(0, 100)]),
        ([(30, 40), (0, 15), (10, 20)], 30, [(0, 20), (30, 40)]),
        ([(0, 10), (4, 4), (12, 9), (15, 16)], 11, [(0, 10), (15, 16)]),
    ],
)
def test_union(given, length, merged, shift):
    moved = spans(*((a + shift, b + shift) for a, b in given))
    assert union_length(*moved) == length
    assert pairs(union(*moved)) == [(a + shift, b + shift) for a, b in merged]


def test_one_nanosecond_far_from_zero_is_not_lost():
    assert union_length(*spans((FAR, FAR + 1), (FAR + 2, FAR + 3))) == 2


@pytest.mark.parametrize(
    ("first", "second", "common", "rest"),
    [
        ([], [(0, 5)], [], []),
        ([(0, 5)], [], [], [(0, 5)]),
        ([(0, 10)], [(10, 20)], [], [(0, 10)]),
        ([(0, 10)], [(3, 5), (7, 20)], [(3, 5), (7, 10)], [(0, 3), (5, 7)]),
        ([(0, 4), (6, 10)], [(2, 8)], [(2, 4), (6, 8)], [(0, 2), (8, 10)]),
        ([(2, 8)], [(0, 4), (6, 10)], [(2, 4), (6, 8)], [(4, 6)]),
        ([(0, 1), (2, 3), (4, 5)], [(0, 9)], [(0, 1), (2, 3), (4, 5)], []),
    ],
)
def test_intersect_and_subtract(first, second, common, rest):
    assert pairs(intersect(spans(*first), spans(*second))) == common
    assert pairs(subtract(spans(*first), spans(*second))) == rest
    assert intersection_length(spans(*first), spans(*second)) == sum(b - a for a, b in common)


def test_intersection_length_takes_intervals_that_are_not_merged():
    assert intersection_length(spans((0, 6), (2, 8)), spans((5, 9), (5, 7), (20, 30))) == 3


def test_gaps_reach_the_edges_and_stop_there():
    covered = spans((2, 4), (6, 8))
    assert pairs(gaps(covered, 0, 10)) == [(0, 2), (4, 6), (8, 10)]
    assert pairs(gaps(covered, 3, 7)) == [(4, 6)]
    assert pairs(gaps(spans(), 3, 7)) == [(3, 7)]


def test_covered_length():
    start, end = np.array([0, 3, 4, 7, 0, 9, 5]), np.array([10, 7, 6, 20, 2, 9, 3])
    assert covered_length(spans((2, 4), (6, 8)), start, end).tolist() == [4, 2, 0, 1, 0, 0, 0]
    assert covered_length(spans(), start, end).tolist() == [0] * 7


KEY = np.array([2, 0, 0, 2, 0, 3])
START = np.array([0, 0, 5, 8, 30, 40])
END = np.array([10, 10, 15, 12, 31, 40])


def test_each_group_has_a_union_of_its_own():
    # Group 0: [0,15) and [30,31); group 1: nothing; group 2: [0,12); group 3: empty.
    segments = union_by(KEY, START, END, 4)
    assert segments.key.tolist() == [0, 0, 2]
    assert segments.start.tolist() == [0, 30, 0]
    assert segments.end.tolist() == [15, 31, 12]
    assert length_by(segments, 4).tolist() == [16, 0, 12, 0]
    assert union_length_by(KEY, START, END, 4).tolist() == [16, 0, 12, 0]
    assert covered_length_by(segments, spans((10, 30)), 4).tolist() == [5, 0, 2, 0]
    assert intersection_length_by(KEY, START, END, 4, spans((10, 31))).tolist() == [6, 0, 2, 0]


def test_groups_that_follow_each_other_do_not_merge():
    key, start = np.array([0, 1, 2]), np.array([0, 10, 20])
    segments = union_by(key, start, start + 10, 3)
    assert segments.start.tolist() == [0, 10, 20]
    assert segments.key.tolist() == [0, 1, 2]


def test_groups_too_long_for_one_line_of_int64():
    # Each group spans 2**61 ns (73 years): four in a row would not fit.
    key, far = np.repeat(np.arange(8), 2), 2**61
    start = np.tile([0, far - 5], 8)
    assert union_length_by(key, start, start + 5, 8).tolist() == [10] * 8


def test_sums_and_extremes_by_group():
    assert sum_by(np.array([1, 1, 0]), np.array([2**60, 1, 3]), 3).tolist() == [3, 2**60 + 1, 0]
    first, last = first_and_last_by(KEY, START, END, 4)
    assert first[[0, 2, 3]].tolist() == [0, 0, 40]
    assert last[[0, 2, 3]].tolist() == [31, 12, 40]
    assert first[1] > last[1]
