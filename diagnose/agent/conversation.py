"""Waiting without being deaf: one thread that serves a connection and watches all the rest.

While a request is being fulfilled the thread sleeps in ``poll`` on the connection (its end
cancels at once), on the listener (a second controller is told that this one is busy) and on a
wake-up of the training thread. It does not wake up otherwise, so a job feels nothing of it.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .protocol import BUSY, Lines, RefusalError, decode, encode
from .socket_folder import Listener

_SEND_S = 10.0


class GoneError(Exception):
    """The controller has closed the connection, or does not take its replies."""


class Wakeup:
    """Ends a ``poll`` of the agent's thread from any other thread."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def set(self) -> None:
        """Wake the agent's thread up. Never blocks, never raises."""
        # Through the object, not its number: after close the number may be a file of the job.
        with suppress(OSError, ValueError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Forget the wake-ups so far."""
        with suppress(OSError):
            while self.receiver.recv(4096):
                pass

    def close(self) -> None:
        """No more wake-ups."""
        self.receiver.close()
        self._sender.close()


def next_connection(
    listener: Listener, wakeup: Wakeup, timeout_s: float | None
) -> tuple[socket.socket | None, bool]:
    """The next controller, or None and whether the time is over (else: a wake-up)."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(listener.socket, select.POLLIN)
    poller.register(wakeup.receiver, select.POLLIN)
    while True:
        timeout_ms = None if end is None else max(0, int((end - time.monotonic()) * 1000) + 1)
        ready = [number for number, _ in poller.poll(timeout_ms)]
        if listener.socket.fileno() in ready:
            connection = listener.accept()
            if connection is not None:
                return connection, False
        if wakeup.receiver.fileno() in ready:
            wakeup.clear()
            return None, False
        if end is not None and time.monotonic() >= end:
            return None, True


class Conversation:
    """The one controller that is being served."""

    def __init__(self, connection: socket.socket, listener: Listener, wakeup: Wakeup) -> None:
        self._connection = connection
        self._listener = listener
        self._wakeup = wakeup
        self._lines = Lines(connection)
        self._waiting: list[bytes] = []

    def request(self) -> bytes:
        """The next line. Raises GoneError, or RefusalError for a line that is too long."""
        while not self._waiting:
            self._poll(None)
        return self._waiting.pop(0)

    def reply(self, message: dict[str, Any]) -> None:
        """Send a reply. Raises GoneError if the other side does not take it in 10 s."""
        try:
            self._connection.settimeout(_SEND_S)
            self._connection.sendall(encode(message))
            self._connection.setblocking(False)
        except OSError:
            raise GoneError from None

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``ready``, False after the time. Raises GoneError at once if it has gone."""
        end = time.monotonic() + timeout_s
        while not ready():
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            self._poll(left_s)
        return True

    def interrupted_by(self, op: str) -> bool:
        """Whether the next request, sent before the reply to the last one, is this one."""
        try:
            return bool(self._waiting) and decode(self._waiting[0])["op"] == op
        except RefusalError:
            return False

    def drop(self) -> None:
        """Close this process's copy only; after a fork the parent goes on with it."""
        self._connection.close()

    def close(self) -> None:
        """End it for everybody, also where a fork has copied the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _poll(self, timeout_s: float | None) -> None:
        poller = select.poll()
        if len(self._waiting) < 64:
            poller.register(self._connection, select.POLLIN)
        else:
            poller.register(self._connection, 0)
        poller.register(self._listener.socket, select.POLLIN)
        poller.register(self._wakeup.receiver, select.POLLIN)
        timeout_ms = None if timeout_s is None else max(1, int(timeout_s * 1000))
        for number, events in poller.poll(timeout_ms):
            if number == self._wakeup.receiver.fileno():
                self._wakeup.clear()
            elif number == self._listener.socket.fileno():
                self._turn_away()
            else:
                self._read(events)

    def _read(self, events: int) -> None:
        if not events & select.POLLIN or not self._lines.receive():
            raise GoneError
        while True:
            line = self._lines.next()
            if line is None:
                return
            self._waiting.append(line)

    def _turn_away(self) -> None:
        other = self._listener.accept()
        if other is not None:
            sentence = "another recording is using the agent of this process"
            with suppress(OSError):
                other.send(encode(RefusalError(BUSY, sentence).reply()))
            other.close()
