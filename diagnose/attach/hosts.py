"""Reach every rank of a job from one host, or agree between hosts, over the job's own TCPStore.

``StoreChannel`` speaks to one agent as the socket channel does. ``Meeting`` lets one
controller per host exchange a message each (what their ranks saw), from which all of
them compute the same window. The store is where ``MASTER_ADDR`` and ``MASTER_PORT`` of
the job say; it asks for no password, so it is as private as the job's network.

Needs PyTorch in the controller's Python, best the job's own.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.agent.store import BEAT_S, Client, StoreLostError
from diagnose.attach._replies import error_of
from diagnose.errors import (
    AttachError,
    AttachTimeoutError,
    NoRanksError,
    OutputError,
    ProcessGoneError,
    UsageError,
)

_GRACE_S = 5.0
_LEAVE_S = 2.0
_WAITING = frozenset({"arm", "go", "after"})
_MOST_RANKS = 1 << 20
_MOST_CHARACTERS = 400
_SIT_DOWN_S = 5.0
"""Hosts that are all here answer each other at once."""


@dataclass(frozen=True)
class StoreRank:
    """A rank whose agent listens on the store. ``host`` and ``pid`` are as it says."""

    rank: int
    host: str
    pid: int


class JobStore:
    """A job's store: who listens on it, and sessions with them. Close it, or use ``with``."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self.client = connect()
        self._person = secrets.token_hex(8)
        self._sessions = itertools.count()
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    @classmethod
    def open(cls, address: str, timeout_s: float = 20.0) -> JobStore:
        """Connect to ``HOST:PORT``. Raises UsageError for a bad address, AttachError otherwise."""
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(
                f"{address!r} is no address of a store", hint="give HOST:PORT, as node0:29500"
            )

        def connect() -> Client:
            return Client(host.strip("[]"), int(port), timeout_s)

        try:
            return cls(connect)
        except StoreLostError as error:
            raise AttachError(
                f"the job's store at {address} cannot be reached: {error}",
                hint="give MASTER_ADDR:MASTER_PORT of the job, from a host that reaches it, and "
                "run diagnose with the job's own Python",
            ) from None

    def ranks(self) -> tuple[list[StoreRank], int | None]:
        """Who listens, by rank, and the world size. Raises NoRanksError if nobody does."""
        try:
            world = _number(self.client.get("world")) if self.client.has("world") else None
            found = [
                _store_rank(rank, self.client.get(f"here/{rank}"))
                for rank in range(min(world or 0, _MOST_RANKS))
                if self.client.has(f"here/{rank}")
            ]
        except StoreLostError as error:
            raise _gone("the job", error) from None
        if not found:
            raise NoRanksError(
                "no rank listens on the job's store",
                hint="start the job with `diagnose run --all-hosts -- ...` on every host; agents "
                "listen from the first optimizer step on",
            )
        return found, world

    def channel(self, rank: StoreRank, timeout_s: float = 20.0) -> StoreChannel:
        """Begin a session with one rank. Raises AttachError if the store is gone."""
        try:
            # Before the call: an agent that finds no sign of life drops the session.
            if self._heart is None:
                self.client.add(f"s/{self._person}/beat", 1)
                self._heart = threading.Thread(target=self._beat, name="store-beat", daemon=True)
                self._heart.start()
            number = self.client.add(f"calls/{rank.rank}", 1)
            self._void_dead_calls(rank.rank, number)
            serial = next(self._sessions)
            self.client.set(f"call/{rank.rank}/{number}", f"{self._person}.{serial}")
            # A wait blocks its client, and ranks are waited for at the same time.
            client = self._connect()
        except StoreLostError as error:
            raise _gone(f"rank {rank.rank}", error) from None
        return StoreChannel(client, f"s/{self._person}/{serial}", rank, timeout_s)

    def _void_dead_calls(self, rank: int, number: int) -> None:
        """Agents wait for call after call: one whose controller died before writing it blocks."""
        key = f"answered/{rank}"
        answered = _number(self.client.get(key)) if self.client.has(key) else None
        for earlier in range((answered or 0) + 1, number):
            call = f"call/{rank}/{earlier}"
            if not self.client.has(call):
                self.client.set(call, "")

    def meeting(self, num_hosts: int) -> Meeting:
        """Where the controllers of so many hosts exchange what their ranks saw."""
        return Meeting(self.client, num_hosts)

    def _beat(self) -> None:
        with suppress(StoreLostError):
            client = self._connect()
            while not self._stop.wait(BEAT_S):
                client.add(f"s/{self._person}/beat", 1)

    def close(self) -> None:
        """End the sessions: agents stop what they do for them."""
        if not self._stop.is_set():
            self._stop.set()
            with suppress(StoreLostError):
                self.client.set(f"s/{self._person}/closed", "1")
            if self._heart is not None:
                self._heart.join(_LEAVE_S)

    def __enter__(self) -> JobStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreChannel:
    """A session with the agent of one rank, with the methods of the socket channel."""

    def __init__(self, client: Client, base: str, rank: StoreRank, timeout_s: float) -> None:
        self.rank = rank
        self.who = f"rank {rank.rank} (pid {rank.pid} on {rank.host})"
        self.folder = ""
        self._client = client
        self._base = base
        self._number = 0
        self._first_s = timeout_s
        self._closed = False
        self._receiving = threading.Lock()

    def send(self, op: str, **fields: Any) -> None:
        """Send a request; ``receive`` has to follow."""
        line = json.dumps({"op": op, **fields}, separators=(",", ":"))
        try:
            self._client.set(f"{self._base}/q/{self._number}", line)
        except StoreLostError as error:
            raise _gone(self.who, error) from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The reply, also a refusal. Raises AttachError if none comes."""
        with self._receiving:
            return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        key = f"{self._base}/a/{self._number}"
        deadline = time.monotonic() + timeout_s
        try:
            # Not a wait: one that times out makes PyTorch write to stderr.
            pauses = _pauses()
            while not self._client.has(key):
                time.sleep(next(pauses))
                if self._closed:
                    raise ProcessGoneError(f"{self.who}: the session was closed")
                if time.monotonic() > deadline:
                    raise AttachTimeoutError(
                        f"{self.who}: the agent did not answer within {timeout_s:g} s",
                        hint="another diagnose may be attached to it, or the process is blocked",
                    )
            data = self._client.get(key)
            self._client.delete(key)
        except StoreLostError as error:
            raise _gone(self.who, error) from None
        self._number += 1
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise AttachError(f"{self.who}: the agent's answer cannot be understood")
        return reply

    def ask(self, op: str, *, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
        """Request and reply. Raises RecordingError for a refusal too."""
        if op in _WAITING:
            fields["timeout_s"] = timeout_s
        self.send(op, **fields)
        # An agent that serves somebody else takes the call up later, or not at all.
        allowed_s = max(timeout_s, self._first_s) if self._number == 0 else timeout_s
        reply = self.receive(allowed_s + _GRACE_S)
        if reply.get("ok") is not True:
            raise error_of(reply, self.who)
        return reply

    def fetch(self, destination: Path, *, timeout_s: float = 30.0) -> int:
        """Bring the window's trace here as gzip, whole or not at all. Returns its bytes.

        Raises OutputError if it cannot be written here, or is too large to send: over
        256 MiB it stays on its host, and the message says where. AttachError otherwise.
        """
        part = destination.with_name(destination.name + ".part")
        try:
            with open(part, "xb") as file:
                last = False
                while not last:
                    number = self._number
                    reply = self._piece(timeout_s)
                    key = f"{self._base}/c/{number}"
                    file.write(self._client.get(key))
                    self._client.delete(key)
                    last = bool(reply.get("last"))
                file.flush()
                os.fsync(file.fileno())
            part.replace(destination)
        except StoreLostError as error:
            raise _gone(self.who, error) from None
        except OSError as problem:
            raise OutputError(
                f"{destination}: the trace of rank {self.rank.rank} cannot be written "
                f"({problem.strerror})",
                hint="give --output a folder on a disk with room",
            ) from None
        finally:
            part.unlink(missing_ok=True)
        return destination.stat().st_size

    def _piece(self, timeout_s: float) -> dict[str, Any]:
        try:
            return self.ask("fetch", timeout_s=timeout_s)
        except OutputError as error:
            raise OutputError(
                error.message,
                hint="copy it from that host into the recording's folder, or start the job with "
                "`diagnose run --all-hosts --shared-folder DIR`",
            ) from None

    def close(self) -> None:
        """End the session with this rank: what its agent does is cancelled."""
        if not self._closed:
            self._closed = True
            # A thread that comes back from the store's C++ while the interpreter ends would
            # abort it, so one that waits is waited for. Its client is taken until then.
            if self._receiving.acquire(timeout=_LEAVE_S):
                self._receiving.release()
                with suppress(StoreLostError):
                    self._client.set(f"{self._base}/closed", "1")


class Meeting:
    """Controllers on several hosts that exchange a message each, round by round.

    ``join`` first. All of them must take part in each round, and hear the same, in the
    same order. One that leaves is None in what the others hear from then on.
    """

    def __init__(self, client: Client, num_hosts: int) -> None:
        if num_hosts < 2:
            raise UsageError(f"--hosts {num_hosts}: a meeting needs 2 hosts", hint="leave it out")
        self.num_hosts = num_hosts
        self.seat = 0
        """This host's place in what is heard."""
        self.reasons: dict[int, str] = {}
        """Why others have left, by seat."""
        self._client = client
        self._top = ""
        self._round = 0

    def join(self, timeout_s: float = 60.0) -> None:
        """Take a place once all hosts are here. Raises AttachTimeoutError if some stay away."""
        deadline = time.monotonic() + timeout_s
        try:
            while not self._top:
                taken = self._client.add("meet/seats", 1) - 1
                top = f"meet/{taken // self.num_hosts}"
                if not self._client.has(f"{top}/void"):
                    self._sit_down(top, taken % self.num_hosts, deadline, timeout_s)
        except (StoreLostError, ValueError) as error:
            raise _gone("the job", error) from None

    def _sit_down(self, top: str, seat: int, deadline: float, timeout_s: float) -> None:
        # Until all have said it: who goes away before makes the seats of this table void.
        self._top, self.seat = top, seat
        self._client.set(f"{top}/here/{seat}", str(self.num_hosts))
        said = [self._said("here", n, deadline) for n in range(self.num_hosts)]
        came = sum(one is not None for one in said)
        if came < self.num_hosts:
            self.leave("the other hosts did not come")
            if time.monotonic() < deadline:
                return  # one of them has gone: another table
            raise AttachTimeoutError(
                f"only {came} of {self.num_hosts} hosts came within {timeout_s:g} s",
                hint="start the same command on every host, with the same --hosts",
            )
        if any(one != str(self.num_hosts).encode() for one in said):
            self.leave("--hosts differs")
            raise UsageError("the hosts were given different --hosts", hint="give all the same")
        # One that was killed while it waited still has its seat, but answers nothing.
        self._client.set(f"{top}/ready/{seat}", "1")
        answer_by = min(deadline, time.monotonic() + _SIT_DOWN_S)
        if any(self._said("ready", n, answer_by) is None for n in range(self.num_hosts)):
            self.leave("another host did not answer")

    def exchange(self, message: Any, timeout_s: float = 60.0) -> list[Any]:
        """What every host said, in the same order on all of them; this host's among it.

        None: it has left. Raises AttachTimeoutError if one neither says anything nor
        leaves, AttachError if the store is gone.
        """
        if not self._top:
            raise AttachError("this host has left the meeting", hint="try again")
        self._round += 1
        topic = f"round/{self._round}"
        deadline = time.monotonic() + timeout_s
        heard: list[Any] = []
        try:
            self._client.set(f"{self._top}/{topic}/{self.seat}", json.dumps(message))
            for other in range(self.num_hosts):
                said = self._said(topic, other, deadline)
                if said is None and other not in self.reasons:
                    raise AttachTimeoutError(
                        f"host {other + 1} of {self.num_hosts} did not answer within "
                        f"{timeout_s:g} s",
                        hint="look at what the command says on the other hosts, and try again",
                    )
                heard.append(None if said is None else json.loads(said))
            # All have spoken in this round, so all have read what was said in the last.
            self._client.delete(f"{self._top}/round/{self._round - 1}/{self.seat}")
        except (StoreLostError, ValueError, RecursionError) as error:
            raise _gone("the job", error) from None
        return heard

    def leave(self, reason: str = "") -> None:
        """Do not take part any more; the others go on without this host. Never raises."""
        top, self._top = self._top, ""
        if top:
            with suppress(StoreLostError):
                self._client.set(f"{top}/left/{self.seat}", json.dumps(reason[:_MOST_CHARACTERS]))
                if self._round == 0:
                    self._client.set(f"{top}/void", "1")

    def _said(self, topic: str, other: int, deadline: float) -> bytes | None:
        """What another host said on a topic; None if it left before, or the time is over."""
        key, left = f"{self._top}/{topic}/{other}", f"{self._top}/left/{other}"
        pauses = _pauses()
        while not self._client.has(key):
            gone = self._client.has(left)
            # It may have spoken, then left, since it was looked at: all must hear the same.
            if gone and not self._client.has(key):
                self.reasons[other] = str(json.loads(self._client.get(left)))[:_MOST_CHARACTERS]
                return None
            if not gone and time.monotonic() > deadline:
                return None
            if not gone:
                time.sleep(next(pauses))
        return self._client.get(key)


def _store_rank(rank: int, data: bytes) -> StoreRank:
    try:
        said = json.loads(data)
        return StoreRank(rank, str(said["host"])[:255], int(said["pid"]))
    except (ValueError, KeyError, TypeError):
        return StoreRank(rank, "unknown", 0)


def _pauses() -> Iterator[float]:
    """Seconds between looks at the store: short at first, as most answers come at once."""
    pause = 0.002
    while True:
        yield pause
        pause = min(0.05, 1.5 * pause)


def _number(data: bytes) -> int | None:
    return int(data) if data.isdigit() and len(data) < 10 else None


def _gone(who: str, error: Exception) -> ProcessGoneError:
    return ProcessGoneError(
        f"{who}: the job's store does not answer any more ({error})",
        hint="the job has probably ended; look at its log",
    )
