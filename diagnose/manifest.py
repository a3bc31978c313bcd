"""The manifest of a recording folder: ``recording.json``, format 1.

::

    {"format": 1, "world_size": 2, "started_unix_ns": 1796133376454473729,
     "ranks": [{"rank": 0, "trace": "rank00000.trace.json.gz",
                "telemetry": "rank00000.telemetry.csv", "env": "rank00000.env.json"}]}

Only ``format`` and, for each rank, ``rank`` and ``trace`` are required; keys that
are not known are ignored. Files are named relative to the folder and lie in it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from diagnose.errors import DamagedInputError, EmptyInputError, InputError, NotATraceError

FILE_NAME = "recording.json"
FORMAT = 1
MAX_BYTES = 64 << 20
MAX_RANK = 10**7


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank, relative to the folder; None: not recorded."""

    rank: int
    trace: str
    telemetry: str | None = None
    env: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a recording consists of. ``started_unix_ns`` is the host's wall clock."""

    ranks: tuple[RankFiles, ...]
    world_size: int | None = None
    num_steps: int | None = None
    started_unix_ns: int | None = None


def parse(data: bytes, path: str) -> Manifest:
    """Read and check a manifest.

    Raises an InputError that names ``path`` and the key which is wrong:
    EmptyInputError, DamagedInputError (no JSON), NotATraceError (JSON, but not
    this format, or of a newer version).
    """
    if not data.strip():
        raise EmptyInputError(f"{path}: empty", hint="give the trace files themselves")
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DamagedInputError(
            f"{path}: not readable as JSON ({_first_line(error)})",
            hint="give the trace files themselves",
        ) from None
    if not isinstance(content, dict):
        raise _wrong(path, "the whole", "must be an object")
    version = content.get("format")
    if version != FORMAT or isinstance(version, bool):
        raise NotATraceError(
            f"{path}: format is {_shown(version)}, this version reads format {FORMAT}",
            hint="update torch-diagnose, or give the trace files themselves",
        )
    ranks = content.get("ranks")
    if not isinstance(ranks, list) or not ranks:
        raise _wrong(path, "ranks", "must be a list with at least one rank")
    window = content.get("window")
    return Manifest(
        ranks=tuple(_rank(entry, f"ranks[{i}]", path) for i, entry in enumerate(ranks)),
        world_size=_whole(content, "world_size", path),
        num_steps=_whole(window, "steps", path) if isinstance(window, dict) else None,
        started_unix_ns=_whole(content, "started_unix_ns", path),
    )


def read(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest file at a local path. Raises as ``parse``, and InputError if unreadable."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise _wrong(name, "the whole", f"is larger than {MAX_BYTES >> 20} MiB")
    return parse(data, name)


def to_json(manifest: Manifest) -> str:
    """The manifest as text; what is unknown is left out."""
    content: dict[str, Any] = {"format": FORMAT}
    if manifest.world_size is not None:
        content["world_size"] = manifest.world_size
    if manifest.num_steps is not None:
        content["window"] = {"steps": manifest.num_steps}
    if manifest.started_unix_ns is not None:
        content["started_unix_ns"] = manifest.started_unix_ns
    content["ranks"] = [
        {key: value for key, value in vars(rank).items() if value is not None}
        for rank in manifest.ranks
    ]
    return json.dumps(content, indent=1) + "\n"


def write(manifest: Manifest, folder: str | os.PathLike[str]) -> Path:
    """Write ``recording.json`` into a folder: whole or not at all. Returns its path.

    Raises InputError if the manifest would not read back: paths must be relative
    and stay in the folder.
    """
    path = Path(folder) / FILE_NAME
    text = to_json(manifest)
    parse(text.encode(), str(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".recording-", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _rank(entry: Any, where: str, path: str) -> RankFiles:
    if not isinstance(entry, dict):
        raise _wrong(path, where, "must be an object")
    rank = _whole(entry, "rank", path, where)
    if rank is None or rank > MAX_RANK:
        raise _wrong(path, f"{where}.rank", f"must be a whole number from 0 to {MAX_RANK}")
    trace = _file(entry, "trace", where, path)
    if trace is None:
        raise _wrong(path, f"{where}.trace", "must name a file")
    return RankFiles(
        rank, trace, _file(entry, "telemetry", where, path), _file(entry, "env", where, path)
    )


def _file(entry: Mapping[str, Any], key: str, where: str, path: str) -> str | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(path, f"{where}.{key}", "must be the name of a file")
    pure = PurePosixPath(value.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or ":" in pure.parts[0]:
        raise _wrong(path, f"{where}.{key}", "must lie in the folder of the recording")
    return str(pure)


def _whole(entry: Mapping[str, Any], key: str, path: str, where: str = "") -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        name = f"{where}.{key}" if where else key
        raise _wrong(path, name, f"is {_shown(value)}, must be a whole number of 0 or more")
    return value


def _wrong(path: str, key: str, must: str) -> InputError:
    return NotATraceError(
        f"{path}: not a valid manifest, {key} {must}",
        hint="correct it, or give the trace files themselves",
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
