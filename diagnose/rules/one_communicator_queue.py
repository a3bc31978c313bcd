"""Collectives of a group queue for each other, not for the link.

## Looks for
Collectives that were ready while one of the same process group ran, which used but a part of what
the group reaches.

## Why it costs time
NCCL runs the collectives of a communicator one after the other. Behind one that is slow because it
is small, rather than because the link is full, the next could have begun.

## How it decides
Of the time in which collectives stood ready behind one of their own group and stream (waiting for
late ranks taken out), only time behind a collective below `max_busbw_pct` of the best bus bandwidth
of the group counts (or of nccl-tests' where given), and of that the part of the bandwidth that was
left. A collective whose blocks leave no room for those of the next does not count. At most as much
as communication is exposed, and `min_waiting_pct` of the step or more. With the traces of one rank
a slow collective may just have waited for others: then it is a hint.

## Stays silent when
The link is full, blocks of two collectives do not fit beside each other, communication is hidden,
or the collectives run on a stream that computes (collective-on-compute-stream).

## What to do
Another process group over the same ranks for part of the collectives, or another order.

## Example
Fifty small all-gathers of 40 us at 5 % of the bandwidth stand in a row: 2 ms, though two groups
would have halved that.

## References
- PyTorch issue 137390; torchrec issue 4708; FSDP documentation on separate groups
- NCCL, NCCL_LAUNCH_ORDER_IMPLICIT: the order across communicators must be the same on all ranks
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import covered_length, union
from diagnose.rules import (
    Clean,
    Cost,
    Evidence,
    Facts,
    Fix,
    Need,
    Outcome,
    Rule,
    Symptom,
    Thresholds,
    Where,
    counted,
    duration,
    limit,
    percent,
    who,
)
from diagnose.rules._blocks import blocks_of
from diagnose.rules._queues import Array, Queued, queued_on
from diagnose.trace import Gpu, Table

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Limits(Thresholds):
    """When a queue of one communicator is worth naming."""

    max_busbw_pct: float = limit(60.0, "of the best; more: the link is as good as full (judgement)")
    min_waiting_pct: float = limit(3.0, "of the step; worth another process group (judgement)")


class Line(NamedTuple):
    """Collectives that waited for one of their own group, of one GPU."""

    group: str
    stream: int
    number: int
    waiting_ns: float
    """Per step, behind collectives that did not fill the link."""
    saved_ns: float
    """The part of it for which there was bandwidth; at most the exposed communication."""
    busbw_pct: float
    """Of those waited for, mean by the time waited."""


class Speeds(NamedTuple):
    """By row of ``collectives``."""

    busbw_pct: Floats
    """Of the best of the group; NaN: unknown."""
    transfer_ns: Array
    certain: bool
    """Whether waiting for late ranks is taken out."""


def check(facts: Facts, limits: Limits) -> Outcome:
    """One finding for each process group."""
    speeds = _speeds(facts)
    hit: dict[str, dict[Gpu, Line]] = {}
    for gpu in facts.gpus:
        for line in _lines(facts, limits, gpu, speeds):
            if facts.share_pct(line.saved_ns) >= limits.min_waiting_pct:
                best = hit.setdefault(line.group, {}).setdefault(gpu, line)
                if line.saved_ns > best.saved_ns:
                    hit[line.group][gpu] = line
    if not hit:
        return Clean("collectives wait for none of their own group, or the link is full")
    return tuple(_symptom(facts, lines, certain=speeds.certain) for _, lines in sorted(hit.items()))


def _speeds(facts: Facts) -> Speeds:
    """Of each collective, held against the best of its group."""
    table = facts.table("collectives")
    busbw, transfer = table["busbw_gb_per_s"].copy(), table["duration_ns"].astype(np.int64)
    waits = facts.find("rank_waits")
    certain = waits is not None and bool(waits["complete"].any())
    if waits is not None and certain:
        whole = waits.take(waits["complete"])
        busbw[:] = np.nan
        at = np.searchsorted(table["gpu_op_row"], whole["gpu_op_row"])
        busbw[at], transfer[at] = whole["busbw_gb_per_s"], whole["transfer_ns"]
    best = np.full(len(table), np.nan)
    for group in np.unique(table["group"]).tolist():
        mine = table["group"] == group
        best[mine] = np.fmax.reduce(busbw[mine], initial=0.0)
    best = np.fmax(best, table["reference_busbw_gb_per_s"])
    share = np.divide(100 * busbw, best, out=np.full(len(table), np.nan), where=best > 0)
    return Speeds(share, transfer, certain)


def _lines(facts: Facts, limits: Limits, gpu: Gpu, speeds: Speeds) -> list[Line]:
    queued, table = queued_on(facts, gpu), facts.table("collectives")
    at = np.searchsorted(table["gpu_op_row"], queued.rows)
    at = np.minimum(at, max(len(table) - 1, 0))
    known = (len(table) > 0) & (table["gpu_op_row"][at] == queued.rows)
    group = np.where(known, table["group"][at], -1)
    behind = np.flatnonzero(queued.in_steps & (queued.before >= 0) & (group >= 0))
    behind = behind[group[queued.before[behind]] == group[behind]]
    behind = behind[queued.free_ns[behind] < queued.own_ns[behind]]
    # On a stream that computes, another group would stand in the same line.
    behind = behind[~np.isin(queued.ops["stream"][behind], queued.ops["stream"][queued.computes])]
    found = []
    exposed = facts.per_step(facts.table("breakdown"), "exposed_communication_ns", gpu)
    lanes = np.stack([group[behind], queued.ops["stream"][behind]], 1)
    for code, stream in np.unique(lanes, axis=0).tolist():
        mine = behind[(lanes == (code, stream)).all(1)]
        ahead = np.flatnonzero((group == code) & (queued.ops["stream"] == stream))
        line = _line(facts, limits, gpu, queued, mine, ahead, at, speeds)
        number = facts.steps[gpu].number
        saved = min(line.saved_ns / number, exposed)
        found.append(
            line._replace(
                group=table.strings[code], waiting_ns=line.waiting_ns / number, saved_ns=saved
            )
        )
    return found


def _line(
    facts: Facts,
    limits: Limits,
    gpu: Gpu,
    queued: Queued,
    mine: Array,
    ahead: Array,
    at: Array,
    speeds: Speeds,
) -> Line:
    """Those that waited (``mine``) behind those of the same group and stream (``ahead``)."""
    ops = queued.ops
    waited = union(queued.free_ns[mine], np.minimum(queued.own_ns[mine], ops["start_ns"][mine]))
    share, end = speeds.busbw_pct[at[ahead]], ops["end_ns"][ahead]
    begin = np.maximum(ops["start_ns"][ahead], end - speeds.transfer_ns[at[ahead]])
    waiting = covered_length(waited, begin, end)
    slow = (share < limits.max_busbw_pct) & _fits_the_next(facts, gpu, ops.take(ahead))
    waiting = np.where(slow, waiting, 0)
    left = np.where(slow, 1 - np.nan_to_num(share) / 100, 0.0)
    total = int(waiting.sum())
    return Line(
        "",
        int(ops["stream"][mine[0]]),
        int((waiting > 0).sum()),
        float(total),
        float((waiting * left).sum()),
        float((waiting * np.nan_to_num(share)).sum()) / total if total else float("nan"),
    )


def _fits_the_next(facts: Facts, gpu: Gpu, ahead: Table) -> npt.NDArray[np.bool_]:
    """Whether the blocks of each and of the one behind it fit on the GPU together.

    True where that is not known.
    """
    number = facts.sm_count(gpu.source)
    if number is None or not len(ahead):
        return np.ones(len(ahead), bool)
    blocks = blocks_of(ahead)
    found: npt.NDArray[np.bool_] = blocks + np.append(blocks[1:], 0) <= number
    return found


def _symptom(facts: Facts, lines: dict[Gpu, Line], *, certain: bool) -> Symptom:
    worst = max(lines.values(), key=lambda one: one.saved_ns)
    share = facts.share_pct(worst.saved_ns)
    streams = tuple(sorted({line.stream for line in lines.values()}))
    return Symptom(
        sentence=(
            f"Collectives of process group {worst.group} on {who(facts.trace, lines)} stood ready "
            f"for {duration(worst.waiting_ns)} {facts.a_step} behind "
            f"{counted(worst.number, 'other')} of it that used {percent(worst.busbw_pct)} of the "
            "bandwidth the group reaches."
        ),
        where=Where(gpus=tuple(lines), streams=streams),
        evidence=(
            Evidence(
                "waiting_ns", f"waiting behind the own group {facts.a_step}", worst.waiting_ns
            ),
            Evidence("saved_ns", "of it, with bandwidth to spare and exposed", worst.saved_ns),
            Evidence("waiting_pct", "that, as share of the step", share, "min_waiting_pct"),
            Evidence("busbw_pct", "bandwidth of those ahead", worst.busbw_pct, "max_busbw_pct"),
            Evidence("num_ahead", "collectives waited for", worst.number),
        ),
        cost=Cost(worst.saved_ns, "waiting behind the own group with bandwidth to spare", True),
        advice=(
            Fix(
                "A second group over the same ranks for part of the collectives.",
                "dist.new_group(ranks)",
            ),
            Fix("Or issue first what is needed first."),
        ),
        caveats=(
            "Two communicators take more multiprocessors, and share the link.",
            "The order across communicators must be the same on all ranks, or the job hangs.",
        ),
        confidence="medium" if certain else "low",
        subject=f"group {worst.group}",
    )


RULE = Rule(
    check=check,
    area="overlap",
    confidence="medium",
    needs=(Need.COMMUNICATION, Need.LAUNCHES),
    thresholds=Limits(),
    explains=("exposed-communication",),
)
