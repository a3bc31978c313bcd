"""Where the socket lies, and who may use it: a private folder of the job's user.

``$DIAGNOSE_DIR``, or the first of ``/tmp/diagnose-UID`` and ``/dev/shm/diagnose-UID`` that is
usable. A folder that belongs to somebody else, is a link or can be entered by others is never
used: on a shared machine anybody may have put it there.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress

from .protocol import OUTPUT, RefusalError

VARIABLE = "DIAGNOSE_DIR"
MAX_PATH_BYTES = 107  # sun_path holds 108 with its end
_PEER = struct.Struct("3i")  # pid, uid, gid


def candidates(environ: dict[str, str] | None = None, uid: int | None = None) -> list[str]:
    """The folders to try, in order, for a process with this environment and user."""
    chosen = (os.environ if environ is None else environ).get(VARIABLE)
    if chosen:
        return [chosen]
    user = os.geteuid() if uid is None else uid
    return [f"/tmp/diagnose-{user}", f"/dev/shm/diagnose-{user}"]


def usable_folder(folders: list[str]) -> str:
    """The first folder that is private to this user; made if it is missing.

    Raises RefusalError that names each folder and what is wrong with it.
    """
    reasons = []
    for folder in folders:
        reason = _make_private(folder)
        if reason is None:
            return folder
        reasons.append(f"{folder} {reason}")
    raise RefusalError(OUTPUT, f"no folder for the socket: {'; '.join(reasons)}")


def _make_private(folder: str) -> str | None:
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return "is open to other users"
    return None


class Listener:
    """A listening socket ``FOLDER/PID.sock``, mode 0600, which only this user and root may use."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, f"{os.getpid()}.sock")
        unfinished = os.path.join(folder, f".{os.getpid()}.sock")
        if len(os.fsencode(unfinished)) > MAX_PATH_BYTES:
            raise RefusalError(OUTPUT, f"the path of the socket is too long: {self.path}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)
            self.socket.bind(unfinished)
            os.chmod(unfinished, 0o600)
            self.socket.setblocking(False)
            self.socket.listen(8)
            self._inode = os.lstat(unfinished).st_ino
            # Under its name only once it listens: a refused connection then means a dead agent.
            os.rename(unfinished, self.path)
            _sweep(folder)
        except OSError as error:
            self.socket.close()
            raise RefusalError(
                OUTPUT, f"the socket {self.path} cannot be made ({error.strerror})"
            ) from None

    def accept(self) -> socket.socket | None:
        """The next connection; None if there is none, or its user has no right to be here."""
        try:
            connection, _ = self.socket.accept()
        except OSError:
            return None
        if not _trusted(connection):
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def close(self) -> None:
        """End it for everybody, also where a fork has copied it, and remove its file."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.remove_file()

    def remove_file(self) -> None:
        """Remove the file, unless a later agent has put its own there."""
        with suppress(OSError):
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)


def _sweep(folder: str) -> None:
    """Remove the sockets of processes that were killed: no such process, and nobody answers.

    Both are asked, since processes of another container may share the folder.
    """
    with suppress(OSError):
        for name in os.listdir(folder):
            pid = name[: -len(".sock")]
            if name.endswith(".sock") and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                path = os.path.join(folder, name)
                probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                try:
                    probe.setblocking(False)
                    probe.connect(path)
                except ConnectionRefusedError:
                    with suppress(OSError):
                        os.unlink(path)
                except OSError:
                    pass
                finally:
                    probe.close()


def _trusted(connection: socket.socket) -> bool:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return False
    uid: int = _PEER.unpack(raw)[1]
    return uid in (0, os.geteuid())
