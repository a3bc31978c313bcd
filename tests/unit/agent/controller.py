"""The person's side of the protocol, as plain as possible, for the tests of the agent."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any


class Controller:
    """The person's side of a connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def send(self, op: str, **fields: Any) -> None:
        self.send_bytes(json.dumps({"op": op, **fields}).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        return json.loads(self.file.readline())

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.send(op, **fields)
        return self.receive()

    def is_closed(self) -> bool:
        return self.file.read(1) == b""

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()
