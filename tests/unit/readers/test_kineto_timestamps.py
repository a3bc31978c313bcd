from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.readers.kineto.timestamps import nanoseconds, nanoseconds_of
from diagnose.schema import NULL


def exactly(text: str) -> int:
    with localcontext() as context:
        context.prec = 80
        return int((Decimal(text) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


numbers = st.builds(
    lambda whole, decimals: f"{whole}.{decimals}" if decimals else str(whole),
    st.one_of(st.integers(0, 10**6), st.integers(0, 4 * 10**15)),
    st.text("0123456789", max_size=9),
)
three_decimals = st.builds(
    lambda whole, rest: f"{whole}.{rest:03}", st.integers(0, 4 * 10**15), st.integers(0, 999)
)


@given(st.one_of(st.lists(numbers, max_size=20), st.lists(three_decimals, max_size=20)))
def test_a_column_is_what_decimal_arithmetic_says(texts: list[str]) -> None:
    found = nanoseconds([text.encode() for text in texts])
    assert found.dtype == np.int64
    assert found.tolist() == [exactly(text) for text in texts]


@pytest.mark.parametrize("power", [42, 43, 50])
def test_exact_where_doubles_fail(power: int) -> None:
    # Around 2^42 us a product of doubles is off by one here and there, at 2^50 everywhere.
    first = (1 << power) - 500
    texts = [f"{first + i}.{i:03}".encode() for i in range(1000)]
    expected = [(first + i) * 1000 + i for i in range(1000)]
    assert nanoseconds(texts).tolist() == expected
    if power == 50:
        assert [round(float(text) * 1000) for text in texts] != expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1733059200000000.100", 1733059200000000100),
        (b'"123.5"', 123500),
        (b" 7 ", 7000),
        (b"-1.5", -1500),
        (b"1e3", 1000000),
        (b"1.5E-3", 2),  # 1.5 ns: half to even
        (b"0.0005", 0),
        (b"0.0015", 2),
        (b"0.00050000000000000000001", 1),
        (b"5.", 5000),
        (b"4611686018427387.000", 4611686018427387000),
        (b"9999999999999999.000", None),  # beyond int64
        (b"9999999999999999999999999999.1", None),
        (b"1e99", None),
        (b"null", None),
        (b"", None),
        (b'""', None),
        (b"NaN", None),
        (b"inf", None),
        (b"1.2.3", None),
        (b"0x10", None),
        (b"12 34", None),
        (b"[1]", None),
    ],
)
def test_single_values(text: bytes, expected: int | None) -> None:
    assert nanoseconds_of(text) == expected
    for neighbours in ([], [b"1.000"], [b"1"], [b"1.000", b"x"]):
        column = nanoseconds([text, *neighbours])
        assert column[0] == (NULL if expected is None else expected)
        assert column[1:].tolist() == [1000, NULL][: len(neighbours)]


def test_points_of_neighbours_do_not_make_up_for_each_other() -> None:
    # As many points as numbers, but not one in each.
    assert nanoseconds([b"1234.567", b"12345678"]).tolist() == [1234567, 12345678000]
    assert nanoseconds([b"1.2.345", b"12345"]).tolist() == [NULL, 12345000]


def test_an_empty_column() -> None:
    assert nanoseconds([]).tolist() == []


@pytest.mark.parametrize("count", [4309, 100_000])
def test_numbers_of_thousands_of_digits_do_not_stop_the_run(count: int) -> None:
    """Python refuses to convert more than 4300 digits at once."""
    assert nanoseconds_of(b"9" * count) is None
    assert nanoseconds_of(b"12." + b"0" * count) == 12_000
    assert nanoseconds_of(b"12.0005" + b"0" * count) == 12_000  # a tie: to even
    assert nanoseconds_of(b"12.0005" + b"0" * count + b"1") == 12_001
    assert nanoseconds_of(b"12.0014" + b"9" * count) == 12_001
    assert nanoseconds([b"1.5", b"0." + b"3" * count, b"7" * count]).tolist() == [1500, 333, NULL]
