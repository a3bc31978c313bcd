"""The manifest of a recording folder: ``recording.json``, format 1.

::

    {"format": 1, "tool_version": "0.4.0", "world_size": 3,
     "started_unix_ns": 1796133376454473729,
     "window": {"steps": 3, "clock": "seq", "start": 1208},
     "observer": {"before_ns": 16500000, "within_ns": 17200000, "after_ns": 16400000,
                  "num_before": 12, "num_within": 6, "num_after": 20,
                  "before_spread_ns": 300000},
     "missing_ranks": [2],
     "notes": [{"code": "telemetry-missing", "severity": "warning", "sentence": "..."}],
     "ranks": [{"rank": 0, "trace": "rank00000.trace.json.gz",
                "telemetry": "rank00000.telemetry.csv", "env": "rank00000.env.json",
                "host": "node1", "pid": 4711, "local_rank": 0, "gpu_uuid": "GPU-...",
                "route": "injected",
                "step_times_ns": {"before": [], "within": [], "after": []}}]}

``step_times_ns`` holds every host interval that was seen; ``observer`` their medians
over all ranks, ``after_ns`` that of the later half of each rank's, when the host has
caught up with the GPU again (see ``Observer``).

Only ``format`` and, for each rank, ``rank`` and ``trace`` are required; keys that
are not known are ignored. Files are named relative to the folder and lie in it.
The manifest is written last: a folder without it is an unfinished recording.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.manifest._model import (
    LEAST_INTERVALS,
    Manifest,
    Observer,
    RankFiles,
    RecordingNote,
    StepTimes,
    Window,
    missing,
    observer_of,
)
from diagnose.manifest._parse import FORMAT, MAX_RANK, parse, wrong

__all__ = [
    "FILE_NAME",
    "FORMAT",
    "LEAST_INTERVALS",
    "MAX_BYTES",
    "MAX_RANK",
    "Manifest",
    "Observer",
    "RankFiles",
    "RecordingNote",
    "StepTimes",
    "Window",
    "missing",
    "observer_of",
    "parse",
    "read",
    "to_json",
    "write",
]

FILE_NAME = "recording.json"
MAX_BYTES = 64 << 20
# Lists of numbers, to be written on a line each. No text in JSON holds a line break.
_NUMBERS = re.compile(r"\[\n\s*((?:\d+,\s+)*\d+)\s+\]")


def read(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest file at a local path. Raises as ``parse``, and InputError if unreadable."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise wrong(name, "the whole", f"is larger than {MAX_BYTES >> 20} MiB")
    return parse(data, name)


def to_json(manifest: Manifest) -> str:
    """The manifest as text; what is unknown is left out."""
    content: dict[str, Any] = {"format": FORMAT}
    for key in ("tool_version", "world_size", "started_unix_ns"):
        content |= _known({key: getattr(manifest, key)})
    for key in ("window", "observer"):
        part = getattr(manifest, key)
        if part is not None:
            content[key] = _known(vars(part))
    if manifest.missing_ranks:
        content["missing_ranks"] = list(manifest.missing_ranks)
    if manifest.notes:
        content["notes"] = [vars(note) for note in manifest.notes]
    content["ranks"] = [_rank(rank) for rank in manifest.ranks]
    text = json.dumps(content, indent=1)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _rank(rank: RankFiles) -> dict[str, Any]:
    content = _known(vars(rank))
    times = content.pop("step_times", None)
    if times is not None:
        content["step_times_ns"] = {key: list(value) for key, value in vars(times).items()}
    return content


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


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
