"""What a mask of ``clocks_event_reasons`` says, bit by bit.

The bits are NVML's ``nvmlClocksEventReason*`` (``nvmlClocksThrottleReason*`` in
drivers before 535); they have not changed meaning since they were introduced.
"""

from __future__ import annotations

from typing import NamedTuple


class ClockReason(NamedTuple):
    """One bit: its name, what it means, and whether clocks are lowered against the wish of a job.

    ``slows`` is False for an idle GPU and for clocks that somebody chose.
    """

    bit: int
    name: str
    meaning: str
    slows: bool


CLOCK_REASONS = (
    ClockReason(0x1, "gpu_idle", "nothing runs on the GPU", False),
    ClockReason(0x2, "applications_clocks_setting", "clocks were set by an administrator", False),
    ClockReason(0x4, "sw_power_cap", "the power limit is reached", True),
    ClockReason(0x8, "hw_slowdown", "the hardware halves its clocks or worse", True),
    ClockReason(0x10, "sync_boost", "held to the clock of another GPU of its group", True),
    ClockReason(0x20, "sw_thermal_slowdown", "the driver keeps the temperature down", True),
    ClockReason(0x40, "hw_thermal_slowdown", "too hot: the hardware slows itself down", True),
    ClockReason(0x80, "hw_power_brake_slowdown", "the server asked to use less power", True),
    ClockReason(0x100, "display_clock_setting", "clocks were set for a display", False),
    ClockReason(0x200, "board_limit", "a limit of the board is reached", True),
    ClockReason(0x400, "reliability", "a voltage limit for reliability is reached", True),
)

_KNOWN = sum(reason.bit for reason in CLOCK_REASONS)


def clock_reasons(mask: float | None) -> tuple[ClockReason, ...]:
    """The reasons in a mask as a table holds it, lowest bit first.

    Unknown (None, NaN, infinite, negative) gives none. Bits of a newer driver come as
    ``unknown_0x...`` and count as slowing nothing, since that is not known.
    """
    if mask is None or not 0 <= mask < 2**64:
        return ()
    bits = int(mask)
    known = [reason for reason in CLOCK_REASONS if bits & reason.bit]
    unknown = [
        ClockReason(1 << place, f"unknown_{1 << place:#x}", "not known to this version", False)
        for place in range(64)
        if bits & ~_KNOWN & (1 << place)
    ]
    return tuple(known + unknown)


def clock_reason_names(mask: float | None) -> tuple[str, ...]:
    """The names alone: ``("sw_power_cap", "hw_thermal_slowdown")``."""
    return tuple(reason.name for reason in clock_reasons(mask))
