"""Which format an output file's name asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diagnose.errors import UsageError

TABLE_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "text": (".txt", ".log"),
    "csv": (".csv",),
    "json": (".json",),
}
"""What the verbs that write one table offer."""


def format_of(output: Path | None, suffixes: Mapping[str, tuple[str, ...]]) -> str:
    """The format by the suffix of ``output``; text without a file, a suffix, or for a device.

    UsageError for a suffix that promises a format which does not exist here.
    """
    if output is None or not output.suffix or (output.exists() and not output.is_file()):
        return "text"
    for name, known in suffixes.items():
        if output.suffix.lower() in known:
            return name
    offered = ", ".join(suffix for known in suffixes.values() for suffix in known)
    raise UsageError(
        f"cannot tell the format from the name {output.name!r}",
        hint=f"end it with one of {offered}, or say --format",
    )
