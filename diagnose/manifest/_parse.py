"""A manifest's JSON, checked: everything wrong is named with its key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any

from diagnose.errors import DamagedInputError, EmptyInputError, InputError, NotATraceError
from diagnose.manifest._model import (
    Manifest,
    NoteSeverity,
    Observer,
    RankFiles,
    RecordingNote,
    StepTimes,
    Window,
)

FORMAT = 1
MAX_RANK = 10**7
_MOST_CHARACTERS = 4096
_SEVERITIES: dict[Any, NoteSeverity] = {"info": "info", "warning": "warning", "error": "error"}


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
        raise wrong(path, "the whole", "must be an object")
    version = content.get("format")
    if version != FORMAT or isinstance(version, bool):
        raise NotATraceError(
            f"{path}: format is {_shown(version)}, this version reads format {FORMAT}",
            hint="update torch-diagnose, or give the trace files themselves",
        )
    ranks = content.get("ranks")
    if not isinstance(ranks, list) or not ranks:
        raise wrong(path, "ranks", "must be a list with at least one rank")
    return Manifest(
        ranks=tuple(_rank(entry, f"ranks[{i}]", path) for i, entry in enumerate(ranks)),
        world_size=_whole(content, "world_size", path),
        started_unix_ns=_whole(content, "started_unix_ns", path),
        tool_version=_text(content, "tool_version", path),
        window=_window(content.get("window"), path),
        observer=_observer(content.get("observer"), path),
        missing_ranks=_wholes(content, "missing_ranks", path),
        notes=_notes(content.get("notes"), path),
    )


def _rank(entry: Any, where: str, path: str) -> RankFiles:
    if not isinstance(entry, dict):
        raise wrong(path, where, "must be an object")
    rank = _whole(entry, "rank", path, where)
    if rank is None or rank > MAX_RANK:
        raise wrong(path, f"{where}.rank", f"must be a whole number from 0 to {MAX_RANK}")
    trace = _file(entry, "trace", where, path)
    if trace is None:
        raise wrong(path, f"{where}.trace", "must name a file")
    return RankFiles(
        rank,
        trace,
        telemetry=_file(entry, "telemetry", where, path),
        env=_file(entry, "env", where, path),
        execution_trace=_file(entry, "execution_trace", where, path),
        host=_text(entry, "host", path, where),
        pid=_whole(entry, "pid", path, where),
        local_rank=_whole(entry, "local_rank", path, where),
        gpu_uuid=_text(entry, "gpu_uuid", path, where),
        route=_text(entry, "route", path, where),
        step_times=_step_times(entry.get("step_times_ns"), f"{where}.step_times_ns", path),
    )


def _step_times(entry: Any, where: str, path: str) -> StepTimes | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise wrong(path, where, "must be an object")
    return StepTimes(*(_wholes(entry, key, path, where) for key in ("before", "within", "after")))


def _window(entry: Any, path: str) -> Window | None:
    if not isinstance(entry, dict):
        return None
    seconds = entry.get("seconds")
    if seconds is not None and not _is_duration(seconds):
        raise wrong(path, "window.seconds", f"is {_shown(seconds)}, must be a number over 0")
    window = Window(
        steps=_whole(entry, "steps", path),
        seconds=None if seconds is None else float(seconds),
        clock=_text(entry, "clock", path, "window"),
        start=_whole(entry, "start", path, "window"),
    )
    return None if window == Window() else window


def _is_duration(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < 1e9 and math.isfinite(value)


def _observer(entry: Any, path: str) -> Observer | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise wrong(path, "observer", "must be an object")
    known: dict[str, Any] = {}
    for key in (field.name for field in fields(Observer)):
        value = _whole(entry, key, path, "observer")
        known |= {} if value is None else {key: value}
    return Observer(**known)


def _notes(entries: Any, path: str) -> tuple[RecordingNote, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise wrong(path, "notes", "must be a list")
    return tuple(_note(entry, f"notes[{i}]", path) for i, entry in enumerate(entries))


def _note(entry: Any, where: str, path: str) -> RecordingNote:
    if not isinstance(entry, dict):
        raise wrong(path, where, "must be an object")
    code, sentence = _text(entry, "code", path, where), _text(entry, "sentence", path, where)
    severity = _SEVERITIES.get(str(entry.get("severity")))
    if not code or not sentence or severity is None:
        raise wrong(path, where, "must have a code, a sentence and a severity")
    return RecordingNote(code, severity, sentence)


def _file(entry: Mapping[str, Any], key: str, where: str, path: str) -> str | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise wrong(path, f"{where}.{key}", "must be the name of a file")
    pure = PurePosixPath(value.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or ":" in pure.parts[0]:
        raise wrong(path, f"{where}.{key}", "must lie in the folder of the recording")
    return str(pure)


def _text(entry: Mapping[str, Any], key: str, path: str, where: str = "") -> str | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or len(value) > _MOST_CHARACTERS:
        raise wrong(path, _named(key, where), f"is {_shown(value)}, must be a text")
    return value


def _whole(entry: Mapping[str, Any], key: str, path: str, where: str = "") -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if not _is_whole(value):
        raise wrong(
            path, _named(key, where), f"is {_shown(value)}, must be a whole number of 0 or more"
        )
    assert isinstance(value, int)
    return value


def _wholes(entry: Mapping[str, Any], key: str, path: str, where: str = "") -> tuple[int, ...]:
    values = entry.get(key)
    if values is None:
        return ()
    if not isinstance(values, list) or not all(map(_is_whole, values)):
        raise wrong(path, _named(key, where), "must be a list of whole numbers of 0 or more")
    return tuple(values)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _named(key: str, where: str) -> str:
    return f"{where}.{key}" if where else key


def wrong(path: str, key: str, must: str) -> InputError:
    """The error for a key that is not as it must be."""
    return NotATraceError(
        f"{path}: not a valid manifest, {key} {must}",
        hint="correct it, or give the trace files themselves",
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
