"""Microseconds as text to integer nanoseconds, exact: no float in between.

A double near today's unix time in microseconds (1.7e15) holds every fourth of
one, so ``float`` would move each event by up to 125 ns. Here the digits are
read: the usual column (no sign, no exponent, the same number of decimals
throughout) by removing the points and reading integers, everything else value by
value. More than three decimals round half to even, from the digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diagnose.schema import NULL

Array = npt.NDArray[np.int64]

_LARGEST = 1 << 62
_MOST_DECIMALS = 4000  # Python converts no more than 4300 digits at once
_NUMBER = re.compile(
    rb'\s*"?\s*([+-]?)(?=\.?\d)(\d{0,25})(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?\s*"?\s*'
)
_POINT, _BLANK = 46, 32


def nanoseconds_of(text: bytes) -> int | None:
    """One number of microseconds, in quotes or not, in ns; None if it is no usable number."""
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    sign, whole, fraction, exponent = found.groups()
    fraction = fraction or b""
    if fraction[_MOST_DECIMALS:].strip(b"0"):
        fraction = fraction[:_MOST_DECIMALS] + b"1"  # not zero: all that rounding asks of the rest
    else:
        fraction = fraction[:_MOST_DECIMALS]
    shift = int(exponent or 0) + 3 - len(fraction)
    digits = int(whole + fraction)
    if shift >= 0:
        value = digits * 10**shift if digits < 10**40 and shift < 40 else _LARGEST
    else:
        value, rest = divmod(digits, 10**-shift)
        half = 2 * rest - 10**-shift
        value += half > 0 or (half == 0 and value & 1)
    if value >= _LARGEST:
        return None
    return -value if sign == b"-" else value


def nanoseconds(texts: Sequence[bytes]) -> Array:
    """A column of numbers of microseconds as written, in ns; ``NULL`` where unusable.

    ``texts`` may hold anything with the buffer protocol (``msgspec.Raw``).
    """
    if not texts:
        return np.empty(0, np.int64)
    text = b" ".join(texts)
    values = _plain_column(text, len(texts))
    if values is not None:
        return values
    unusable = NULL
    found = [nanoseconds_of(bytes(one)) for one in texts]
    return np.array([unusable if one is None else one for one in found], np.int64)


def _plain_column(text: bytes, count: int) -> Array | None:
    """The column if all its values are digits alone, or all with three decimals; else None."""
    if text.translate(None, b"0123456789. "):
        return None
    characters = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(characters == _BLANK), len(text))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != count or lengths.min() < 1:
        return None
    points = np.flatnonzero(characters == _POINT)
    if not len(points):
        return np.fromstring(text, np.int64, sep=" ") * 1000 if lengths.max() <= 15 else None
    if (
        len(points) != count
        or lengths.min() < 5
        or lengths.max() > 20
        or not np.array_equal(points, ends - 4)
    ):
        return None
    values: Array = np.fromstring(text.replace(b".", b""), np.int64, sep=" ")
    return values if values.max() < _LARGEST else None  # a value too large reads as 2^63 - 1
