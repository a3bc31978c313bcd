"""Protocol 1 between the agent in a process and whoever records: JSON lines over a unix socket.

One request, ``{"op": ..., ...}``, has one reply, ``{"ok": true, ...}`` or ``{"ok": false,
"code": ..., "error": sentence}``. Lines are UTF-8, end in a newline and have at most
``MAX_LINE_BYTES``. Closing the connection at any moment cancels what is going on.
"""

from __future__ import annotations

import json
import socket
from typing import Any

PROTOCOL = 1
MAX_LINE_BYTES = 1 << 20

BUSY = "busy"
PROFILER_BUSY = "profiler-busy"
MAIN_THREAD_STUCK = "main-thread-stuck"
NO_STEPS = "no-steps"
START_MISSED = "start-missed"
TORCH_MISSING = "torch-missing"
OUTPUT = "output"
TRACE_LOST = "trace-lost"
JOB_PROFILER = "job-profiler"
ABORTED = "aborted"
BAD_REQUEST = "bad-request"
INTERNAL = "internal"


class RefusalError(Exception):
    """A request that cannot be fulfilled: a code of the protocol and one sentence for people."""

    def __init__(self, code: str, sentence: str, **fields: Any) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.fields = fields

    def reply(self) -> dict[str, Any]:
        """The reply that says so."""
        return {"ok": False, "code": self.code, "error": self.sentence, **self.fields}


def encode(message: dict[str, Any]) -> bytes:
    """A message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """A request from a line. Raises RefusalError with ``bad-request`` if it is none."""
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise RefusalError(BAD_REQUEST, "the line is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise RefusalError(BAD_REQUEST, "a request is an object with an op")
    return message


def number_of(
    request: dict[str, Any], name: str, default: float, least: float, most: float
) -> float:
    """A number of a request. Raises RefusalError with ``bad-request`` if it is out of range."""
    value = request.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise RefusalError(BAD_REQUEST, f"{name} must be a number from {least:g} to {most:g}")
    return value


class Lines:
    """The lines that arrive on one connection, cut from whatever pieces it delivers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = bytearray()
        self._searched = 0

    def receive(self) -> bool:
        """Read what is there; the socket must be readable. False: the other side has closed."""
        try:
            piece = self._connection.recv(65536)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        self._pending += piece
        return bool(piece)

    def next(self) -> bytes | None:
        """The next complete line, None if there is none yet.

        Raises RefusalError with ``bad-request`` for a line that is too long.
        """
        end = self._pending.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._pending)
            if self._searched > MAX_LINE_BYTES:
                raise RefusalError(BAD_REQUEST, f"a line has more than {MAX_LINE_BYTES} bytes")
            return None
        if end > MAX_LINE_BYTES:
            raise RefusalError(BAD_REQUEST, f"a line has more than {MAX_LINE_BYTES} bytes")
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._searched = 0
        return line
