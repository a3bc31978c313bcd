"""The recordings that are merged: folders with a manifest, or with traces alone."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from diagnose import manifest
from diagnose.errors import InputError, InputNotFoundError, NotATraceError
from diagnose.manifest import Manifest, RankFiles, RecordingNote

ENDINGS = {
    "trace": "trace.json",
    "telemetry": "telemetry.csv",
    "env": "env.json",
    "execution_trace": "execution_trace.json",
}
"""The files of a rank, by the manifest's keys, and how their names end in a recording."""

_HEAD_BYTES = 4 << 20
_TRACE_NAME = re.compile(r"(.+?)(?:\.(?:pt|trace|chrome_trace))*\.json(?:\.gz)?", re.IGNORECASE)
_NO_TRACE = re.compile(r".*\.(?:env|execution_trace)\.json(?:\.gz)?|\..*", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?<![A-Za-z0-9])rank[_-]?(\d{1,7})(?![A-Za-z0-9])", re.IGNORECASE)
_TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"')


@dataclass(frozen=True)
class Part:
    """One of the recordings: where it lies and what it says of itself."""

    folder: Path
    manifest: Manifest
    bare: bool = False
    """Without a manifest: ranks come from the traces and their names."""

    @property
    def ranks(self) -> list[int]:
        """The ranks in it, in order."""
        return sorted(files.rank for files in self.manifest.ranks)

    @property
    def hosts(self) -> list[str]:
        """The hosts where it was recorded, as far as they are known."""
        return sorted({files.host for files in self.manifest.ranks if files.host is not None})

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Begin and end of its window by the clock of its host; None if not known."""
        begin = self.manifest.started_unix_ns
        lengths = [
            sum(files.step_times.within)
            for files in self.manifest.ranks
            if files.step_times is not None and files.step_times.within
        ]
        seconds = self.manifest.window.seconds if self.manifest.window is not None else None
        if begin is None or not (lengths or seconds):
            return None
        return begin, begin + max([*lengths, round((seconds or 0) * 1e9)])


def read(path: Path) -> Part:
    """Read a recording's folder, or its manifest. Raises InputError that names it."""
    folder = path.parent if path.name == manifest.FILE_NAME and path.is_file() else path
    if not folder.is_dir():
        raise InputNotFoundError(
            f"{path}: no such folder", hint="give the folders of recordings, on this machine"
        )
    if (folder / manifest.FILE_NAME).is_file():
        return _present(Part(folder, manifest.read(folder / manifest.FILE_NAME)))
    return _bare(folder)


def _present(part: Part) -> Part:
    """Without the files that the manifest names and that are not there."""
    ranks, notes = [], []
    for files in part.manifest.ranks:
        lost = [kind for kind, name in named(files) if not (part.folder / name).is_file()]
        if lost:
            sentence = (
                f"rank {files.rank}: {', '.join(lost)} named by {part.folder}/{manifest.FILE_NAME} "
                "was not there when the recordings were merged"
            )
            notes.append(RecordingNote("file-missing", "warning", sentence))
        if "trace" not in lost:
            without: dict[str, Any] = dict.fromkeys(lost)
            ranks.append(replace(files, **without))
    if not ranks:
        raise InputNotFoundError(
            f"{part.folder}: none of the traces that {manifest.FILE_NAME} names is there",
            hint="copy the whole recording",
        )
    content = replace(part.manifest, ranks=tuple(ranks), notes=(*part.manifest.notes, *notes))
    return replace(part, manifest=content)


def named(files: RankFiles) -> Iterator[tuple[str, str]]:
    """Kind and name of each file of a rank."""
    for kind in ENDINGS:
        name = getattr(files, kind)
        if name is not None:
            yield kind, name


def _bare(folder: Path) -> Part:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror or error})") from None
    ranks: list[RankFiles] = []
    sizes: set[int] = set()
    for name in names:
        match = _TRACE_NAME.fullmatch(name)
        if match is None or _NO_TRACE.fullmatch(name):
            continue
        head = _head(folder / name)
        if not any(key in head for key in _TRACE_KEYS):
            continue
        told = _distributed(head)
        rank = told.rank if told.rank is not None else _rank_in(name)
        if rank is None:
            raise NotATraceError(
                f"{folder / name}: nothing says which rank wrote it",
                hint="put the rank into the file's name, as in rank3.json, or move it away",
            )
        if told.world_size is not None:
            sizes.add(told.world_size)
        beside = {kind: f"{match.group(1)}.{ending}" for kind, ending in ENDINGS.items()}
        found: dict[str, Any] = {kind: file for kind, file in beside.items() if file in names}
        ranks.append(RankFiles(**{**found, "rank": rank, "trace": name}))
    if not ranks:
        raise InputNotFoundError(
            f"{folder}: no {manifest.FILE_NAME} and no trace (.json, .json.gz) in it",
            hint="give the folders that hold the recordings themselves",
        )
    if len(sizes) > 1:
        raise NotATraceError(
            f"{folder}: traces of jobs of {' and '.join(map(str, sorted(sizes)))} ranks",
            hint="keep the traces of one job in a folder",
        )
    return Part(folder, Manifest(tuple(ranks), next(iter(sizes), None)), bare=True)


def _rank_in(name: str) -> int | None:
    found = {int(digits) for digits in _RANK_IN_NAME.findall(name)}
    return found.pop() if len(found) == 1 else None


def _head(path: Path) -> bytes:
    """The first bytes of a file, decompressed; as much as can be read of a damaged one."""
    try:
        with open(path, "rb") as file:
            data = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return zlib.decompressobj(wbits=31).decompress(data, _HEAD_BYTES)
    except zlib.error:
        return b""


class _Distributed(NamedTuple):
    rank: int | None = None
    world_size: int | None = None


def _distributed(head: bytes) -> _Distributed:
    """What the profiler wrote of the process group, in the head of its trace."""
    text = head.decode("utf-8", "replace")
    match = re.search(r'"distributedInfo"\s*:\s*(?=\{)', text)
    if match is None:
        return _Distributed()
    try:
        content, _ = json.JSONDecoder().raw_decode(text, match.end())
    except (ValueError, RecursionError):
        return _Distributed()
    return _Distributed(_number(content, "rank"), _number(content, "world_size"))


def _number(content: dict[str, Any], key: str) -> int | None:
    value = content.get(key)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= manifest.MAX_RANK else None
