"""Numbers as people read them. Integer arithmetic: what is shown is the value rounded once."""

from __future__ import annotations

import math
from typing import NamedTuple

from diagnose.schema import NULL

ABSENT = "-"


class Scale(NamedTuple):
    """The unit that all times of a report share."""

    unit: str
    nanoseconds: int
    decimals: int

    def show(self, nanoseconds: int) -> str:
        """A time without its unit; ``-`` if it is null."""
        if nanoseconds == NULL:
            return ABSENT
        return _decimal(nanoseconds, self.nanoseconds, self.decimals)


def scale_for(longest_ns: int) -> Scale:
    """Microseconds, milliseconds or seconds, by the longest time to be shown."""
    if longest_ns < 10_000_000:
        return Scale("us", 1_000, 1)
    if longest_ns < 100_000_000_000:
        return Scale("ms", 1_000_000, 2)
    return Scale("s", 1_000_000_000, 3)


def _decimal(value: int, divisor: int, decimals: int) -> str:
    unit = divisor // 10**decimals
    rounded = (2 * abs(value) + unit) // (2 * unit)
    whole, rest = divmod(rounded, 10**decimals)
    sign = "-" if value < 0 and rounded else ""
    return f"{sign}{whole}.{rest:0{decimals}d}"


def percent(value: float) -> str:
    """One decimal, without its sign. Only what is 0 or 100 reads so."""
    if math.isnan(value):
        return ABSENT
    if 0 < value < 0.05:
        return "<0.1"
    if 99.95 <= value < 100:
        return ">99.9"
    return f"{value:.1f}"


def rate(value: float) -> str:
    """Three significant digits; ``-`` if it is null."""
    if math.isnan(value):
        return ABSENT
    digits = 3 - len(str(int(value))) if value >= 1 else 3
    return f"{value:.{max(digits, 0)}f}"


def size(num_bytes: int, decimals: int = 2) -> str:
    """Bytes in binary units, whole ones without decimals; ``-`` if it is null."""
    if num_bytes == NULL:
        return ABSENT
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            exact = num_bytes % 1024**power == 0
            return f"{num_bytes / 1024**power:.{0 if exact else decimals}f} {unit}"
    return f"{num_bytes} B"


def counted(number: int, thing: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def ranges(numbers: list[int]) -> str:
    """``0-3, 7``. The first few runs of many."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in runs[:8]]
    return ", ".join(shown) + (f" and {len(runs) - 8} more ranges" if len(runs) > 8 else "")
