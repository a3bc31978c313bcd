"""Which rank wrote a file. Unknown stays unknown: a guess of 0 would merge processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from diagnose.trace import Note, RankOrigin

_MAX_DIGITS = 7
# "rank3", "rank_3", "rank-00003", "worker_rank3.": a word of its own, not "trank3x".
_RANK_WORD = re.compile(r"(?<![A-Za-z0-9])rank[_-]?(\d+)(?![A-Za-z0-9])", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_RANK_LABEL = re.compile(r"(?<![A-Za-z0-9])rank[ _:=#-]*(\d+)(?![A-Za-z0-9])", re.IGNORECASE)


class RankFound(NamedTuple):
    """A rank with where it was learnt; both None if nothing tells it."""

    rank: int | None
    origin: RankOrigin | None
    notes: tuple[Note, ...] = ()


def in_file_name(path: str) -> int | None:
    """The rank in the name of a file, or of its folder if that is all the folder's name says."""
    pure = PurePosixPath(path.replace("\\", "/"))
    rank = _only(_RANK_WORD, pure.name)
    if rank is None and (folder := _RANK_FOLDER.fullmatch(pure.parent.name)):
        return _number(folder.group(1))
    return rank


def in_label(label: str) -> int | None:
    """The rank in the name of a process or in its pid, as merging tools write it."""
    return _only(_RANK_LABEL, label)


def in_metadata(metadata: Mapping[str, Any]) -> int | None:
    """``distributedInfo.rank`` and nothing else that is called a rank."""
    return _field(metadata, "rank")


def world_size(metadata: Mapping[str, Any]) -> int | None:
    """``distributedInfo.world_size``."""
    return _field(metadata, "world_size")


def find(
    path: str,
    metadata: Mapping[str, Any],
    *,
    manifest: int | None = None,
    labelled: int | None = None,
    user: int | None = None,
) -> RankFound:
    """The first that is known: metadata, manifest, file name, process name, user.

    Whatever says otherwise becomes a note; nothing being known does too.
    """
    told: list[tuple[RankOrigin, int | None]] = [
        ("metadata", in_metadata(metadata)),
        ("manifest", manifest),
        ("file name", in_file_name(path)),
        ("process name", labelled),
        ("user", user),
    ]
    known = [(origin, rank) for origin, rank in told if rank is not None]
    if not known:
        return RankFound(None, None, (unknown(path),))
    origin, rank = known[0]
    notes = _beyond(path, rank, world_size(metadata))
    others = [f"the {other} says {number}" for other, number in known[1:] if number != rank]
    if not others:
        return RankFound(rank, origin, notes)
    sentence = (
        f"{path}: taken as rank {rank}, as the {origin} says, but {' and '.join(others)}; "
        "if that is right, figures of these ranks are exchanged"
    )
    # Names of files and processes are often copies; a manifest or a person meant this file.
    meant = any(o in ("manifest", "user") and number != rank for o, number in known)
    said = Note("rank-contradiction", "warning" if meant else "info", sentence)
    return RankFound(rank, origin, (said, *notes))


def _beyond(path: str, rank: int, size: int | None) -> tuple[Note, ...]:
    if size is None or rank < size:
        return ()
    sentence = (
        f"{path}: says rank {rank} of a job of {size}, whose ranks are 0 to {size - 1}; one of the "
        "two is wrong, so comparisons with other ranks may be of different jobs"
    )
    return (Note("rank-beyond-world", "warning", sentence),)


def unknown(path: str) -> Note:
    """Nothing tells the rank."""
    return Note(
        "rank-unknown",
        "warning",
        f"{path}: nothing says which rank wrote it, so it stands for itself and is compared with "
        "no other rank by number; give the rank if you know it, or put it into the file's name "
        "(rank3.json)",
    )


def _field(metadata: Mapping[str, Any], name: str) -> int | None:
    info = metadata.get("distributedInfo")
    value = info.get(name) if isinstance(info, Mapping) else None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return _number(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**_MAX_DIGITS:
        return value
    return None


def _only(pattern: re.Pattern[str], text: str) -> int | None:
    numbers = {_number(digits) for digits in pattern.findall(text[:4096])}
    return numbers.pop() if len(numbers) == 1 else None


def _number(digits: str) -> int | None:
    significant = digits.lstrip("0") or "0"
    return int(significant) if len(significant) <= _MAX_DIGITS else None
