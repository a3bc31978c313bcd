"""Numbers are rounded once, and only what is 0 or 100 % reads so."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.reporters._records import microseconds
from diagnose.schema import NULL
from diagnose.wording import numbers


@pytest.mark.parametrize(
    ("longest", "value", "shown"),
    [
        (9_999_999, 12_345, "12.3"),
        (9_999_999, 12_350, "12.4"),
        (10_000_000, 12_345_678, "12.35"),
        (10_000_000, 0, "0.00"),
        (100_000_000_000, 12_345_678_900, "12.346"),
        (10_000_000, NULL, "-"),
        (10_000_000, -12_345_678, "-12.35"),
    ],
)
def test_times_share_the_unit_of_the_longest(longest, value, shown):
    assert numbers.scale_for(longest).show(value) == shown


def test_the_unit_follows_the_longest_time():
    units = [numbers.scale_for(ns).unit for ns in (0, 9_999_999, 10_000_000, 10**11)]
    assert units == ["us", "us", "ms", "s"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0"),
        (0.01, "<0.1"),
        (85.04, "85.0"),
        (99.94, "99.9"),
        (99.97, ">99.9"),
        (100.0, "100.0"),
        (float("nan"), "-"),
    ],
)
def test_percentages(value, shown):
    assert numbers.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(358.93, "359"), (35.893, "35.9"), (3.5893, "3.59"), (0.12345, "0.123"), (1234.5, "1234")],
)
def test_rates_have_three_digits(value, shown):
    assert numbers.rate(value) == shown


def test_sizes():
    shown = [numbers.size(n) for n in (512, 1024, 1536, 33_554_432, NULL)]
    assert shown == ["512 B", "1 KiB", "1.50 KiB", "32 MiB", "-"]


def test_ranges_of_ranks():
    assert numbers.ranges([3, 0, 1, 2, 7]) == "0-3, 7"
    assert numbers.ranges(list(range(0, 40, 2))).endswith("14 and 12 more ranges")


@given(st.integers(0, 2**62))
def test_microseconds_are_exact(nanoseconds):
    shown = microseconds(nanoseconds)
    assert Fraction(shown) == Fraction(nanoseconds, 1000)
    assert shown == "0" or not shown.endswith((".", "0")) or "." not in shown


def test_null_is_no_number():
    assert microseconds(NULL) is None
