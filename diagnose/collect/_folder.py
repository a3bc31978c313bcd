"""The folder of a recording: refused unless new or empty, and cleared unless something is whole."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from diagnose import manifest
from diagnose.errors import OutputError

_PARTIAL = re.compile(r".*\.part|\.recording-.*\.tmp")
_TRACE = re.compile(r"rank\d+\.trace\.json(\.gz)?")
_OURS = re.compile(rf"rank\d+\..*|{re.escape(manifest.FILE_NAME)}|{_PARTIAL.pattern}")


class RecordingFolder:
    """The folder that a recording is written into, by its name ``rankNNNNN.*``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []

    @classmethod
    def create(cls, path: Path) -> RecordingFolder:
        """Make the folder, or take an empty one. Raises OutputError."""
        folder = cls(Path(os.path.abspath(path)))  # noqa: PTH100 - without resolving links
        try:
            folder._make()
            folder._refuse_if_others_may_change_it()
            with os.scandir(folder.path) as entries:
                if next(entries, None) is not None:
                    raise OutputError(
                        f"{path}: not empty, and a recording is never mixed with other files",
                        hint="give --output a folder that does not exist yet",
                    )
            _probe(folder.path)
        except OSError as error:
            folder.remove()
            raise OutputError(
                f"{path}: cannot be used for the recording ({error.strerror or error})",
                hint="give --output a folder that you may write to",
            ) from None
        return folder

    def _make(self) -> None:
        missing = []
        folder = self.path
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            folder.mkdir()
            self._made.append(folder)

    def _refuse_if_others_may_change_it(self) -> None:
        """Raise OutputError if root would write where somebody else may put links in its way."""
        if self._made or os.geteuid() != 0:
            return
        about = self.path.stat()
        if about.st_uid != 0 or about.st_mode & 0o022:
            raise OutputError(
                f"{self.path}: other users may change this folder, and root writes into none such",
                hint="give --output a folder that does not exist yet",
            )

    def file(self, rank: int, suffix: str) -> Path:
        """The path of a rank's file, like ``rank00003.trace.json``."""
        return self.path / f"rank{rank:05d}.{suffix}"

    def whole_traces(self) -> list[Path]:
        """The traces that are complete, by name."""
        return sorted(path for path in _files(self.path) if _TRACE.fullmatch(path.name))

    def clear_up(self) -> list[Path]:
        """After a failure: remove what is partial, and all if no trace is whole.

        Returns the whole traces that stay.
        """
        kept = self.whole_traces()
        for path in _files(self.path):
            if (_PARTIAL if kept else _OURS).fullmatch(path.name):
                with suppress(OSError):
                    path.unlink()
        if not kept:
            self.remove()
        return kept

    def remove(self) -> None:
        """Remove the folders that ``create`` made, as far as they are empty."""
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        self._made.clear()

    @property
    def finished(self) -> bool:
        """Whether the manifest, which is written last, is there."""
        return (self.path / manifest.FILE_NAME).is_file()


def _probe(folder: Path) -> None:
    """Raise OSError unless a file can be made here: before anything is asked of the job."""
    probe = folder / f".recording-{os.getpid()}.tmp"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.close(handle)
    probe.unlink()


def _files(folder: Path) -> list[Path]:
    """What lies in the folder; nothing if it cannot be listed."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if not path.is_dir()]
    return []
