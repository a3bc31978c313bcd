"""The datagrams that libkineto exchanges with its daemon, and the name they are sent to.

A process started with ``KINETO_USE_DAEMON`` asks the unix datagram socket named
"dynolog" every few seconds whether a profile is wanted. Each datagram is a size
(8 bytes), a kind (32 bytes, padded with NUL) and a payload, in the byte order of
the machine; kinds are "ctxt" (a process announces itself) and "req" (it asks; the
answer's payload is configuration text, empty for nothing).

Source: libkineto/src/IpcFabricConfigClient.cpp and dynolog's ipcfabric.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from diagnose.errors import AttachError

NAME = "dynolog"
SOCKET_DIRECTORY = "KINETO_IPC_SOCKET_DIR"
ANNOUNCEMENT = b"ctxt"
REQUEST = b"req"
WANTS_ACTIVITIES = 2
MAX_DATAGRAM = 1 << 16
_MAX_SOCKET_PATH = 107

_HEADER = struct.Struct("=Q32s")
_ANNOUNCEMENT = struct.Struct("=iiq")
_REQUEST = struct.Struct("=iiq")
_CREDENTIALS = struct.Struct("3i")
_MAX_PIDS = 1024


@dataclass(frozen=True)
class Announcement:
    """A process says that it is there. ``job`` is SLURM_JOB_ID or 0."""

    device: int
    pid: int
    job: int


@dataclass(frozen=True)
class Request:
    """A process asks for work; its own pid comes first, then those of its ancestors."""

    kinds: int
    job: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Datagram:
    """One message and who sent it, as the kernel says: pid and uid; 0 and -1 if unknown."""

    kind: bytes
    payload: bytes
    address: str | bytes
    pid: int = 0
    uid: int = -1


def pack(kind: bytes, payload: bytes) -> bytes:
    """The datagram of a message."""
    return _HEADER.pack(len(payload), kind) + payload


def unpack(data: bytes) -> tuple[bytes, bytes] | None:
    """Kind and payload, or None if the bytes are not a whole message."""
    if len(data) < _HEADER.size:
        return None
    size, kind = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if size != len(payload):
        return None
    return kind.split(b"\0", 1)[0], payload


def parse_announcement(payload: bytes) -> Announcement | None:
    """What a "ctxt" message says, or None if it is too short."""
    if len(payload) < _ANNOUNCEMENT.size:
        return None
    return Announcement(*_ANNOUNCEMENT.unpack_from(payload))


def parse_request(payload: bytes) -> Request | None:
    """What a "req" message asks, or None if its length and its count of pids disagree."""
    if len(payload) < _REQUEST.size:
        return None
    kinds, count, job = _REQUEST.unpack_from(payload)
    if not 0 < count <= _MAX_PIDS or len(payload) < _REQUEST.size + 4 * count:
        return None
    return Request(kinds, job, struct.unpack_from(f"={count}i", payload, _REQUEST.size))


def announcement_reply(num_processes: int) -> bytes:
    """The answer to a "ctxt": how many processes use this device."""
    return pack(ANNOUNCEMENT, struct.pack("=i", num_processes))


def request_reply(configuration: str = "") -> bytes:
    """The answer to a "req"; empty text asks for nothing."""
    return pack(REQUEST, configuration.encode())


def configuration(settings: Iterable[tuple[str, object]]) -> str:
    """Configuration text, a ``KEY=VALUE`` line each. ValueError for a value with a line end."""
    lines = []
    for key, value in settings:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if "\n" in text or "\r" in text or "\0" in text:
            raise ValueError(f"{key} cannot hold a line end")
        lines.append(f"{key}={text}\n")
    return "".join(lines)


class Endpoint:
    """The socket "dynolog", bound while this object is open.

    ``directory`` is what the job's processes have in ``KINETO_IPC_SOCKET_DIR`` (None:
    the abstract name), ``root`` how their file system is seen from here. Raises
    AttachError if another daemon owns the name, or it cannot be bound.
    """

    def __init__(self, directory: str | None = None, *, root: str = "", owner: int = -1) -> None:
        self._root = root
        self.path = None if directory is None else f"{root}{directory}/{NAME}"
        if self.path is not None and len(os.fsencode(self.path)) > _MAX_SOCKET_PATH:
            raise AttachError(
                f"{SOCKET_DIRECTORY}={directory}: the path of a socket there is too long",
                hint=f"give the job a shorter {SOCKET_DIRECTORY}",
            )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            # Sender and pid then come from the kernel, not from the message.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._bind(owner)
        except BaseException:
            self._socket.close()
            raise

    def _bind(self, owner: int) -> None:
        try:
            if self.path is None:
                # libkineto counts the trailing NUL as part of an abstract name.
                self._socket.bind(f"\0{NAME}\0")
                return
            self._remove_stale(self.path)
            mask = os.umask(0o177)
            try:
                self._socket.bind(self.path)
            finally:
                os.umask(mask)
            if owner >= 0 and owner != os.geteuid():
                os.chown(self.path, owner, -1)
        except OSError as problem:
            if problem.errno in (98, 17):  # EADDRINUSE, EEXIST
                raise _taken(self.path) from None
            raise AttachError(
                f"cannot listen for Kineto at {self.path or NAME}: {problem.strerror}",
                hint=f"check that {SOCKET_DIRECTORY} exists and that you may write to it",
            ) from None

    @staticmethod
    def _remove_stale(path: str) -> None:
        """Remove a socket nobody listens on; a living one makes the bind fail."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - may be a path below /proc/PID/root
            except OSError:
                return

    def receive(self, timeout_s: float) -> Datagram | None:
        """The next message that is well formed, or None if none came in time."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            data, ancillary, _, address = self._socket.recvmsg(
                MAX_DATAGRAM, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
        except (TimeoutError, InterruptedError):
            return None
        message = unpack(data)
        if message is None or not address:
            return None
        pid, uid = 0, -1
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid, uid, _ = _CREDENTIALS.unpack_from(content)
        return Datagram(*message, address=address, pid=pid, uid=uid)

    def answer(self, datagram: Datagram, reply: bytes) -> bool:
        """Send a reply; False if the asker is gone."""
        address = datagram.address
        if self._root and isinstance(address, str) and not address.startswith("\0"):
            address = self._root + address
        try:
            self._socket.sendto(reply, address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the name back."""
        self._socket.close()
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _taken(path: str | None) -> AttachError:
    return AttachError(
        f"another daemon, perhaps dynolog, already answers Kineto's requests at {path or NAME}",
        hint="ask that daemon for the trace (dyno gputrace), or stop it for the time of the window",
    )
