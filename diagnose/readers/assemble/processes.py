"""Several ranks in one file: tools that merge traces rename processes to "rank 3".

Each labelled rank becomes a process of its own. What belongs to no labelled rank
stays together under an unknown rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble import ranks
from diagnose.readers.raw import GROUPS, Columns, RawFile
from diagnose.trace import Note

_UNLABELLED = -1


class Process(NamedTuple):
    """The events of one process and the rank its name tells. ``shared``: others in the file."""

    raw: RawFile
    labelled: int | None
    shared: bool


def split(raw: RawFile) -> list[Process]:
    """One process per rank that the file names; mostly the file as it is."""
    labels = [
        ranks.in_label(f"{pid} | {raw.process_names.get(pid, '')}") for pid in _process_ids(raw)
    ]
    found = sorted({rank for rank in labels if rank is not None})
    if len(found) < 2:
        return [Process(raw, found[0] if found else None, False)]
    label_of = dict(zip(_process_ids(raw), labels, strict=True))
    gpu = _labels(raw, raw.gpu["process"], label_of)
    host = _labels(raw, raw.host["thread"], label_of)
    calls = _labels(raw, raw.calls["thread"], label_of)
    syncs = _sync_labels(raw, calls)
    carriers = {
        int(order): int(label)
        for orders, labels_of in ((raw.gpu["order"], gpu), (raw.host["order"], host))
        for order, label in zip(*_carriers(raw, orders, labels_of), strict=True)
    }
    collectives = np.array(
        [carriers.get(order, _UNLABELLED) for order in raw.collectives["order"].tolist()], np.int64
    )
    masks = dict(zip(GROUPS, (gpu, host, calls, syncs, collectives), strict=True))
    notes = _sync_note(raw, int((syncs == _UNLABELLED).sum()))
    parts = [Process(_take(raw, masks, rank), rank, True) for rank in found]
    parts[0].raw.notes += raw.notes + notes
    rest = _take(raw, masks, _UNLABELLED)
    if len(rest.gpu["order"]) or len(rest.host["order"]) or len(rest.calls["order"]):
        parts.append(Process(rest, None, True))
    return parts


def _process_ids(raw: RawFile) -> list[str]:
    threads = np.unique(np.concatenate([raw.host["thread"], raw.calls["thread"]]))
    named = {raw.strings[code].partition("/")[0] for code in threads.tolist() if code >= 0}
    named |= {raw.strings[code] for code in np.unique(raw.gpu["process"]).tolist() if code >= 0}
    return sorted(named)


def _labels(
    raw: RawFile, codes: npt.NDArray[np.int32], label_of: Mapping[str, int | None]
) -> npt.NDArray[np.int64]:
    """The rank of each row by its pid (``pid`` or ``pid/tid``)."""
    table = np.full(len(raw.strings) + 1, _UNLABELLED, np.int64)
    for code in np.unique(codes[codes >= 0]).tolist():
        label = label_of.get(raw.strings[code].partition("/")[0])
        table[code] = _UNLABELLED if label is None else label
    labels: npt.NDArray[np.int64] = table[codes]
    return labels


def _sync_labels(raw: RawFile, calls: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Synchronisations name no process: the call with the same correlation tells it."""
    wanted, correlation = raw.syncs["correlation"], raw.calls["correlation"]
    labels = np.full(len(wanted), _UNLABELLED, np.int64)
    if not len(correlation):
        return labels
    order = np.argsort(correlation, kind="stable")
    low = np.searchsorted(correlation[order], wanted, side="left")
    high = np.searchsorted(correlation[order], wanted, side="right")
    clear = (high - low == 1) & (wanted > 0)
    labels[clear] = calls[order[low[clear]]]
    return labels


def _sync_note(raw: RawFile, count: int) -> list[Note]:
    if not count:
        return []
    sentence = (
        f"{raw.path}: synchronisations of this merged file that name no rank: {count}; they were "
        "left out, so waits of its ranks are incomplete"
    )
    return [Note("synchronisation-unassigned", "warning", sentence, count)]


def _carriers(
    raw: RawFile, orders: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    carrying = np.isin(orders, raw.collectives["order"])
    return orders[carrying].tolist(), labels[carrying].tolist()


def _take(raw: RawFile, masks: Mapping[str, npt.NDArray[np.int64]], rank: int) -> RawFile:
    def rows(group: str) -> Columns:
        mask = masks[group] == rank
        if group == "syncs" and rank == _UNLABELLED:
            mask = np.zeros(len(mask), bool)
        return {name: column[mask] for name, column in getattr(raw, group).items()}

    return replace(
        raw,
        gpu=rows("gpu"),
        host=rows("host"),
        calls=rows("calls"),
        syncs=rows("syncs"),
        collectives=rows("collectives"),
        notes=[],
    )
