"""Recordings of one job, made host by host or rank by rank, as one recording.

Files are linked where that is possible, otherwise copied, and never changed. The merged
folder appears whole or not at all. The step times of all ranks give the observer
effect of the whole job; medians of hosts would not.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from diagnose import manifest
from diagnose.attach import _parts
from diagnose.attach._parts import Part
from diagnose.attach.discovery._jobs import in_ranges
from diagnose.errors import OutputError, UsageError
from diagnose.manifest import Manifest, RankFiles, RecordingNote, Window

# Notes on ranks that the merged recording may hold after all: told anew.
_TOLD_ANEW = "ranks-missing"


@dataclass(frozen=True)
class Merged:
    """What was made of what."""

    folder: Path
    manifest: Manifest
    parts: tuple[Part, ...]
    notes: tuple[RecordingNote, ...]
    """Those that come from merging; the manifest holds them too."""
    num_linked: int
    num_copied: int
    num_bytes: int
    """Of all files; those that are linked take no room."""


def merge(
    output: str | os.PathLike[str], given: Sequence[str | os.PathLike[str]], *, link: bool = True
) -> Merged:
    """Join recordings into the new folder ``output``.

    ``given`` are folders, with or without a ``recording.json``. ``link``: hard links
    instead of copies where the file system can.

    Raises UsageError if they cannot be one job's (sizes differ, a rank occurs with two
    different traces), InputError if one cannot be read, OutputError if the folder is
    not empty or cannot be written.
    """
    if not given:
        raise UsageError("nothing to merge", hint="give the folders of the recordings")
    target = Path(output)
    _check_output(target)
    parts = _distinct([_parts.read(Path(path)) for path in given])
    chosen, notes = _join(parts)
    notes += _not_together(parts)
    content = _manifest(parts, chosen, notes)
    linked = copied = size = 0
    temporary = _beside(target)
    try:
        for part, files in chosen:
            names = _names(files)
            for kind, name in _parts.named(files):
                source, place = part.folder / name, temporary / names[kind]
                size += source.stat().st_size
                was_linked = _put(source, place, link)
                linked, copied = linked + was_linked, copied + (not was_linked)
        manifest.write(content, temporary)
        temporary.chmod(0o777 & ~_umask())
        temporary.rename(target)
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be written ({error.filename or target}: {error.strerror or error})",
            hint="give a folder that does not exist yet, on a disk with room",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Merged(target, content, tuple(parts), tuple(notes), linked, copied, size)


def _check_output(target: Path) -> None:
    try:
        empty = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    except OSError as error:
        raise OutputError(f"{target}: {error.strerror or error}") from None
    if not empty:
        raise OutputError(
            f"{target}: not empty, and a recording is never mixed with other files",
            hint="the merged recording comes first on the command line: give a folder that does "
            "not exist yet",
        )


def _beside(target: Path) -> Path:
    """A temporary folder on the same file system."""
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".part", dir=target.parent)
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be made ({error.strerror or error})",
            hint="give a folder that you may write to",
        ) from None
    return Path(name)


def _distinct(parts: Iterable[Part]) -> list[Part]:
    """Without folders that were given twice."""
    found: list[Part] = []
    for part in parts:
        if not any(part.folder.samefile(other.folder) for other in found):
            found.append(part)
    return found


def _join(parts: Sequence[Part]) -> tuple[list[tuple[Part, RankFiles]], list[RecordingNote]]:
    """Each rank once, with where its files lie."""
    world_size = _world_size(parts)
    chosen: dict[int, tuple[Part, RankFiles]] = {}
    notes = []
    for part in parts:
        for files in part.manifest.ranks:
            if world_size is not None and files.rank >= world_size:
                raise UsageError(
                    f"{part.folder}: rank {files.rank} of a job of {world_size} ranks",
                    hint="is it of another job?",
                )
            if files.rank not in chosen:
                chosen[files.rank] = part, files
                continue
            first, kept = chosen[files.rank]
            one, other = first.folder / kept.trace, part.folder / files.trace
            if not _equal(one, other):
                raise UsageError(
                    f"rank {files.rank} is in {one} and in {other}, and these differ",
                    hint="two windows are two recordings: merge one of each, and compare them "
                    "with `diagnose compare A B`",
                )
            sentence = f"rank {files.rank} was in {first.folder} and in {part.folder}, alike"
            notes.append(RecordingNote("rank-twice", "info", f"{sentence}; it was kept once"))
            if len(list(_parts.named(files))) > len(list(_parts.named(kept))):
                chosen[files.rank] = part, files
    return [chosen[rank] for rank in sorted(chosen)], notes


def _equal(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _world_size(parts: Sequence[Part]) -> int | None:
    known = [part for part in parts if part.manifest.world_size is not None]
    for part in known[1:]:
        if part.manifest.world_size != known[0].manifest.world_size:
            raise UsageError(
                f"{known[0].folder} is of a job of {known[0].manifest.world_size} ranks, "
                f"{part.folder} of one of {part.manifest.world_size}",
                hint="only recordings of one job can be merged",
            )
    return known[0].manifest.world_size if known else None


def _not_together(parts: Sequence[Part]) -> list[RecordingNote]:
    """Recordings that were not made of the same steps, as far as they tell."""
    notes = []
    for one, other in combinations(parts, 2):
        starts = _start(one.manifest.window), _start(other.manifest.window)
        if None not in starts and starts[0] != starts[1]:
            notes.append(_apart(one, other, f"begin at {starts[0]} and {starts[1]}"))
            continue
        spans = one.span_ns, other.span_ns
        if spans[0] is None or spans[1] is None:
            continue
        gap = max(spans[0][0], spans[1][0]) - min(spans[0][1], spans[1][1])
        if gap <= 0:
            continue
        if starts[0] is not None and starts[0] == starts[1]:
            sentence = (
                f"{one.folder} and {other.folder} begin at the same step, yet {gap / 1e9:.1f} s "
                "lie between them: the clocks of the hosts differ, or these are two runs"
            )
            notes.append(RecordingNote("clocks-differ", "warning", sentence))
        else:
            notes.append(_apart(one, other, f"have {gap / 1e9:.1f} s between them"))
    return notes


def _apart(one: Part, other: Part, how: str) -> RecordingNote:
    sentence = (
        f"{one.folder} and {other.folder} {how}: they are not of the same steps, and figures over "
        "ranks compare what does not belong together"
    )
    return RecordingNote("windows-apart", "warning", sentence)


def _start(window: Window | None) -> str | None:
    """Where a window begins, in steps; the wall clock is no step."""
    if window is None or window.start is None or window.clock not in ("seq", "step"):
        return None
    return f"{window.clock} {window.start}"


def _manifest(
    parts: Sequence[Part], chosen: Sequence[tuple[Part, RankFiles]], notes: list[RecordingNote]
) -> Manifest:
    world_size = _world_size(parts)
    ranks = tuple(_renamed(files) for _, files in chosen)
    missing = manifest.missing([files.rank for files in ranks], world_size)
    if missing:
        many = len(missing) > 1
        sentence = (
            f"{'ranks' if many else 'rank'} {in_ranges(missing)} of {world_size} "
            f"{'are' if many else 'is'} in none of the recordings that were merged, and figures "
            "over ranks are incomplete"
        )
        notes.append(RecordingNote(_TOLD_ANEW, "warning", sentence))
    started = [p.manifest.started_unix_ns for p in parts if p.manifest.started_unix_ns is not None]
    return Manifest(
        ranks=ranks,
        world_size=world_size,
        started_unix_ns=min(started, default=None),
        tool_version=_common(part.manifest.tool_version for part in parts),
        window=_window(parts),
        observer=manifest.observer_of(files.step_times for files in ranks),
        missing_ranks=missing,
        notes=tuple(dict.fromkeys([*_notes_of(parts), *notes])),
    )


def _notes_of(parts: Sequence[Part]) -> Iterator[RecordingNote]:
    for part in parts:
        host = f"{part.hosts[0]}: " if len(parts) > 1 and len(part.hosts) == 1 else ""
        for note in part.manifest.notes:
            if note.code != _TOLD_ANEW:
                yield replace(note, sentence=host + note.sentence)


def _window(parts: Sequence[Part]) -> Window | None:
    """What all windows have in common."""
    known = [part.manifest.window for part in parts if part.manifest.window is not None]
    if not known:
        return None
    values: dict[str, Any] = {
        name: _common(getattr(window, name) for window in known) for name in vars(known[0])
    }
    window = Window(**values)
    return window if window != Window() else None


def _common(values: Iterable[Any]) -> Any:
    """The value that all have which have one; None if they differ."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _renamed(files: RankFiles) -> RankFiles:
    names: dict[str, Any] = _names(files)
    return replace(files, **names)


def _names(files: RankFiles) -> dict[str, str]:
    """What the files of a rank are called in a recording."""
    found = {}
    for kind, name in _parts.named(files):
        ending = ".gz" if name.endswith(".gz") else ".zip" if name.endswith(".zip") else ""
        found[kind] = f"rank{files.rank:05d}.{_parts.ENDINGS[kind]}{ending}"
    return found


def _put(source: Path, place: Path, link: bool) -> bool:
    """Link or copy a file; True if it was linked."""
    if link:
        with suppress(OSError):  # another file system, or one without links
            os.link(source.resolve(), place)
            return True
    shutil.copyfile(source, place)
    return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
