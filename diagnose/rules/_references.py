"""What the links are known to reach for one collective: measured, set for the job, or nominal."""

from __future__ import annotations

import math
from typing import NamedTuple

from diagnose.rules._facts import Facts
from diagnose.rules._words import counted, size

_MOST_APART = 4.0
"""Between a message and the nearest size measured, as a factor, up to which the one tells of the
other (judgement: nccl-tests' sizes double, so within a table they are at most 1.5 apart)."""


class Reference(NamedTuple):
    """A bandwidth to hold a collective against."""

    busbw_gb_per_s: float
    level: str
    """The threshold for the share of it that must be reached."""
    words: str
    """Which reference it is, as a noun phrase: ``nccl-tests' all_reduce of 32.0 MiB...``."""


class Asked(NamedTuple):
    """What a reference has to be for."""

    kind: str
    num_bytes: float
    group_size: int | None
    num_hosts: int | None
    """None: not known; any number of machines fits."""


def nccl_tests_reference(
    facts: Facts, asked: Asked, *, hosts_known: bool = False
) -> Reference | None:
    """The row of the nccl-tests tables that were given for this kind, group size and machines.

    Of these the nearest size, by its factor. A table that does not say its ranks or machines
    stands behind those that do; with ``hosts_known`` it does not count unless it names its
    machines. None where no row fits.
    """
    fitting = []
    for point in facts.reference:
        if point.collective != asked.kind or min(point.busbw_gb_per_s, asked.num_bytes) <= 0:
            continue
        if point.num_ranks is not None and point.num_ranks != asked.group_size:
            continue
        known = None not in (point.num_hosts, asked.num_hosts)
        if (known and point.num_hosts != asked.num_hosts) or (hosts_known and not known):
            continue
        apart = abs(math.log(point.bytes / asked.num_bytes))
        if apart <= math.log(_MOST_APART):
            fitting.append((point.num_ranks is None, not known, apart, point))
    if not fitting:
        return None
    least = min(one[:3] for one in fitting)
    best = [one[3] for one in fitting if one[:3] == least]
    point = max(best, key=lambda one: one.busbw_gb_per_s)
    of = "" if point.num_ranks is None else f" on {counted(point.num_ranks, 'rank')}"
    if point.num_hosts is not None and point.num_hosts > 1:
        of += f" of {point.num_hosts} machines"
    words = f"nccl-tests' {point.collective} of {size(point.bytes)}{of}"
    return Reference(point.busbw_gb_per_s, "max_of_measured_pct", words)


def set_reference(gb_per_s: float, threshold: str) -> Reference | None:
    """What the configuration says; None where it says nothing."""
    if not gb_per_s > 0:
        return None
    return Reference(gb_per_s, "max_of_measured_pct", f"{threshold} of the configuration")


def nominal_reference(facts: Facts) -> Reference | None:
    """The least rate of links that an environment file names; None where none does."""
    named = [facts.environment(s).get("link_gb_per_s") for s in range(len(facts.trace.sources))]
    links = [float(one) for one in named if isinstance(one, (int, float)) and one > 0]
    if not links:
        return None
    return Reference(min(links), "max_of_link_pct", "the nominal link_gb_per_s")
