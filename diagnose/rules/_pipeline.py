"""Which ranks are stages of a pipeline, and how long each waits for the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.rules._facts import Facts
from diagnose.rules._steps import step_rows
from diagnose.schema import Activity
from diagnose.trace import Gpu, Table

_EXCHANGE = "send_recv"
_HOST_CALLS = ("c10d::send", "c10d::recv")

Mask = npt.NDArray[np.bool_]


class Ranks(NamedTuple):
    """Ranks that send to each other, in order; ``gpus`` are those of them that were recorded."""

    ranks: tuple[int, ...]
    gpus: tuple[Gpu, ...]


class Stage(NamedTuple):
    """One stage of a pipeline. Figures are per step."""

    gpu: Gpu
    num_batches: float
    """Sends to the next stage with compute between them."""
    waits_ns: float
    """Point-to-point communication with no compute beside it."""
    work_ns: float
    """Compute, and other communication and copies that are not hidden."""
    head_ns: float
    """Of the waits, those before the first compute of a step."""


def pipelines(facts: Facts) -> list[Ranks]:
    """Groups of ranks that are connected by point-to-point communication, by lowest rank."""
    parent: dict[int, int] = {}

    def root(rank: int) -> int:
        while parent.setdefault(rank, rank) != rank:
            rank = parent[rank]
        return rank

    by_rank = {gpu.rank: gpu for gpu in facts.gpus if gpu.rank is not None}
    for rank, gpu in by_rank.items():
        table = _on(facts, gpu)
        for peer in np.unique(table["peer"][_exchanges(table)]).tolist():
            parent[root(rank)] = root(peer)
    groups: dict[int, list[int]] = {}
    for rank in sorted(parent):
        groups.setdefault(root(rank), []).append(rank)
    return [
        Ranks(tuple(ranks), tuple(by_rank[rank] for rank in ranks if rank in by_rank))
        for ranks in groups.values()
        if len(ranks) > 1
    ]


def transfers_without_peer(facts: Facts) -> bool:
    """Whether the host sends or receives, and the transfers do not say with whom.

    A kernel alone does not tell: NCCL runs all-to-alls with the same one.
    """
    names = facts.trace.host_ops.strings.where(lambda text: text.startswith(_HOST_CALLS))
    return bool(np.append(names, False)[facts.trace.host_ops["name"]].any())


def stage_of(facts: Facts, gpus: tuple[Gpu, ...], place: int) -> Stage:
    """The stage at ``place`` of a pipeline whose ranks were all recorded."""
    gpu, next_rank = gpus[place], gpus[(place + 1) % len(gpus)].rank
    table, steps = _on(facts, gpu), facts.steps[gpu]
    table = table.take(_exchanges(table))
    exchange = facts.trace.gpu_ops.take(table["gpu_op_row"])
    ops = facts.operations_per_step(gpu)
    compute = ops.take(ops["activity"] == Activity.COMPUTE)

    sends = _named(table, "send") & (table["peer"] == next_rank)
    sends &= np.isin(exchange["op_id"], ops["op_id"])
    # Two tensors of one micro-batch follow each other at once.
    before = np.searchsorted(compute["start_ns"], exchange["start_ns"][sends], "left")
    slack = facts.table("slack")
    waits = slack.take(np.isin(slack["gpu_op_row"], table["gpu_op_row"]))
    if steps.timed:
        waits = waits.take(step_rows(waits, steps))
    waited = float(waits["exposed_ns"].sum()) / steps.number
    breakdown = facts.table("breakdown")
    work = sum(
        facts.per_step(breakdown, column, gpu)
        for column in ("compute_only_ns", "overlapped_ns", "memory_only_ns")
    )
    other = facts.per_step(breakdown, "exposed_communication_ns", gpu) - waited
    return Stage(
        gpu,
        len(np.unique(before)) / steps.number,
        waited,
        work + max(other, 0.0),
        _head(facts, compute, waits) / steps.number,
    )


def _head(facts: Facts, compute: Table, waits: Table) -> float:
    """Waits before the first compute of each step, summed."""
    start = facts.trace.gpu_ops["start_ns"][waits["gpu_op_row"]]
    total = 0.0
    for step in np.unique(waits["step_row"]).tolist():
        own = compute["start_ns"][compute["step_row"] == step]
        if own.size:
            rows = (waits["step_row"] == step) & (start < own.min())
            total += float(waits["exposed_ns"][rows].sum())
    return total


def _on(facts: Facts, gpu: Gpu) -> Table:
    """The rows of ``collectives`` of one GPU."""
    table, on = facts.trace.collectives, facts.trace.on(gpu)
    return table.take((table["gpu_op_row"] >= on.start) & (table["gpu_op_row"] < on.stop))


def _exchanges(table: Table) -> Mask:
    """Sends and receives of which the other rank is known."""
    found: Mask = (table["collective"] == table.strings.code(_EXCHANGE)) & table.known("peer")
    return found


def _named(table: Table, word: str) -> Mask:
    hit = np.append(table.strings.where(lambda text: word in text.lower()), False)
    found: Mask = hit[table["name"]]
    return found
