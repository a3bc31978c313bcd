"""Serve this process's agent over the job's own TCPStore, so that hosts need no ssh.

A thread of its own holds a separate client of the store (a wait on the job's client
would block the job) and waits in C++ without the GIL. It is a relay: each session of
the store becomes one connection to the agent's unix socket, so the same requests get
the same answers, one controller at a time, and a controller that goes away ends the
window as a closed socket does.

Whoever reaches the store could ask, so a path never comes from there: traces are
written to this agent's own folder, or to the one the job was started with
(``DIAGNOSE_STORE_FOLDER``), only those can be fetched, and they are removed at the
end of the session unless they were too large to be sent.

Keys, below the prefix ``diagnose/1``::

    world                         the world size
    here/RANK                     {"pid", "host", "rank"}
    calls/RANK                    counter of calls; each call is at call/RANK/N
    answered/RANK                 the last call that was taken up
    s/PERSON/beat                 counter that grows while the controller lives
    s/PERSON/closed               set when the controller leaves
    s/PERSON/N/closed             set when it ends one of its sessions
    s/PERSON/N/q/I, a/I, c/I      request, answer, and a chunk that belongs to it

A call holds ``PERSON.N``: who asks, and the number of the session.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from .main_thread import leave_signals_to_the_job

PREFIX = "diagnose/1"
CHUNK_BYTES = 4 << 20
MAX_TRACE_BYTES = 256 << 20
BEAT_S = 1.0
LOST_AFTER_S = 6.0
_MAX_LINE_BYTES = 32 << 20
_LOOK_S = 0.25
_POLL_S = 0.05
# A wait that times out makes PyTorch write to the job's log, and poll(2) takes 24 days at most.
_CALL_WAIT_S = 20 * 24 * 3600.0
_STOP_S = 3.0
_RELAYED = ("status", "steps", "arm", "go", "after", "environment", "cancel", "detach")


class StoreLostError(Exception):
    """The store cannot be reached, or answered with an error."""


class Client:
    """A client of its own to a job's TCPStore. Imports torch. Raises StoreLostError."""

    def __init__(self, host: str, port: int, timeout_s: float = 20.0, prefix: str = PREFIX) -> None:
        from datetime import timedelta

        try:
            from torch.distributed import PrefixStore, TCPStore
        except ImportError as error:
            raise StoreLostError(f"PyTorch is not installed here ({error})") from None
        self._delta = timedelta
        try:
            raw = TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )
            self._store: Any = PrefixStore(prefix, raw)
        except Exception as error:
            raise StoreLostError(_line(error)) from None

    def set(self, key: str, value: str | bytes) -> None:
        self._do("set", key, value)

    def get(self, key: str) -> bytes:
        """The value; waits for it as long as the client's timeout."""
        return bytes(self._do("get", key))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return what it is then."""
        return int(self._do("add", key, amount))

    def has(self, key: str) -> bool:
        return bool(self._do("check", [key]))

    def delete(self, key: str) -> None:
        try:
            self._store.delete_key(key)
        except Exception:
            return  # some stores cannot; the value then stays until the job ends

    def wait(self, key: str, timeout_s: float) -> bool:
        """Whether the key came in time. Blocks without the GIL."""
        try:
            self._store.wait([key], self._delta(seconds=timeout_s))
        except Exception as error:
            text = _line(error)
            if "imeout" in text or "imed out" in text:
                return False
            raise StoreLostError(text) from None
        return True

    def _do(self, name: str, *values: Any) -> Any:
        try:
            return getattr(self._store, name)(*values)
        except Exception as error:
            raise StoreLostError(_line(error)) from None


_listening_pid = 0


def listen(socket_path: str) -> None:
    """Serve the agent of this socket over the job's store too, if the job asks for it.

    ``DIAGNOSE_STORE=1`` asks. Call it whenever there may be a process group at last: once
    there is, a thread is started, once per process. Never raises.
    """
    global _listening_pid
    with contextlib.suppress(Exception):
        if os.environ.get("DIAGNOSE_STORE") != "1" or _listening_pid == os.getpid():
            return
        distributed = sys.modules.get("torch.distributed")
        # Before, rank 0 may not serve the store yet.
        if distributed is None or not distributed.is_initialized():
            return
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
        folder = os.environ.get("DIAGNOSE_STORE_FOLDER") or str(Path(socket_path).parent)
        relay = Relay(rank, socket_path, folder)
        _listening_pid = os.getpid()
        relay.thread = threading.Thread(
            target=_serve, args=(relay, host, port, world_size), name="diagnose-store", daemon=True
        )
        # A thread that comes back from C++ while the interpreter ends would end the process with
        # SIGABRT (before Python 3.14): it has to be gone by then.
        atexit.register(relay.stop)
        relay.thread.start()


def _serve(relay: Relay, host: str, port: int, world_size: int) -> None:
    try:
        leave_signals_to_the_job()
        client = Client(host, port)
        relay.waker = Client(host, port)
        answered = client.add(f"calls/{relay.rank}", 0)
        client.set("world", str(world_size))
        here = {"pid": os.getpid(), "host": socket.gethostname(), "rank": relay.rank}
        client.set(f"here/{relay.rank}", json.dumps(here))
        relay.serve(client, answered)
    except BaseException:
        return  # the job ended, and its store with it


class Relay:
    """Takes calls for one rank, one after the other, until the store is gone."""

    def __init__(self, rank: int, socket_path: str, folder: str) -> None:
        self.rank = rank
        self.socket_path = socket_path
        self.folder = folder
        self.stopped = False
        self.thread: threading.Thread | None = None
        self.waker: Any = None
        """A client of its own, since the thread's is taken while it waits."""
        self._pid = os.getpid()

    def stop(self) -> None:
        """Wake the thread and wait until it has ended. Never raises."""
        self.stopped = True
        thread = self.thread
        if thread is None or self._pid != os.getpid():
            return
        with contextlib.suppress(Exception):
            if self.waker is not None and thread.is_alive():
                number = self.waker.add(f"calls/{self.rank}", 1)
                self.waker.set(f"call/{self.rank}/{number}", "")
        with contextlib.suppress(Exception):
            thread.join(_STOP_S)

    def serve(self, client: Any, answered: int) -> None:
        """Answer all calls after the given number."""
        number = answered
        while not self.stopped:
            number += 1
            key = f"call/{self.rank}/{number}"
            while not client.wait(key, _CALL_WAIT_S):
                continue
            if self.stopped:
                return
            session = client.get(key).decode("ascii", "replace")
            client.set(f"answered/{self.rank}", str(number))
            client.delete(key)
            person, _, serial = session.partition(".")
            if len(session) <= 64 and person.isalnum() and serial.isdecimal():
                _Session(self, client, person, serial).run()


