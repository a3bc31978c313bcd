"""Several ranks in one file, taken apart: each process becomes a source of its own.

What belongs to no process stays together under an unknown rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble import inside, membership
from diagnose.readers.assemble.membership import NO_GROUP, Groups, Membership
from diagnose.readers.raw import GROUPS, Columns, RawFile
from diagnose.trace import Note


class Process(NamedTuple):
    """The events of one process and what its names tell.

    ``shared``: others are in the file; ``pids``: then, the processes as written;
    ``homeless``: some GPU work of the file could be given to none of them.
    """

    raw: RawFile
    labelled: int | None
    shared: bool = False
    pids: str | None = None
    homeless: bool = False


def split(raw: RawFile) -> list[Process]:
    """One process per rank or process that the file holds; mostly the file as it is."""
    found = membership.find(raw)
    if found is None:
        labels = {membership.label(raw, pid) for pid in membership.pids(raw)} - {None}
        return [Process(raw, labels.pop() if labels else None)]
    gpu = membership.by_pid(raw, raw.gpu["process"], found.group_of)
    host = membership.by_pid(raw, raw.host["thread"], found.group_of)
    calls = membership.by_pid(raw, raw.calls["thread"], found.group_of)
    syncs = _sync_groups(raw, found)
    carriers = {
        int(order): int(group)
        for orders, groups in ((raw.gpu["order"], gpu), (raw.host["order"], host))
        for order, group in zip(*_carriers(raw, orders, groups), strict=True)
    }
    collectives = np.array(
        [carriers.get(order, NO_GROUP) for order in raw.collectives["order"].tolist()], np.int64
    )
    operators = membership.by_pid(raw, raw.operators["thread"], found.group_of)
    functions = _groups_of(raw.functions["order"], raw.host["order"], host)
    masks = dict(
        zip(GROUPS, (gpu, host, calls, syncs, collectives, operators, functions), strict=True)
    )
    parts = []
    for group, rank in enumerate(found.ranks):
        names = ", ".join(sorted(pid for pid, of in found.group_of.items() if of == group))
        taken = _take(raw, masks, group)
        parts.append(Process(taken, rank, len(found.ranks) > 1, names, found.homeless))
    rest = _take(raw, masks, NO_GROUP)
    if len(rest.gpu["order"]) or len(rest.calls["order"]):
        parts.append(Process(rest, None, shared=True, homeless=found.homeless))
    elif len(rest.host["order"]):
        parts[0].raw.notes.append(_left_out(rest))
    parts[0].raw.notes += raw.notes + found.notes + _sync_note(raw, int((syncs == NO_GROUP).sum()))
    return parts


def _sync_groups(raw: RawFile, found: Membership) -> Groups:
    """Synchronisations name no process: the call with the same correlation tells it."""
    correlation = np.where(raw.syncs["correlation"] > 0, raw.syncs["correlation"], 0)
    host = membership.nearest_host(raw, found.hosts, correlation, raw.syncs["order"])
    groups = np.array([found.group_of.get(pid, NO_GROUP) for pid in found.hosts] + [NO_GROUP])
    result: Groups = groups[host]
    return result


def _sync_note(raw: RawFile, count: int) -> list[Note]:
    if not count:
        return []
    sentence = (
        f"{raw.path}: synchronisations of this merged file that name no rank: {count}; they were "
        "left out, so waits of its ranks are incomplete"
    )
    return [Note("synchronisation-unassigned", "warning", sentence, count)]


def _left_out(rest: RawFile) -> Note:
    count = len(rest.host["order"])
    sentence = (
        f"{rest.path}: host events of this merged file that belong to no process (the profiler's "
        f"own work and spans): {count}, left out; the profiler's overhead is not known"
    )
    return Note("event-unassigned", "info", sentence, count)


def _carriers(
    raw: RawFile, orders: npt.NDArray[np.int64], groups: Groups
) -> tuple[list[int], list[int]]:
    carrying = np.isin(orders, raw.collectives["order"])
    return orders[carrying].tolist(), groups[carrying].tolist()


def _groups_of(
    orders: npt.NDArray[np.int64], events: npt.NDArray[np.int64], groups: Groups
) -> Groups:
    """The group of each event by its place in the file."""
    row = inside.first_with(events, orders)
    return np.append(groups, NO_GROUP)[row]


def _take(raw: RawFile, masks: Mapping[str, npt.NDArray[np.int64]], group: int) -> RawFile:
    def rows(kind: str) -> Columns:
        mask = masks[kind] == group
        if kind == "syncs" and group == NO_GROUP:
            mask = np.zeros(len(mask), bool)
        return {name: column[mask] for name, column in getattr(raw, kind).items()}

    return replace(
        raw,
        gpu=rows("gpu"),
        host=rows("host"),
        calls=rows("calls"),
        syncs=rows("syncs"),
        collectives=rows("collectives"),
        operators=rows("operators"),
        functions=rows("functions"),
        notes=[],
    )
