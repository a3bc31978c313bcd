"""Which recordings may be opened: what lies under the paths that were given.

A recording is known by a key made of its place under the folders that were given,
so no request can name a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from diagnose.errors import DiagnoseError
from diagnose.readers import files, inputs

_DEPTH = 3
_MOST_FOLDERS = 2_000
_UNSAFE = re.compile(r"[^A-Za-z0-9._~-]+")


@dataclass(frozen=True)
class Entry:
    """A recording that may be opened. ``paths`` are what is loaded for it."""

    key: str
    label: str
    paths: tuple[str, ...]
    num_bytes: int
    modified_s: float
    refused: str = ""
    """Why it may not be opened; empty: it may."""


def entries_of(paths: Sequence[str]) -> tuple[Entry, ...]:
    """Every recording there is now: they appear while a job is recorded."""
    return tuple(_named(_found(paths)))


class _Found(NamedTuple):
    label: str
    paths: tuple[str, ...]
    refused: str = ""


def _found(paths: Sequence[str]) -> list[_Found]:
    """Label and what to load, of every recording."""
    found: list[_Found] = []
    for given in paths:
        if files.is_url(given) or files.is_file(given):
            found.append(_Found(files.split(given)[1] or given, (given,)))
            continue
        root = Path(given)
        if not root.is_dir():
            continue  # it was there when the server started
        name = root.resolve().name or given
        for folder in _recordings(root):
            relative = folder.relative_to(root).as_posix()
            label = name if relative == "." else f"{name}/{relative}"
            found.append(_Found(label, (str(folder),), _refusal(folder, root.resolve())))
    return found


def _refusal(folder: Path, inside: Path) -> str:
    """Why what lies in a folder may not be read: a link that leads out of what was given."""
    with suppress(OSError):
        for one in sorted(folder.iterdir()):
            if one.is_symlink() and not one.resolve().is_relative_to(inside):
                return f"{one.name} is a link out of the folders that were given"
    return ""


def _recordings(root: Path) -> list[Path]:
    """Folders that hold traces, not deeper than three below; links out of the root are passed."""
    inside = root.resolve()
    found: list[Path] = []
    waiting = [(root, 0)]
    for visited, (folder, depth) in enumerate(waiting):
        if visited == _MOST_FOLDERS:
            break
        try:
            names, subfolders = files.entries(str(folder))
        except (OSError, DiagnoseError):
            continue
        if any(inputs.could_be_trace(name) for name in names):
            found.append(folder)
        elif depth < _DEPTH:
            below = (folder / name for name in sorted(subfolders))
            waiting += [(one, depth + 1) for one in below if one.resolve().is_relative_to(inside)]
    return found


def _named(found: list[_Found]) -> list[Entry]:
    """Entries with keys of their own: a second one of a name gets a number."""
    taken: set[str] = set()
    made = []
    for label, paths, refused in found:
        base = _UNSAFE.sub("-", label).strip("-.") or "recording"
        key, number = base, 1
        while key in taken:
            number += 1
            key = f"{base}~{number}"
        taken.add(key)
        num_bytes, modified = _size(paths)
        made.append(Entry(key, label, paths, num_bytes, modified, refused))
    return made


def _size(paths: tuple[str, ...]) -> tuple[int, float]:
    """Stored bytes of traces and when the newest was written; zero of a URL."""
    total, newest = 0, 0.0
    for path in paths:
        try:
            place = Path(path)
            found = (
                [one for one in place.iterdir() if inputs.could_be_trace(one.name)]
                if place.is_dir()
                else [place]
            )
            states = [one.stat() for one in found]
        except OSError:
            continue
        total += sum(state.st_size for state in states)
        newest = max([newest, *(state.st_mtime for state in states)])
    return total, newest
