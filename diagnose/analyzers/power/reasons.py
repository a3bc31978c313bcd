"""Why clocks were lowered: each reason by name, how long it held, what it can have cost.

A row of telemetry stands for the time until the next row (at most a second: beyond that
nobody looked). The cost of a reason is an upper bound: computing time while it held, times
what the clock lacked of the highest clock recorded. Compute that waits for memory loses
less, and another reason may hold at the same time and be the one that counts: costs of
reasons are not to be added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.power.doing import ClassTimes, Doing
from diagnose.intervals import Array
from diagnose.telemetry.clock_reasons import ClockReason, clock_reasons
from diagnose.trace import Table

Floats = npt.NDArray[np.float64]

_LONGEST_ROW_NS = 1_000_000_000
POWER_CAP = "sw_power_cap"


class Held(NamedTuple):
    """One reason on one GPU. Times are within the window of GPU work; NaN: cannot be told."""

    reason: ClockReason
    held_ns: int
    recorded_ns: int
    """The same over all of the telemetry, also outside of the window."""
    num_spells: int
    longest_ns: int
    compute_ns: int
    """Of the time held: while the GPU computed."""
    clock_mhz: float
    """Mean clock while it held and the GPU computed."""
    reference_mhz: float
    """The highest clock recorded, with which that is compared."""
    cost_ns: float
    """Upper bound of what it cost. NaN where there is no clock to compare with."""
    cost_why: str | None


def held_reasons(samples: Table, times: ClassTimes) -> list[Held] | None:
    """Every reason that held, longest first; None where the sensor was not recorded."""
    rows = samples.take(samples.known("clocks_event_reasons"))
    if len(rows) < 2:
        return None
    start, end = _rows_time(rows)
    mask = rows["clocks_event_reasons"][:-1]
    inside = _inside(start, end, times)
    passed = times.until(times.seconds(end)) - times.until(times.seconds(start))
    computing = passed[:, Doing.COMPUTE] + passed[:, Doing.OVERLAPPED]
    clock = rows["sm_clock_mhz"][:-1]
    seen: dict[int, ClockReason] = {}
    for value in np.unique(mask).tolist():
        seen |= {reason.bit: reason for reason in clock_reasons(value)}
    bits = mask.astype(np.uint64)
    found = []
    for reason in seen.values():
        on = (bits & np.uint64(reason.bit)) != 0
        found.append(_held(reason, on, end - start, inside, computing, clock))
    return sorted(found, key=lambda held: (-held.held_ns, -held.recorded_ns, held.reason.bit))


def slowed_ns(samples: Table, times: ClassTimes) -> tuple[int | None, int | None]:
    """Time in the window with any reason that slows a job, and with the power limit as one.

    None where the sensor was not recorded.
    """
    rows = samples.take(samples.known("clocks_event_reasons"))
    if len(rows) < 2:
        return None, None
    start, end = _rows_time(rows)
    inside = _inside(start, end, times)
    masks, which = np.unique(rows["clocks_event_reasons"][:-1], return_inverse=True)
    length = np.bincount(which, inside, len(masks))
    held = [clock_reasons(mask) for mask in masks.tolist()]
    slows = [any(reason.slows for reason in reasons) for reasons in held]
    capped = [any(reason.name == POWER_CAP for reason in reasons) for reasons in held]
    return int(length[slows].sum()), int(length[capped].sum())


def _rows_time(rows: Table) -> tuple[Array, Array]:
    """The time that each row but the last stands for."""
    start = rows["unix_ns"][:-1]
    return start, np.minimum(rows["unix_ns"][1:], start + _LONGEST_ROW_NS)


def _inside(start: Array, end: Array, times: ClassTimes) -> Array:
    edges = times.start_ns, times.end_ns
    length: Array = np.clip(end, *edges) - np.clip(start, *edges)
    return length


def _held(
    reason: ClockReason,
    on: npt.NDArray[np.bool_],
    length: Array,
    inside: Array,
    computing: Floats,
    clock: Floats,
) -> Held:
    begins = on & ~np.concatenate([[False], on[:-1]])
    within = on & (inside > 0)
    spell = np.cumsum(begins)
    lengths = np.bincount(spell[within], inside[within]) if within.any() else np.zeros(1)
    reference = float(np.nanmax(clock)) if not np.isnan(clock).all() else np.nan
    weighed = within & (computing > 0) & ~np.isnan(clock)
    compute = float(computing[within].sum())
    mean = (
        float(np.average(clock[weighed], weights=computing[weighed])) if weighed.any() else np.nan
    )
    why = _no_cost(reason, weighed, mean, reference)
    lacking = 1 - clock[weighed] / reference
    return Held(
        reason=reason,
        held_ns=int(inside[within].sum()),
        recorded_ns=int(length[on].sum()),
        num_spells=int(np.count_nonzero(lengths)),
        longest_ns=int(lengths.max()),
        compute_ns=round(compute * 1e9),
        clock_mhz=mean,
        reference_mhz=reference,
        cost_ns=np.nan if why else 1e9 * float((computing[weighed] * lacking).sum()),
        cost_why=why,
    )


def _no_cost(
    reason: ClockReason, weighed: npt.NDArray[np.bool_], mean: float, reference: float
) -> str | None:
    if not reason.slows:
        return f"{reason.name} does not hold a job back"
    if not weighed.any():
        return "the GPU did not compute while it held, or its clock was not recorded"
    if mean >= reference:
        return "no higher clock was recorded to compare with"
    return None
