"""An agent that speaks the protocol from a thread of the test, and does what it is told.

It stands in for the process that the test runs in: the peer of its socket is that one.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnose.attach.discovery.processes import Environment, Process

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]
STEP_NS = 10_000_000


class OwnProcess(Process):
    """This process, started with a folder for its agent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(os.getpid())
        self._folder_of_agent = folder

    @property
    def environ(self) -> Environment:
        return Environment(DIAGNOSE_DIR=str(self._folder_of_agent))


class FakeAgent:
    """Steps every 10 ms from the beginning of time, three collectives a step.

    ``answers`` replaces single operations; one that returns None says nothing.
    """

    def __init__(
        self, folder: Path, rank: int = 0, world_size: int = 1, answers: Mapping[str, Answer] = {}
    ) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.process = OwnProcess(folder)
        self.rank, self.world_size = rank, world_size
        self.answers = dict(answers)
        self.asked: list[dict[str, Any]] = []
        self.busy = False
        self.told = 0
        """The last boundary that a controller was told of."""
        self.closed = threading.Event()
        """A controller went away."""
        self.path = folder / f"{os.getpid()}.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def ops(self) -> list[str]:
        return [request["op"] for request in self.asked]

    def stop(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self.busy:
                connection.sendall(line({"ok": False, "code": "busy", "error": "in use"}))
                return
            with connection.makefile("rb") as requests:
                for text in requests:
                    request = json.loads(text)
                    self.asked.append(request)
                    op = request["op"]
                    reply = self.answers.get(op, getattr(self, f"answer_{op}"))(request)
                    if reply is not None:
                        connection.sendall(line(reply))
        self.closed.set()

    # What a healthy agent says.

    def mark(self, step: int) -> list[int]:
        return [step, 3 * step, step * STEP_NS]

    def last_step(self) -> int:
        return time.time_ns() // STEP_NS

    def answer_status(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "ok": True,
            "protocol": 1,
            "pid": os.getpid(),
            "rank": self.rank,
            "local_rank": self.rank,
            "world_size": self.world_size,
            "host": "node1",
            "torch": "2.13.0",
            "step": self.last_step(),
            "injected": False,
            "gpu_uuid": None,
            "cuda_device": None,
        }

    def answer_arm(self, request: dict[str, Any]) -> dict[str, Any]:
        last, marks = self.last_step(), request["marks"]
        self.told = last
        return {"ok": True, "marks": [self.mark(last - n) for n in range(marks)][::-1]}

    def answer_go(self, request: dict[str, Any]) -> dict[str, Any]:
        first = request["start"]["seq"] // 3
        Path(request["trace"]).write_text(trace_text(self.rank, self.world_size))
        return {
            "ok": True,
            "trace": request["trace"],
            "bytes": Path(request["trace"]).stat().st_size,
            "marks": [self.mark(first + n) for n in range(request["steps"] + 1)],
            "prepare_ns": 1_000_000,
            "start_ns": 1_000_000,
            "stop_ns": 5_000_000,
            "export_ns": 5_000_000,
            "clock": "seq",
            "started_unix_ns": first * STEP_NS,
            "ended_unix_ns": (first + request["steps"]) * STEP_NS,
        }

    def answer_after(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "marks": []}

    def answer_steps(self, request: dict[str, Any]) -> dict[str, Any]:
        go = next((r for r in reversed(self.asked) if r["op"] == "go"), None)
        if go is None:
            self.told = self.last_step()
            steps = range(max(request["since"] + 1, self.told - 50), self.told + 1)
            return {"ok": True, "marks": [self.mark(step) for step in steps]}
        first = go["start"]["seq"] // 3
        return {"ok": True, "marks": [self.mark(first + n) for n in range(-8, 15)]}

    def answer_environment(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "environment": {"rank": self.rank, "torch": "2.13.0", "env": {}}}

    def answer_detach(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True}


def line(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


def refusing(code: str, sentence: str = "it cannot") -> Answer:
    return lambda request: {"ok": False, "code": code, "error": sentence}


def trace_text(rank: int, world_size: int) -> str:
    """A trace with one kernel and two steps."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1}
        | {"ts": 100 * n, "dur": 100}
        for n in range(2)
    ]
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
    events.append({**kernel, "args": {"device": 0, "stream": 7, "correlation": 1}})
    about = {"rank": rank, "world_size": world_size, "backend": "gloo"}
    return json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events})
