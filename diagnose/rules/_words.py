"""Numbers and places as sentences of findings write them."""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.trace import Gpu, Trace

_MOST_RUNS = 8


def duration(nanoseconds: float) -> str:
    """``812.0 us``, ``3.40 ms`` or ``12.3 s``."""
    size = abs(nanoseconds)
    if size < 1e6:
        return f"{nanoseconds / 1e3:.1f} us"
    return f"{nanoseconds / 1e6:.2f} ms" if size < 1e10 else f"{nanoseconds / 1e9:.1f} s"


def percent(value: float) -> str:
    """``7.3 %``; what is above 0 never reads as 0."""
    return "<0.1 %" if 0 < value < 0.05 else f"{value:.1f} %"


def size(num_bytes: float) -> str:
    """Bytes in binary units: ``25.0 MiB``."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def counted(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def runs(numbers: Iterable[int]) -> str:
    """``0-3, 7``; the first few runs of many."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in found[:_MOST_RUNS]]
    more = len(found) - _MOST_RUNS
    return ", ".join(shown) + (f" and {more} more ranges" if more > 0 else "")


def who(trace: Trace, gpus: Iterable[Gpu]) -> str:
    """``rank 1``, ``ranks 0-3``, ``all 8 ranks``; by file where a rank is unknown.

    Two devices of one process are told apart as ``rank 0 GPU 1``.
    """
    gpus = tuple(gpus)
    ranks = [gpu.rank for gpu in gpus if gpu.rank is not None]
    if len(gpus) == len(trace.gpus) > 2:
        return f"all {len(gpus)} {'ranks' if len(set(ranks)) == len(gpus) else 'GPUs'}"
    if len(set(ranks)) == len(gpus):
        return f"rank{'' if len(gpus) == 1 else 's'} {runs(ranks)}"
    if len(gpus) > 3:
        return counted(len(gpus), "GPU")
    several = len({gpu.source for gpu in trace.gpus}) < len(trace.gpus)
    return ", ".join(
        trace.sources[gpu.source].label + (f" GPU {gpu.device}" if several else "") for gpu in gpus
    )
