"""The way in that CPython offers itself since 3.14: ``sys.remote_exec`` (PEP 768).

Python asks the process to run a script on its main thread between two instructions. It
needs the same right as tracing, and the same minor version on both sides; a process may
have it switched off (``PYTHON_DISABLE_REMOTE_DEBUG``). Not run on hardware: tested
against a stand-in.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from diagnose.attach.discovery.processes import Process
from diagnose.attach.injection.symbols import Interpreter, supported_interpreter
from diagnose.errors import NotPythonError, OutputError, PtraceRefusedError

FIRST = (3, 14)
_FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")
_SWITCH = "PYTHON_DISABLE_REMOTE_DEBUG"


class Script:
    """A script that a process was asked to run. It removes its file when it runs.

    Close this once the agent has answered, or will not: then the file is gone in any case.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        """Remove the file if it is still there."""
        with suppress(OSError):
            Path(self._path).unlink()

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run(pid: int, text: str, *, root: str = "/proc") -> Script:
    """Ask a process to run ``text`` on its main thread; does not wait for it.

    Raises an AttachError: NotPythonError (other versions than 3.14 and newer, or not the
    same as this one's), PtraceRefusedError (not allowed, or switched off), OutputError (no
    folder that both can use).
    """
    process = Process(pid, root)
    refuse_versions(process, supported_interpreter(process))
    inside, outside = _write(process, text)
    try:
        sys.remote_exec(pid, inside)  # type: ignore[attr-defined]
    except BaseException as error:
        with suppress(OSError):
            Path(outside).unlink()
        if isinstance(error, OSError | RuntimeError):
            raise PtraceRefusedError(
                f"process {pid}: Python was not allowed to hand it a script ({error})",
                hint=f"run as root; {_SWITCH} must not be set in the job; or start the job with"
                " `diagnose run`",
            ) from None
        raise
    return Script(outside)


def refuse_versions(process: Process, theirs: Interpreter) -> None:
    """Raise NotPythonError unless both run the same CPython, 3.14 or newer."""
    ours = sys.version_info[:2]
    if theirs.version < FIRST or theirs.version != ours:
        raise NotPythonError(
            f"process {process.pid} runs CPython {theirs.version[0]}.{theirs.version[1]} and"
            f" diagnose {ours[0]}.{ours[1]}: handing over a script takes the same version,"
            " 3.14 or newer",
            hint="install torch-diagnose beside the job's Python",
        )


def _write(process: Process, text: str) -> tuple[str, str]:
    """Put the script where the process can read it: the path as it sees it, and as we do."""
    name = f"diagnose-{secrets.token_hex(8)}.py"
    owner = process.uid
    for folder in _FOLDERS:
        inside = f"{folder}/{name}"
        outside = f"{process.folder}/root{inside}"
        script = f"try:\n __import__('os').unlink({inside!r})\nexcept BaseException:\n pass\n{text}"
        try:
            handle = os.open(
                outside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            continue
        try:
            with open(handle, "w", encoding="ascii") as file:
                file.write(script)
                if owner != os.geteuid():
                    os.chown(file.fileno(), owner, -1)
        except OSError:
            Path(outside).unlink()
            continue
        except BaseException:
            Path(outside).unlink()
            raise
        return inside, outside
    raise OutputError(
        f"process {process.pid}: no folder where it can read a script ({', '.join(_FOLDERS)})",
        hint="start the job with `diagnose run`",
    )
