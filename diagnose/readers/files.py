"""Files and folders, local or behind an fsspec URL: what is there, and small ones as bytes."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.readers.containers import open_binary

_GLOB = frozenset("*?[")


def is_url(path: str) -> bool:
    """Whether a path is an fsspec URL."""
    return "://" in path


def join(folder: str, name: str) -> str:
    """The path of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)  # noqa: PTH118


def split(path: str) -> tuple[str, str]:
    """Folder and name."""
    if is_url(path):
        folder, _, name = path.rpartition("/")
        return folder, name
    return os.path.split(path)


def is_file(path: str) -> bool:
    """Whether a file is there; False where it cannot be asked."""
    if is_url(path):
        system, inner = _remote(path)
        return bool(_asked(system.isfile, inner, path))
    return Path(path).is_file()


def is_special(path: str) -> bool:
    """Whether something is there that is neither a file nor a folder: a pipe, a device.

    Opening one may wait for ever, so none is opened that was not named outright.
    """
    if is_url(path):
        return False
    there = Path(path)
    try:
        return there.exists() and not there.is_file() and not there.is_dir()
    except OSError:
        return False


def is_folder(path: str) -> bool:
    """Whether a folder is there."""
    if is_url(path):
        system, inner = _remote(path)
        return bool(_asked(system.isdir, inner, path))
    return Path(path).is_dir()


def size(path: str) -> int | None:
    """Stored bytes; None if unknown."""
    try:
        if is_url(path):
            system, inner = _remote(path)
            found = _asked(system.size, inner, path)
            return int(found) if found is not None else None
        return Path(path).stat().st_size
    except (OSError, InputError, ValueError):
        return None


def entries(folder: str) -> tuple[list[str], list[str]]:
    """Names of the files and of the folders in a folder, each sorted; hidden ones left out."""
    files: list[str] = []
    folders: list[str] = []
    if is_url(folder):
        system, inner = _remote(folder)
        for entry in _asked(lambda p: system.ls(p, detail=True), inner, folder) or ():
            name = str(entry["name"]).rstrip("/").rpartition("/")[2]
            (folders if entry["type"] == "directory" else files).append(name)
    else:
        try:
            with os.scandir(folder) as found:
                for item in found:
                    (folders if item.is_dir() else files).append(item.name)
        except OSError as error:
            raise InputError(f"{folder}: cannot be listed ({error.strerror})") from None
    return _visible(files), _visible(folders)


def matches(pattern: str) -> list[str]:
    """Paths that match a glob (``**`` crosses folders), sorted; empty if it is no glob."""
    if not _GLOB & set(pattern):
        return []
    if is_url(pattern):
        system, inner = _remote(pattern)
        found = _asked(system.glob, inner, pattern) or ()
        return sorted(str(system.unstrip_protocol(path)) for path in found)
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern


def identity(path: str) -> str:
    """One text for one file, however it is written."""
    return path if is_url(path) else os.path.realpath(path)


def read_bounded(path: str, limit: int) -> tuple[bytes, str | None]:
    """The content of a small file, or what is wrong with it (never an exception)."""
    if is_special(path):
        return b"", "a pipe or device, not a file"
    try:
        with open_binary(path) as file:
            pieces, left = [], limit + 1
            while left > 0 and (piece := file.read(left)):
                pieces.append(piece)
                left -= len(piece)
    except InputError as error:
        return b"", error.message.removeprefix(f"{path}: ")
    except OSError as error:
        return b"", f"cannot be read ({error.strerror or error})"
    if left <= 0:
        return b"", f"larger than {limit >> 20} MiB"
    data = b"".join(pieces)
    return data, None if data.strip() else "empty"


def _visible(names: list[str]) -> list[str]:
    return sorted(name for name in names if name and not name.startswith((".", "__")))


def _remote(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, inner = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(
            f"{url}: cannot be opened ({error})",
            hint="check the address, its credentials, and that its fsspec driver is installed",
        ) from None
    return system, str(inner)


def _asked(question: Any, inner: str, url: str) -> Any:
    try:
        return question(inner)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - drivers raise what their services do
        raise InputError(
            f"{url}: cannot be read ({type(error).__name__}: {error})",
            hint="check the address and its credentials",
        ) from None
