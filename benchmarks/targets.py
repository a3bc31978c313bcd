"""What this project set out to reach, and how a figure is shown beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LARGE_FROM_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Target:
    """Bounds of one candidate; None: nothing was set.

    ``less_cpu``, ``less_memory``: at least this many times less than the better release of
    HolisticTraceAnalysis. ``times_floor``: at most this many times the CPU of the floor.
    ``peak_mib``: at most this much memory.
    """

    less_cpu: float | None = None
    less_memory: float | None = None
    times_floor: float | None = None
    peak_mib: float | None = None


_EVERYTHING = Target(less_cpu=10, less_memory=10, times_floor=9, peak_mib=1024)

LARGE: Mapping[str, Target] = {
    "overlap": Target(less_cpu=25, times_floor=3, peak_mib=150),
    "report": Target(less_cpu=15, times_floor=6, peak_mib=400),
    "everything": _EVERYTHING,
    "judged": _EVERYTHING,
}
SMALL = Target(less_cpu=5, peak_mib=120)
INTERVALS = Target(less_cpu=8)


def target(candidate: str, num_bytes: int) -> Target:
    """The target of a candidate on an input of this many bytes of text."""
    return LARGE.get(candidate, Target()) if num_bytes >= LARGE_FROM_BYTES else SMALL


def beside(shown: str, value: float | None, bound: float | None, *, at_most: bool) -> str:
    """A figure with its target in parentheses, in bold where the target is missed."""
    if value is None or bound is None:
        return shown
    met = value <= bound if at_most else value >= bound
    stated = f"{shown} ({bound:,.0f})"
    return stated if met else f"**{stated}**"
