"""How fast large transfers are that nothing disturbs, and what they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.rules._references import (
    Asked,
    Reference,
    nccl_tests_reference,
    nominal_reference,
    set_reference,
)
from diagnose.rules._rule import NotJudged, Thresholds, limit
from diagnose.trace import Gpu, Table

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
_MOST_HIDDEN = 0.1
"""Of a transfer beside compute, above which contention may be what makes it slow (judgement)."""

UNKNOWN_SPEED = NotJudged(
    "what the links reach alone is not known",
    "run nccl-tests on the same ranks and give its output with --nccl-tests FILE, or write its "
    "busbw as measured_gb_per_s into diagnose.toml",
)


@dataclass(frozen=True, kw_only=True)
class NetworkLimits(Thresholds):
    """What makes a network slow; for the rules that ask this first."""

    min_message_mib: float = limit(32.0, "smaller messages are bound by latency (nccl-tests)")
    min_num_collectives: int = limit(3, "so that a median means something (judgement)")
    measured_gb_per_s: float = limit(
        0.0, "busbw of nccl-tests on the same ranks, to be set for the job; 0: not known"
    )
    max_of_measured_pct: float = limit(60.0, "of what nccl-tests reached (judgement)")
    max_of_link_pct: float = limit(50.0, "of the nominal link_gb_per_s (judgement)")


class Speed(NamedTuple):
    """Large collectives of one kind and group, with neither compute nor others beside them."""

    kind: str
    group: str | None
    group_ranks: str | None
    gpus: tuple[Gpu, ...]
    number: int
    median_bytes: float
    busbw_gb_per_s: float
    """Median, of the transfer: waiting for late ranks is taken out."""
    group_size: int | None
    num_hosts: int | None
    """Machines of the group; None where not every rank of it, with its machine, is known."""


class Slow(NamedTuple):
    """A speed below the level."""

    speed: Speed
    reference_gb_per_s: float
    reached_pct: float
    level: str
    """The threshold that it was held against."""
    reference: str
    """Which reference that is, as a noun phrase."""


def speeds_of(facts: Facts, limits: NetworkLimits) -> list[Speed]:
    """What large undisturbed collectives reached. Ends the rule where no ranks were matched."""
    waits, slack = facts.table("rank_waits"), facts.table("slack")
    at = np.searchsorted(slack["gpu_op_row"], waits["gpu_op_row"])
    hidden = (slack["transfer_ns"] - slack["exposed_transfer_ns"])[at]
    fit = hidden <= _MOST_HIDDEN * np.maximum(slack["transfer_ns"][at], 1)
    fit &= ~_beside_others(facts, waits) & waits["complete"] & (waits["busbw_gb_per_s"] > 0)
    fit &= waits.known("bytes") & (waits["bytes"] >= limits.min_message_mib * 2**20)
    fit &= np.isin(np.array(waits.texts("collective"), object).astype(str), _KINDS)
    # A collective counts where no rank of it was disturbed.
    bad = np.unique(waits["match"][~fit])
    clear = waits.take(~np.isin(waits["match"], bad))
    return _grouped(facts, clear, limits.min_num_collectives)


def reference_of(facts: Facts, limits: NetworkLimits, speed: Speed) -> Reference | None:
    """What a speed is held against: nccl-tests' own row, the configuration, the nominal rate.

    The first of these that is known.
    """
    asked = Asked(speed.kind, speed.median_bytes, speed.group_size, speed.num_hosts)
    return (
        nccl_tests_reference(facts, asked)
        or set_reference(limits.measured_gb_per_s, "measured_gb_per_s")
        or nominal_reference(facts)
    )


def slow_ones(facts: Facts, limits: NetworkLimits, speeds: Sequence[Speed]) -> list[Slow] | None:
    """The speeds below the level; None where nothing says what the links can do for any."""
    known = [(one, ref) for one in speeds if (ref := reference_of(facts, limits, one)) is not None]
    if not known and (speeds or not _any_reference(facts, limits)):
        return None
    found = []
    for speed, reference in known:
        reached = 100 * speed.busbw_gb_per_s / reference.busbw_gb_per_s
        if reached < getattr(limits, reference.level):
            found.append(
                Slow(speed, reference.busbw_gb_per_s, reached, reference.level, reference.words)
            )
    return found


def _any_reference(facts: Facts, limits: NetworkLimits) -> bool:
    said = facts.reference or limits.measured_gb_per_s > 0 or nominal_reference(facts)
    return bool(said)


def _beside_others(facts: Facts, waits: Table) -> npt.NDArray[np.bool_]:
    """Whether other communication runs on the same GPU at the same time."""
    ops, table = facts.trace.gpu_ops, facts.trace.collectives
    disturbed = np.zeros(len(waits), bool)
    for gpu in facts.trace.gpus:
        on = facts.trace.on(gpu)
        rows = table["gpu_op_row"]
        rows = rows[(rows >= on.start) & (rows < on.stop)]
        starts, ends = np.sort(ops["start_ns"][rows]), np.sort(ops["end_ns"][rows])
        mine = np.flatnonzero(facts.on(waits, gpu))
        begin, end = (ops[name][waits["gpu_op_row"][mine]] for name in ("start_ns", "end_ns"))
        running = np.searchsorted(starts, end, "left") - np.searchsorted(ends, begin, "right")
        disturbed[mine] = running > 1
    return disturbed


def _grouped(facts: Facts, waits: Table, least: int) -> list[Speed]:
    found = []
    keys = np.stack([waits["collective"], waits["group"]], 1)
    said = facts.trace.collectives
    rows_of = dict(zip(said["gpu_op_row"].tolist(), range(len(said)), strict=True))
    for key in np.unique(keys, axis=0):
        rows = waits.take((keys == key).all(1))
        _, once = np.unique(rows["match"], return_index=True)
        if len(once) < least:
            continue
        places = set(zip(rows["source"].tolist(), rows["device"].tolist(), strict=True))
        gpus = tuple(g for g in facts.gpus if (g.source, g.device) in places)
        first = said.take(np.array([rows_of[int(rows["gpu_op_row"][0])]]))
        group_size = int(first["group_size"][0]) if first.known("group_size")[0] else None
        found.append(
            Speed(
                kind=waits.strings[int(key[0])],
                group=waits.strings[int(key[1])] if key[1] >= 0 else None,
                group_ranks=first.texts("group_ranks")[0],
                gpus=gpus,
                number=len(once),
                median_bytes=float(np.median(rows["bytes"][once])),
                busbw_gb_per_s=float(np.median(rows["busbw_gb_per_s"][once])),
                group_size=group_size,
                num_hosts=_num_hosts(facts, gpus, group_size),
            )
        )
    return found


def _num_hosts(facts: Facts, gpus: Sequence[Gpu], group_size: int | None) -> int | None:
    hosts = {facts.trace.sources[gpu.source].host for gpu in gpus}
    return len(hosts) if len(gpus) == group_size and None not in hosts else None


def slow_of(facts: Facts, limits: NetworkLimits) -> list[Slow] | None:
    """As ``slow_ones``; None also where ranks were not recorded together."""
    if facts.find("rank_waits") is None or facts.find("slack") is None:
        return None
    return slow_ones(facts, limits, speeds_of(facts, limits))


def set_to(facts: Facts, names: Sequence[str]) -> dict[str, dict[int, str]]:
    """Of some variables those that are set: name -> source -> value."""
    found = {name: dict(facts.variables(name)) for name in names}
    return {name: values for name, values in found.items() if values}
