"""What ``diagnose merge`` says of its result."""

from __future__ import annotations

from datetime import datetime, timezone

from diagnose.attach._parts import Part
from diagnose.attach.discovery.discover import in_ranges
from diagnose.attach.merge import Merged
from diagnose.manifest import Manifest
from diagnose.reporters import Page
from diagnose.wording.plain import plain

_MEGABYTE = 1e6


def write(merged: Merged, page: Page) -> str:
    """A line for the whole, one for each recording, then what is doubtful."""
    content = merged.manifest
    lines = [f"{merged.folder}: {_ranks(content)}, from {_count(len(merged.parts), 'recording')}"]
    lines += [f"  {_part(part)}" for part in merged.parts]
    lines.append(f"  {_files(merged)}")
    lines += [f"{note.severity}: {note.sentence}" for note in merged.notes]
    lines.append(f"next: diagnose report {merged.folder}")
    return "".join(plain(line, unicode=page.unicode) + "\n" for line in lines)


def _ranks(content: Manifest) -> str:
    ranks = [files.rank for files in content.ranks]
    of = f" of {content.world_size}" if content.world_size is not None else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {in_ranges(ranks)}{of}"


def _part(part: Part) -> str:
    window = part.manifest.window
    told = [", ".join(part.hosts)]
    if window is not None and window.steps is not None:
        told.append(_count(window.steps, "step"))
    if window is not None and window.start is not None and window.clock in ("seq", "step"):
        told.append(f"from {window.clock} {window.start}")
    if part.manifest.started_unix_ns is not None:
        told.append(_moment(part.manifest.started_unix_ns))
    if part.bare:
        told.append("traces without a manifest")
    return f"{part.folder}: {_ranks(Manifest(part.manifest.ranks))}" + "".join(
        f", {text}" for text in told if text
    )


def _moment(unix_ns: int) -> str:
    try:
        moment = datetime.fromtimestamp(unix_ns / 1e9, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _files(merged: Merged) -> str:
    how = [
        f"{number} {word}"
        for number, word in ((merged.num_linked, "linked"), (merged.num_copied, "copied"))
        if number
    ]
    total = merged.num_linked + merged.num_copied
    return f"{_count(total, 'file')}, {merged.num_bytes / _MEGABYTE:.1f} MB ({', '.join(how)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
