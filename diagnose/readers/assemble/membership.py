"""Which events of a merged file belong together.

The profiler writes one process a file. Where calls come from several processes, or
two tracks show the same device, a tool merged the files of several ranks. A name such
as "rank 3" says whose a process is. A GPU track that is not named belongs to the
process that launched its work: the correlation ids tell, and as each rank counts them
from the start, of several calls with one id the nearest in the file counts (tools
write the ranks one after the other). A track whose work points at several processes
belongs to none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble import ranks
from diagnose.readers.raw import RawFile
from diagnose.schema import NULL
from diagnose.trace import Note

CLEAR_SHARE = 0.9
"""A track belongs to a process that launched at least this share of its work."""
NO_GROUP = -1
_STEP_MARK = "ProfilerStep"

Groups = npt.NDArray[np.int64]


class Membership(NamedTuple):
    """The groups of a merged file. ``homeless``: GPU work that no process owns."""

    group_of: dict[str, int]
    """pid as written -> group."""
    ranks: list[int | None]
    """Per group the rank that a name tells."""
    hosts: list[str]
    """Processes with calls into the GPU runtime."""
    homeless: bool
    notes: list[Note]


def find(raw: RawFile) -> Membership | None:
    """The groups of a file; None if it is of one process."""
    tracks, hosts = _tracks(raw), _hosts(raw)
    label_of = {pid: label(raw, pid) for pid in pids(raw)}
    found = sorted({rank for rank in label_of.values() if rank is not None})
    contested = _contested(tracks)
    if len(found) < 2 and len(hosts) < 2 and not contested:
        return None
    group_of = {pid: found.index(rank) for pid, rank in label_of.items() if rank is not None}
    told: list[int | None] = list(found)
    owners = _owners(raw, hosts, [pid for pid in tracks if pid not in group_of])
    owned = Counter(owners[pid] for pid in owners.keys() & contested)
    for pid in owners.keys() & contested:
        if owned[owners[pid]] > 1:
            owners[pid] = None  # a process shows a device on one track only
    shared = sorted(p for p, owner in owners.items() if owner is None and p not in contested)
    unclear = sorted(p for p, owner in owners.items() if owner is None and p in contested)
    mixed = [h for h in hosts if shared and h not in group_of]
    for member in (*([mixed + shared] if shared else []), *([h] for h in hosts if h not in mixed)):
        told += _join(group_of, member, len(told))
    for pid, owner in owners.items():
        if owner is not None:
            group_of[pid] = group_of[owner]
    for pid in unclear:
        told += _join(group_of, [pid], len(told))
    unclear = unclear if hosts else []
    notes = _notes(raw.path, hosts, shared, unclear)
    return Membership(group_of, told, hosts, bool(shared or unclear), notes)


def nearest_host(
    raw: RawFile,
    hosts: Sequence[str],
    correlation: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> Groups:
    """Per event the index of the process whose call with its id lies nearest; else ``NO_GROUP``."""
    nearest = np.full(len(order), NO_GROUP, np.int64)
    distance = np.full(len(order), np.iinfo(np.int64).max)
    process = {pid: index for index, pid in enumerate(hosts)}
    owner = by_pid(raw, raw.calls["thread"], process)
    for index in range(len(hosts)):
        calls = np.flatnonzero((owner == index) & (raw.calls["correlation"] > 0))
        if not len(calls):
            continue
        calls = calls[np.argsort(raw.calls["correlation"][calls], kind="stable")]
        ids = raw.calls["correlation"][calls]
        at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
        away = np.abs(order - raw.calls["order"][calls[at]])
        nearer = (ids[at] == correlation) & (away < distance)
        nearest[nearer], distance[nearer] = index, away[nearer]
    return nearest


def by_pid(raw: RawFile, codes: npt.NDArray[np.int32], group_of: dict[str, int]) -> Groups:
    """The group of each row by its pid (``pid`` or ``pid/tid``)."""
    table = np.full(len(raw.strings) + 1, NO_GROUP, np.int64)
    for code in np.unique(codes[codes >= 0]).tolist():
        table[code] = group_of.get(raw.strings[code].partition("/")[0], NO_GROUP)
    groups: Groups = table[codes]
    return groups


def label(raw: RawFile, pid: str) -> int | None:
    """The rank in the name of a process."""
    return ranks.in_label(f"{pid} | {raw.process_names.get(pid, '')}")


def pids(raw: RawFile) -> list[str]:
    """Every process that events name, sorted."""
    return sorted(
        {*_pids(raw, raw.host["thread"]), *_pids(raw, raw.calls["thread"]), *_tracks(raw)}
    )


def _pids(raw: RawFile, codes: npt.NDArray[np.int32]) -> set[str]:
    distinct = np.unique(codes).tolist()
    return {raw.strings[code].partition("/")[0] for code in distinct if code >= 0}


def _hosts(raw: RawFile) -> list[str]:
    """Processes with calls; where calls were not read, those with step marks."""
    if len(raw.calls["thread"]):
        return sorted(_pids(raw, raw.calls["thread"]))
    marks = [code for code, text in enumerate(raw.strings) if text.startswith(_STEP_MARK)]
    return sorted(_pids(raw, raw.host["thread"][np.isin(raw.host["name"], marks)]))


def _tracks(raw: RawFile) -> dict[str, set[int]]:
    """The devices that each process of GPU events shows."""
    codes, devices = raw.gpu["process"], raw.gpu["device"]
    return {
        raw.strings[code]: set(np.unique(devices[codes == code]).tolist()) - {NULL}
        for code in np.unique(codes).tolist()
        if code >= 0
    }


def _contested(tracks: dict[str, set[int]]) -> set[str]:
    """Tracks that show a device which another one shows too."""
    return {
        pid
        for pid, devices in tracks.items()
        if any(devices & others for other, others in tracks.items() if other != pid)
    }


def _owners(raw: RawFile, hosts: list[str], tracks: list[str]) -> dict[str, str | None]:
    """Per track the process that launched its work; None if several did, or nothing tells.

    With a single process there is nothing to choose.
    """
    if len(hosts) < 2 and len(tracks) < 2:
        return dict.fromkeys(tracks, hosts[0] if hosts else None)
    nearest = nearest_host(raw, hosts, raw.gpu["correlation"], raw.gpu["order"])
    track = by_pid(raw, raw.gpu["process"], {pid: index for index, pid in enumerate(tracks)})
    owners: dict[str, str | None] = {}
    for index, pid in enumerate(tracks):
        votes = np.bincount(nearest[(track == index) & (nearest >= 0)], minlength=len(hosts) + 1)
        clear = votes.max() > 0 and votes.max() >= CLEAR_SHARE * votes.sum()
        owners[pid] = hosts[int(votes.argmax())] if clear else None
    return owners


def _join(group_of: dict[str, int], members: list[str], number: int) -> list[None]:
    """Make a group of pids that are in none; an entry of ranks for it, if there are any."""
    new = [pid for pid in members if pid not in group_of]
    group_of.update(dict.fromkeys(new, number))
    return [None] if new else []


def _notes(path: str, hosts: list[str], shared: list[str], unclear: list[str]) -> list[Note]:
    notes = []
    if shared and len(hosts) > 1:
        sentence = (
            f"{path}: {len(hosts)} processes launched work that one GPU track shows (process "
            f"{', '.join(shared[:4])}): several ranks merged into one, whose work cannot be told "
            "apart; every figure mixes them: give the files of the ranks instead"
        )
        notes.append(Note("processes-share-gpu", "error", sentence, len(hosts)))
    if unclear:
        sentence = (
            f"{path}: GPU tracks of a merged file whose process is not clear (launch ids repeat "
            f"between its processes): {len(unclear)}; each is measured by itself, without rank and "
            "steps: give the files of the ranks instead"
        )
        notes.append(Note("process-unclear", "warning", sentence, len(unclear)))
    return notes
