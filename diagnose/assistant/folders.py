"""Which files an assistant may have read: those under the folders that the server was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import InputNotFoundError, UsageError
from diagnose.manifest import FILE_NAME
from diagnose.readers import inputs

_GLOB = frozenset("*?[")


class Folders:
    """The folders, resolved once. UsageError for one that is not there."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.roots = tuple(dict.fromkeys(_existing(folder) for folder in folders))

    def allowed(self, given: str) -> str:
        """The resolved path of a file or folder that may be read, with all that belongs to it.

        Links are followed before anything is compared. UsageError for what lies outside (whether
        it exists is not told), InputNotFoundError for what is not there.
        """
        if not given or "\0" in given or "://" in given:
            raise UsageError(
                f"{given!r} is not a path on this machine", hint="give a trace file or a folder"
            )
        path = self._resolved(given)
        if not path.exists():
            hint = "give the path of a trace file or of the folder that holds the traces"
            if _GLOB & set(given):
                hint += "; globs are not taken here"
            raise InputNotFoundError(f"{given}: no such file or folder", hint=hint)
        if path.is_dir():
            self._inside(path / FILE_NAME, given)
        elif not path.is_file():
            raise UsageError(f"{given}: a pipe or device, not a file", hint="give a file")
        for trace in inputs.find(str(path)).traces:
            for file in (trace.path, trace.environment, trace.telemetry):
                if file is not None:
                    self._inside(Path(file), given)
        return str(path)

    def _resolved(self, given: str) -> Path:
        """Relative paths are those of the working directory, then of each folder."""
        for base in (Path.cwd(), *self.roots):
            path = base / given
            if self._is_inside(path) and path.exists():
                return path.resolve()
        return self._inside(Path(given), given)

    def _inside(self, path: Path, given: str) -> Path:
        if not self._is_inside(path):
            listed = ", ".join(map(str, self.roots))
            raise UsageError(
                f"{given} leads outside of the folders that this server may read ({listed})",
                hint="give a path under them, or start `diagnose mcp FOLDER...` with its folder",
            )
        return path.resolve()

    def _is_inside(self, path: Path) -> bool:
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError):  # a loop of links, a name too long
            return False
        return any(resolved.is_relative_to(root) for root in self.roots)


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", hint="give the folders that hold recordings")
    return folder.resolve()
