"""Talking to one agent over its unix socket: JSON lines, one request and one reply at a time.

The socket is ``<folder>/<pid>.sock`` as the process itself sees both, reached
through ``/proc/PID/root``, which also leads into containers. What answers there
has to be the process that was meant: the folder must be its own and private, and
the kernel names the peer. Closing the connection cancels whatever the agent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from typing import Any, Protocol

from diagnose.attach._replies import error_of
from diagnose.attach.discovery.processes import Process
from diagnose.errors import AttachError, AttachTimeoutError, OtherUserError, ProcessGoneError

GRACE_S = 5.0
"""What an agent may take beyond the time it was given for a request."""

_MOST_BYTES = 32 << 20
_POLL_S = 0.05
_WAITING = frozenset({"arm", "go", "after", "execution_trace"})
"""Requests that the agent itself ends after ``timeout_s``."""


class AgentChannel(Protocol):
    """What a session needs of a connection to one agent, over whatever it goes."""

    who: str
    """Whom a message is about, like ``rank 3 (pid 4711)``."""

    def send(self, op: str, **fields: Any) -> None:
        """Send a request; ``receive`` has to follow."""

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The reply, also a refusal. Raises AttachError if none comes."""

    def ask(self, op: str, *, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
        """Request and reply. Raises RecordingError for a refusal too."""

    def close(self) -> None:
        """End the connection, which cancels what the agent was asked to do."""


class Channel:
    """A connection to the agent of one process on this host."""

    def __init__(self, connection: socket.socket, who: str, folder: str = "") -> None:
        self.who = who
        self.folder = folder
        """The agent's own folder, as the process sees it."""
        self._connection = connection
        self._received = bytearray()

    @classmethod
    def find(cls, process: Process, who: str = "") -> Channel | None:
        """A connection to the agent that is already there; None without one.

        Raises AttachError if what answers is not the process that was meant.
        """
        who = who or f"process {process.pid}"
        for folder in folders(process):
            for seen_from_here in (f"/proc/{process.pid}/root{folder}", folder):
                connection = _open(process, seen_from_here, who)
                if connection is not None:
                    return cls(connection, who, folder)
        return None

    @classmethod
    def connect(cls, process: Process, timeout_s: float, who: str = "") -> Channel:
        """As ``find``, waiting for the agent to come up. Raises AttachTimeoutError."""
        deadline = time.monotonic() + timeout_s
        who = who or f"process {process.pid}"
        while True:
            found = cls.find(process, who)
            if found is not None:
                return found
            if not process.exists:
                raise ProcessGoneError(f"{who}: the process has ended")
            if time.monotonic() >= deadline:
                raise AttachTimeoutError(
                    f"{who}: no agent answered within {timeout_s:g} s",
                    hint="the process may be blocked in native code, or have no folder that it can "
                    "write to: set DIAGNOSE_DIR when it is started, or use `diagnose run`",
                )
            time.sleep(_POLL_S)

    def send(self, op: str, **fields: Any) -> None:
        line = json.dumps({"op": op, **fields}, separators=(",", ":")) + "\n"
        # An agent that is busy says so and closes: its answer can still be read.
        try:
            self._connection.settimeout(GRACE_S)
            self._connection.sendall(line.encode())
        except (BrokenPipeError, ConnectionResetError):
            pass
        except TimeoutError:
            raise self._silent(GRACE_S) from None
        except OSError:
            raise self._broken() from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while (end := self._received.find(b"\n")) < 0:
            self._fill(deadline, timeout_s)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise AttachError(f"{self.who}: the agent's answer cannot be understood")
        return reply

    def _fill(self, deadline: float, timeout_s: float) -> None:
        try:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._connection.recv(1 << 16)
        except TimeoutError:
            raise self._silent(timeout_s) from None
        except OSError:
            data = b""
        if not data:
            raise self._broken()
        self._received += data
        if len(self._received) > _MOST_BYTES:
            raise AttachError(f"{self.who}: the agent's answer has no end")

    def _silent(self, timeout_s: float) -> AttachTimeoutError:
        return AttachTimeoutError(
            f"{self.who}: the agent did not answer within {timeout_s:g} s",
            hint="the process may be stopped or blocked; see `cat /proc/PID/stack` or py-spy",
        )

    def _broken(self) -> ProcessGoneError:
        return ProcessGoneError(
            f"{self.who}: the connection to its agent broke off",
            hint="the process has probably ended; look at the job's own log",
        )

    def ask(self, op: str, *, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
        if op in _WAITING:
            fields["timeout_s"] = timeout_s
        self.send(op, **fields)
        reply = self.receive(timeout_s + GRACE_S)
        if reply.get("ok") is not True:
            raise error_of(reply, self.who)
        return reply

    def close(self) -> None:
        # A thread that waits in recv would not notice a mere close.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def folders(process: Process) -> Iterator[str]:
    """Where the agent of a process may listen, as the process sees it."""
    chosen = ""
    with contextlib.suppress(AttachError):
        chosen = process.environ.get("DIAGNOSE_DIR", "")
    if chosen.startswith("/"):
        yield chosen
        return
    for uid in dict.fromkeys((_uid_inside(process), process.uid)):
        yield f"/tmp/diagnose-{uid}"
        yield f"/dev/shm/diagnose-{uid}"


def _uid_inside(process: Process) -> int:
    """The user as the process itself sees it: another number in a user namespace."""
    try:
        with open(f"/proc/{process.pid}/uid_map", encoding="ascii") as file:
            for line in file:
                inside, outside, count = map(int, line.split())
                if outside <= process.uid < outside + count:
                    return inside + process.uid - outside
    except (OSError, ValueError):
        pass
    return process.uid


def _open(process: Process, folder: str, who: str) -> socket.socket | None:
    """A connection to the socket in this folder; None if nothing listens there."""
    try:
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(GRACE_S)  # where nobody accepts, connecting would wait for ever
        # By way of the handle: it cannot be exchanged any more, and no name is too long.
        connection.connect(f"/proc/self/fd/{handle}/{process.namespace_pid}.sock")
        about = os.fstat(handle)
        if about.st_uid not in (process.uid, 0) or stat.S_IMODE(about.st_mode) & 0o077:
            raise OtherUserError(
                f"{who}: {folder} is open to other users, so what listens there is not trusted",
                hint="remove it, or set DIAGNOSE_DIR in the job's environment to a private folder",
            )
        _check_peer(connection, process, who)
    except (BlockingIOError, TimeoutError):
        connection.close()
        raise AttachTimeoutError(
            f"{who}: its agent does not take any more connections",
            hint="the process may be stopped or blocked; see `cat /proc/PID/stack` or py-spy",
        ) from None
    except OSError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(handle)
    return connection


def _check_peer(connection: socket.socket, process: Process, who: str) -> None:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    if pid not in (0, process.pid) or uid not in (0, process.uid):
        raise OtherUserError(
            f"{who}: process {pid} of user {uid} answers in its place, and is not trusted",
            hint="look at what that process is",
        )