class _Session:
    """One controller's session: its requests in order, until it leaves or shows no life."""

    def __init__(self, relay: Relay, client: Any, person: str, serial: str) -> None:
        self._relay = relay
        self._client = client
        self._top = f"s/{person}"
        self._base = f"s/{person}/{serial}"
        self._trace = (
            Path(relay.folder) / f"store-{person}-{serial}-rank{relay.rank:05d}.trace.json"
        )
        self._keeps = False
        self._reader: _CompressedReader | None = None
        self._beat = -1
        self._beat_seen = self._beat_looked = time.monotonic()
        self._looked = float("-inf")

    def run(self) -> None:
        if self._gone():
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        number = 0
        try:
            connection.connect(self._relay.socket_path)
            while True:
                request = self._request(number)
                if request is None:
                    return
                reply = self._answer(connection, request, number)
                if reply is None:
                    return
                self._client.set(f"{self._base}/a/{number}", json.dumps(reply))
                if request.get("op") == "detach":
                    return
                number += 1
        except (OSError, ValueError) as error:
            failure = _failure("internal", f"the agent does not answer ({error})")
            self._client.set(f"{self._base}/a/{number}", json.dumps(failure))
        finally:
            connection.close()
            self._end()

    def _request(self, number: int) -> dict[str, Any] | None:
        """The next request; None once the controller is gone."""
        key = f"{self._base}/q/{number}"
        while not self._client.has(key):
            if self._gone():
                return None
            time.sleep(_POLL_S)
        data = self._client.get(key)
        self._client.delete(key)
        try:
            request = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            return {}
        return request if isinstance(request, dict) else {}

    def _answer(
        self, connection: socket.socket, request: dict[str, Any], number: int
    ) -> dict[str, Any] | None:
        op = request.get("op")
        if op == "fetch":
            return self._fetch(number)
        if op not in _RELAYED:
            return _failure("bad-request", "this cannot be asked over the store")
        if op == "go":
            request["trace"] = str(self._trace)
        return self._relayed(connection, request)

    def _relayed(self, connection: socket.socket, request: dict[str, Any]) -> dict[str, Any] | None:
        """The agent's reply; None if the controller goes away meanwhile."""
        # An agent that is busy says so and closes: its answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(json.dumps(request).encode("utf-8") + b"\n")
        data = bytearray()
        while not data.endswith(b"\n"):
            if not select.select([connection], [], [], _LOOK_S)[0]:
                if self._gone():
                    return None
                continue
            piece = connection.recv(1 << 16)
            if not piece or len(data) > _MAX_LINE_BYTES:
                if data.endswith(b"}"):
                    break
                return _failure("aborted", "the agent closed the connection")
            data += piece
        reply = json.loads(data.decode("utf-8"))
        return reply if isinstance(reply, dict) else _failure("internal", "no reply")

    def _gone(self) -> bool:
        """Whether the controller left, or shows no life any more, or this is to stop."""
        now = time.monotonic()
        if self._relay.stopped:
            return True
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        if any(self._client.has(f"{place}/closed") for place in (self._top, self._base)):
            return True
        if self._beat < 0 or now - self._beat_looked >= BEAT_S:
            self._beat_looked = now
            beat = self._client.add(f"{self._top}/beat", 0)
            if beat != self._beat:
                self._beat, self._beat_seen = beat, now
        return now - self._beat_seen > LOST_AFTER_S

    def _fetch(self, number: int) -> dict[str, Any]:
        """One piece of the compressed trace, left in a key that the controller deletes."""
        try:
            if self._reader is None:
                self._reader = _CompressedReader(self._trace)
            piece, last = self._reader.read()
        except OSError as error:
            return _failure("output", f"its trace cannot be read ({error.strerror})")
        if self._reader.num_bytes > MAX_TRACE_BYTES:
            self._keeps = True
            return _failure("output", f"its trace is too large to send, it is at {self._trace}")
        self._client.set(f"{self._base}/c/{number}", piece)
        return {"ok": True, "bytes": len(piece), "last": last}

    def _end(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if not self._keeps:
            with contextlib.suppress(OSError):
                self._trace.unlink()


class _CompressedReader:
    """A file as gzip, in pieces; zlib works without the GIL."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
        self.num_bytes = 0

    def read(self) -> tuple[bytes, bool]:
        """The next piece, at most CHUNK_BYTES, and whether it is the last."""
        pieces: list[bytes] = []
        size, last = 0, False
        while not last and size < CHUNK_BYTES - (2 << 20):
            data = self._file.read(1 << 20)
            last = not data
            piece = self._compressor.flush() if last else self._compressor.compress(data)
            pieces.append(piece)
            size += len(piece)
        self.num_bytes += size
        return b"".join(pieces), last

    def close(self) -> None:
        self._file.close()


def _failure(code: str, sentence: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "error": sentence}


def _line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
