"""The interval algebra against a bitmap: every instant is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose import grouped_intervals, intervals

LENGTH, KEYS = 40, 5
PAIRS = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)), max_size=12)
KEYED = st.lists(
    st.tuples(st.integers(0, KEYS - 1), st.integers(0, LENGTH), st.integers(0, LENGTH)),
    max_size=20,
)


def arrays(rows: list[Any], width: int = 2) -> list[np.ndarray]:
    return [column.copy() for column in np.array(rows, np.int64).reshape(-1, width).T]


def bitmap(pairs: list[tuple[int, int]]) -> np.ndarray:
    covered = np.zeros(LENGTH + 1, bool)
    for start, end in pairs:
        for instant in range(start, end):
            covered[instant] = True
    return covered


def drawn(found: intervals.Intervals) -> np.ndarray:
    start, end = found.start.tolist(), found.end.tolist()
    # Sorted, not empty, disjoint and not touching: otherwise it is no union.
    assert all(a < b for a, b in zip(start, end, strict=True))
    assert all(a > b for a, b in zip(start[1:], end[:-1], strict=True))
    return bitmap(list(zip(start, end, strict=True)))


@given(PAIRS, PAIRS)
def test_algebra(first, second):
    a, b = intervals.Intervals(*arrays(first)), intervals.Intervals(*arrays(second))
    in_a, in_b = bitmap(first), bitmap(second)
    union_a, union_b = intervals.union(*a), intervals.union(*b)
    assert intervals.union_length(*a) == in_a.sum()
    assert intervals.intersection_length(a, b) == (in_a & in_b).sum()
    assert (drawn(union_a) == in_a).all()
    assert (bitmap_of(intervals.intersect(union_a, union_b)) == (in_a & in_b)).all()
    assert (bitmap_of(intervals.subtract(union_a, union_b)) == (in_a & ~in_b)).all()
    assert (bitmap_of(intervals.gaps(union_a, 5, 30))[5:30] == ~in_a[5:30]).all()


def bitmap_of(found: intervals.Intervals) -> np.ndarray:
    pairs = list(zip(found.start.tolist(), found.end.tolist(), strict=True))
    covered = bitmap(pairs)
    assert covered.sum() == sum(end - start for start, end in pairs)
    return covered


@given(PAIRS, PAIRS)
def test_covered_length(covering, asked):
    covered = intervals.union(*arrays(covering))
    start, end = arrays(asked)
    expected = [int(bitmap(covering)[a:b].sum()) if b > a else 0 for a, b in asked]
    assert intervals.covered_length(covered, start, end).tolist() == expected


@given(KEYED, PAIRS, st.sampled_from([0, -77, 1_733_059_200_000_000_000]))
def test_groups(rows, other, shift):
    key, start, end = arrays(rows, 3)
    start, end = start + shift, end + shift
    covering = intervals.union(*(column + shift for column in arrays(other)))
    groups = [bitmap([(a, b) for k, a, b in rows if k == group]) for group in range(KEYS)]
    segments = grouped_intervals.union_by(key, start, end, KEYS)
    for group, expected in enumerate(groups):
        own = segments.key == group
        found = intervals.Intervals(segments.start[own] - shift, segments.end[own] - shift)
        assert (drawn(found) == expected).all()
    lengths = grouped_intervals.union_length_by(key, start, end, KEYS)
    assert lengths.tolist() == [int(group.sum()) for group in groups]
    shared = grouped_intervals.intersection_length_by(key, start, end, KEYS, covering)
    assert shared.tolist() == [int((group & bitmap(other)).sum()) for group in groups]


@given(KEYED)
def test_halves_give_the_same(rows):
    key, start, end = arrays(rows, 3)
    keep = end > start
    key, start, end = key[keep], start[keep], end[keep]
    whole = grouped_intervals.union_by(key, start, end, KEYS)
    halves = grouped_intervals._in_halves(key, start, end, KEYS)
    assert [column.tolist() for column in whole] == [column.tolist() for column in halves]
